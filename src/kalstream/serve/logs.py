"""The log of what a service does: JSON lines on standard error.

Messages begin with the name of their event, and their values are one dictionary:
``logger.info("checkpoint %(model)s", {"model": "default", "ms": 3.1})``. Other handlers show them
as text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

Level = Literal["events", "requests"]


class LogLines(logging.Formatter):
    """Each record as a line of JSON.

    Examples
    --------
    >>> record = logging.makeLogRecord(
    ...     {"created": 0.0, "msg": "stop %(rows)d", "levelname": "INFO"}
    ... )
    >>> record.args = {"rows": 3}
    >>> LogLines().format(record)
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "event": "stop", "rows": 3}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        if isinstance(record.args, Mapping):
            line |= {"event": record.msg.partition(" ")[0], **record.args}
        else:  # of other packages
            line |= {"event": "message", "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def begin_logging(level: Level) -> None:
    """Log events and requests that fail, or all requests, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    requests = logging.INFO if level == "requests" else logging.WARNING
    levels = {"kalstream.serve": logging.INFO, "uvicorn": logging.WARNING}
    for name, least in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
    logging.getLogger("kalstream.serve.access").setLevel(requests)
