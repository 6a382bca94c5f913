"""Compiled loops, each imported on first use.

`chunk`, `bank`, `mixture` and `stacking` serve the core modules of these names; `chunk` also serves
`state` and `forgetting`. `softmax_integral` serves `predictive`, and through `chunk` and `mixture`
whatever learns from class probabilities. `_jit` compiles them all, and caches the result on disk.
"""
