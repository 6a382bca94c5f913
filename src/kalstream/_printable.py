"""Text of users made safe for terminals and messages."""

from __future__ import annotations

import re
from typing import Final

# Characters that a terminal obeys or cannot show: control characters (C0, DEL, C1), line and
# paragraph separators, marks of the direction of writing, invisible tags, and halves of surrogate
# pairs, which no encoding can write. Joiners are kept, since some scripts need them.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_UNSAFE_LINES: Final = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(value: object, most: int = 80, *, lines: bool = False) -> str:
    r"""Text of limited length that a terminal cannot take for a command.

    Parameters
    ----------
    value : object
        Its ``str`` is shown.
    most : int
        Number of characters; "..." replaces the rest.
    lines : bool
        Whether to keep line feeds. All other unsafe characters are escaped.

    Examples
    --------
    >>> print(printable("\x1b[31mred\n"), printable("a" * 100, 10))
    \x1b[31mred\n aaaaaaa...
    """
    text = str(value)
    if len(text) > most:
        text = text[: max(0, most - 3)] + "..."
    if text.isascii() and text.isprintable():
        return text
    return (_UNSAFE_LINES if lines else _UNSAFE).sub(_escape, text)


def quoted(value: object, most: int = 80) -> str:
    """The ``repr`` of a value for a message, of limited length; text keeps its quotes.

    Examples
    --------
    >>> quoted("label"), quoted("a" * 100, 10), quoted([1] * 100, 10)
    ("'label'", "'aaaaaaa...'", '[1, 1, ...')
    """
    if isinstance(value, str):
        return printable(repr(value if len(value) <= most else value[: most - 3] + "..."), 8 * most)
    return printable(repr(value), most)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
