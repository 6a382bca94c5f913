"""The unknown scale of a regression's noise: core/README.md, "The unknown scale"."""

from typing import Final

# What the scale keeps from one example to the next: a half-life of about 700 examples.
KEEP_SCALE: Final = 0.999
