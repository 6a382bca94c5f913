"""Compiled loops, each imported on first use.

Modules serve the core modules of the same names, and `motion`, `alarm`, `row` and `value_row` too.
`chunk` also serves `state` and `single`, `observing` all that learn labels, `late_row` serves `row`,
and `judging` also `mixture.late`. `core.jit` compiles them all, and caches the result on disk.
"""
