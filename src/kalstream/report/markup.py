"""HTML from Python, safe by construction: everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Control characters, halves of surrogate pairs (which cannot be encoded), and the marks that change
# the direction of writing: a label must not reorder the text around it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_VOID = frozenset({"br", "col", "link", "meta"})


class Markup(str):
    """Text that is HTML already; only the functions of this file should make it."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Text of any value, safe between tags and inside quoted attributes.

    Parameters
    ----------
    value : object
        `Markup` stays as it is, everything else is escaped.

    Examples
    --------
    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def join(children: Iterable[object]) -> Markup:
    """The children one after the other; None is left out.

    Parameters
    ----------
    children : iterable
        Each is treated as by `escape`.
    """
    return Markup("".join(escape(child) for child in children if child is not None))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element.

    Parameters
    ----------
    name : str
        The element's name.
    *children : object
        Its content; None is left out.
    **attributes : object
        None is left out. A trailing underscore is dropped, and others become hyphens:
        ``class_``, ``data_x``.

    Examples
    --------
    >>> tag("p", "a < b", tag("br"), class_="note", id=None)
    '<p class="note">a &lt; b<br></p>'
    """
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{inside}>")
    return Markup(f"<{name}{inside}>{join(children)}</{name}>")
