"""A service over HTTP: models that learn what they are sent, a log that loses nothing, a page."""
