"""Compiled loops, each imported on first use.

`chunk`, `bank`, `mixture` and `stacking` serve the core modules of these names; `chunk` also serves
`state` and `single`. `core.jit` compiles them all, and caches the result on disk.
"""
