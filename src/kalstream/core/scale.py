"""The unknown scale of a regression's noise: core/README.md, "The unknown scale"."""

from typing import Final

# Factor by which the scale forgets at each row: a half-life of about 700 rows.
KEEP_SCALE: Final = 0.999
