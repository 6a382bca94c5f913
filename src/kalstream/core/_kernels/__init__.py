"""Compiled loops, each imported on first use.

A module serves the core module of the same name.
`chunk` also serves `state` and `single`, `observing` all that learn labels, `late_row` serves
`row`, and `judging` also `mixture.late`. `core.jit` compiles them all, and caches the result on
disk.
"""
