"""Compiled loops: `chunk`, `bank`, `mixture` and `stacking` serve the modules of these names."""
