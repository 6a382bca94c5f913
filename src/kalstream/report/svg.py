"""Figures as SVG, which stretch with the page while their text keeps its size.

The outer SVG has no viewBox: it is as wide as the page allows, and places texts and dots by
percentages. Curves and cells are in an inner SVG of 1000 by 1000 units, which is stretched to fill
the outer one. Axis labels are drawn in the padding of the box around the figure. So one figure fits
a desktop and a phone without a script. Colours are classes of the style sheet, which has a light
and a dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from kalstream.report.axes import Axis
from kalstream.report.markup import Markup, tag
from kalstream.report.read import FloatArray

_UNITS = 1000
LEVELS = 12  # shades of a heat map: about as many as the eye distinguishes
_FEW_POINTS = 40  # curves of at most this many points get dots too
_LABEL_GAP = 15  # pixels between two labels at the ends of curves
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def coordinates(shares: FloatArray) -> list[str]:
    """Positions in units of the inner SVG, with one decimal."""
    return [f"{value:g}" for value in np.round(_UNITS * np.clip(shares, -50, 50), 1)]


def curve(xs: FloatArray, ys: FloatArray) -> str:
    """Path through points, given as shares of the figure; NaN interrupts it."""
    known = np.isfinite(xs) & np.isfinite(ys)
    across, down = coordinates(np.where(known, xs, 0)), coordinates(np.where(known, 1 - ys, 0))
    parts: list[str] = []
    for i, (x, y) in enumerate(zip(across, down, strict=True)):
        if known[i]:
            parts.append(f"{'L' if i and known[i - 1] else 'M'}{x} {y}")
    return "".join(parts)


def spread(
    places: Sequence[float], low: float, high: float, gap: float = _LABEL_GAP
) -> list[float]:
    """Positions, moved apart until neighbours are a gap apart, within bounds.

    Examples
    --------
    >>> spread([10, 12, 60], 0, 100, gap=10)
    [10, 20, 60]
    >>> spread([95, 99], 0, 100, gap=10)
    [90, 100]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    floor = low
    for i in order:
        moved[i] = max(places[i], floor)
        floor = moved[i] + gap
    ceiling = high
    for i in reversed(order):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved


def _cent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


class Figure:
    """A figure: axes, and the curves, bars or cells between them.

    Parameters
    ----------
    title, description : str
        What it shows; screen readers read both.
    x, y : Axis
        The axes.
    height : int
        Height between the axes, in pixels.
    time : bool
        Whether `x` is time: all such figures of a page share a crosshair.
    css : str
        Further classes of the box around it.
    """

    def __init__(
        self,
        title: str,
        description: str,
        x: Axis,
        y: Axis,
        *,
        height: int = 190,
        time: bool = True,
        css: str = "",
    ) -> None:
        self.title, self.description = title, description
        self.x, self.y, self.height = x, y, height
        self.time, self.css = time, css
        self._inside: list[Markup] = []
        self._over: list[Markup] = []
        self._ends: list[tuple[float, str, str, str]] = []
        self._columns: str | None = None

    def line(
        self,
        xs: FloatArray,
        ys: FloatArray,
        css: str,
        *,
        name: str | None = None,
        label: str | None = None,
        value: str = "",
    ) -> None:
        """Draw a curve.

        Parameters
        ----------
        xs, ys : ndarray of shape (n,)
            Its points; NaN interrupts it.
        css : str
            Class that gives colour, width and dashes.
        name : str, optional
            Its name in the read-out at the pointer; None leaves it out there.
        label, value : str, optional
            Text at its end; the value is hidden where the screen is narrow.
        """
        across, up = self.x.share(xs), self.y.share(ys)
        known = np.flatnonzero(np.isfinite(up))
        if not known.size:
            return
        path = curve(across, up)
        self._inside.append(tag("path", d=path, class_=f"line {css}", data_name=name))
        if len(known) <= _FEW_POINTS and label:
            self.dots(xs, ys, css)
        if label:
            place = float(np.clip(1 - up[known[-1]], 0, 1))
            self._ends.append((place, css, label, value))

    def dots(self, xs: FloatArray, ys: FloatArray, css: str, radius: float = 3.0) -> None:
        """Draw points as circles that stay round."""
        for x, y in zip(self.x.share(xs), self.y.share(ys), strict=True):
            if math.isfinite(y) and -1e-9 <= y <= 1 + 1e-9:
                place = {"cx": _cent(x), "cy": _cent(1 - y), "r": f"{radius:g}"}
                self._over.append(tag("circle", class_=f"dot {css}", **place))

    def path(self, d: str, css: str) -> None:
        """Draw a path given in the units of the inner SVG."""
        if d:
            self._inside.append(tag("path", d=d, class_=css))

    def across(self, value: float, css: str) -> None:
        """Draw a line at one value of the vertical axis."""
        y = coordinates(1 - self.y.share(np.array([value])))[0]
        self.path(f"M0 {y}H{_UNITS}", f"line {css}")

    def moments(self, rows: Sequence[float], css: str) -> None:
        """Draw thin vertical lines; several at the same position are drawn once."""
        places = sorted(set(coordinates(np.round(self.x.share(np.array(rows, dtype=float)), 3))))
        self.path("".join(f"M{place} 0V{_UNITS}" for place in places), css)

    def rug(self, rows: Sequence[float], css: str) -> None:
        """Draw short marks above the figure, for rows too many for `moments`."""
        places = sorted(set(coordinates(np.round(self.x.share(np.array(rows, dtype=float)), 3))))
        path = tag("path", d="".join(f"M{place} 0v1" for place in places), class_=css)
        box = {"viewBox": f"0 0 {_UNITS} 1", "preserveAspectRatio": "none"}
        self._over.append(tag("svg", path, **box, x=0, y=-9, width="100%", height=7))

    def flags(self, rows: Sequence[float], css: str) -> None:
        """Draw small triangles above the figure, at the top of the lines of `moments`."""
        shares = np.round(self.x.share(np.array(rows, dtype=float)), 3)
        for share in sorted(set(shares.tolist())):
            self._over.append(tag("text", "▾", x=_cent(share), y=0, dy=-2, class_=f"flag {css}"))

    def bars(self, edges: FloatArray, heights: FloatArray, css: str, base: float = 0.0) -> None:
        """Draw bars between edges, from a base to the heights."""
        lefts, rights = self.x.share(edges[:-1]), self.x.share(edges[1:])
        gap = 0.12 * (rights - lefts)
        down = 1 - self.y.share(heights)
        foot = float(1 - self.y.share(np.array([base]))[0])
        parts = [
            f"M{x0} {_UNITS * foot:g}V{top}H{x1}V{_UNITS * foot:g}z"
            for x0, x1, top, height in zip(
                coordinates(lefts + gap),
                coordinates(rights - gap),
                coordinates(down),
                heights,
                strict=True,
            )
            if math.isfinite(height) and height != base
        ]
        self.path("".join(parts), f"bar {css}")

    def cells(self, edges: FloatArray, table: FloatArray, names: Sequence[str], css: str) -> None:
        """Draw a heat map that fills the figure.

        Parameters
        ----------
        edges : ndarray of shape (n_columns + 1,)
            Where its columns begin and end.
        table : ndarray of shape (n_rows, n_columns)
            Values from 0 to 1, the first row at the bottom; NaN leaves a cell empty.
        names : sequence of str
            Names of the rows in the read-out at the pointer.
        css : str
            Class that gives the colour; the opacity is the value.
        """
        columns = np.round(_UNITS * self.x.share(edges), 1)
        tall = _UNITS / len(table)
        shades: dict[int, list[str]] = {}
        for i, values in enumerate(table):
            top = _UNITS - (i + 1) * tall
            for level, first, last in _runs_of_levels(values):
                left, width = columns[first], columns[last + 1] - columns[first]
                box = f"M{left:g} {top:.5g}h{width:.5g}v{tall:.5g}h-{width:.5g}z"
                shades.setdefault(level, []).append(box)
        paths = [tag("path", d="".join(shades[k]), class_=f"h{k}") for k in sorted(shades)]
        self._inside.append(tag("g", *paths, class_=f"cells {css}"))
        for i, (name, values) in enumerate(zip(names, table, strict=True)):
            self._inside.append(tag("g", data_name=name, data_row=i, data_cells=packed(values)))
        self._columns = " ".join(f"{column:g}" for column in columns)

    def texts(self, xs: FloatArray, ys: FloatArray, texts: Sequence[str], css: str) -> None:
        """Write short texts, each with its middle at a point."""
        for x, y, text in zip(self.x.share(xs), self.y.share(ys), texts, strict=True):
            self._over.append(
                tag("text", text, x=_cent(x), y=_cent(1 - y), class_=css, dy="0.35em")
            )

    def render(self, caption: Markup | str | None = None) -> Markup:
        """The figure as HTML.

        Parameters
        ----------
        caption : str, optional
            Text under it.
        """
        inner = tag(
            "svg",
            *self._inside,
            viewBox=f"0 0 {_UNITS} {_UNITS}",
            preserveAspectRatio="none",
            width="100%",
            height="100%",
            class_="inner",
            aria_hidden="true",
        )
        chart = tag(
            "svg",
            tag("title", self.title),
            tag("desc", self.description),
            *self._grid(),
            inner,
            *self._over,
            *self._end_labels(),
            class_="chart",
            role="img",
            width="100%",
            height=self.height,
            data_x=f"{self.x.lo:.10g} {self.x.hi:.10g} {self.x.unit}",
            data_y=f"{self.y.lo:.10g} {self.y.hi:.10g} {self.y.unit}",
            data_time="yes" if self.time else None,
            data_columns=self._columns,
        )
        return tag(
            "figure",
            tag("h3", self.title),
            tag("div", chart, class_=f"plot {self.css}".strip()),
            tag("figcaption", caption) if caption else None,
        )

    def _grid(self) -> Iterable[Markup]:
        for value, label in self.y.ticks:
            y = _cent(1 - float(self.y.share(np.array([value]))[0]))
            yield tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid")
            yield tag("text", *_lines(label), x=-8, y=y, dy="0.35em", class_="ytick")
        for value, label in self.x.ticks:
            x = _cent(float(self.x.share(np.array([value]))[0]))
            yield tag("line", x1=x, x2=x, y1=self.height, y2=self.height + 4, class_="tick")
            yield tag("text", label, x=x, y=self.height, dy=17, class_="xtick")
        yield tag("line", x1="0", x2="100%", y1=self.height, y2=self.height, class_="axis")
        if self.time and not self.x.dated:
            yield tag("text", "rows", x="100%", y=self.height, dx=18, dy=17, class_="unit")

    def _end_labels(self) -> Iterable[Markup]:
        places = spread([self.height * place for place, *_ in self._ends], 4, self.height - 2)
        for place, (_, css, label, value) in zip(places, self._ends, strict=True):
            number = tag("tspan", f" {value}", class_="value") if value else None
            yield tag(
                "text",
                label,
                number,
                x="100%",
                y=f"{place:.1f}",
                dx=8,
                dy="0.35em",
                class_=f"end {css}",
            )


def _lines(label: str) -> list[object]:
    """A label in one or two lines."""
    first, _, second = label.partition("\n")
    if not second:
        return [first]
    return [tag("tspan", first, x=-8, dy="-0.2em"), tag("tspan", second, x=-8, dy="1.05em")]


def _runs_of_levels(values: FloatArray) -> Iterable[tuple[int, int, int]]:
    """Stretches of equal shade: the shade, the first and the last index; NaN has no shade.

    Examples
    --------
    >>> list(_runs_of_levels(np.array([0.0, 0.01, np.nan, 1.0])))
    [(0, 0, 1), (12, 3, 3)]
    """
    levels = np.where(np.isnan(values), -1, np.rint(LEVELS * np.clip(np.nan_to_num(values), 0, 1)))
    starts = np.flatnonzero(np.concatenate([[True], levels[1:] != levels[:-1]]))
    ends = np.append(starts[1:], len(levels)) - 1
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if levels[start] >= 0:
            yield int(levels[start]), start, end


def packed(values: FloatArray) -> str:
    """Shares as two digits of base 36 each, in thousandths, for the script; NaN is two dots.

    Examples
    --------
    >>> packed(np.array([0.0, 1.0, np.nan, 0.5]))
    '00rs..dw'
    """
    parts = []
    for value in values.tolist():
        if math.isnan(value):
            parts.append("..")
        else:
            high, low = divmod(round(1000 * min(max(value, 0.0), 1.0)), 36)
            parts.append(_DIGITS[high] + _DIGITS[low])
    return "".join(parts)


def scale(low: str, high: str, css: str) -> Markup:
    """Key of a heat map: its shades from low to high."""
    shades = [tag("i", class_=f"h{level}") for level in range(0, LEVELS + 1, 2)]
    return tag(
        "span",
        low,
        tag("span", *shades, class_=f"shades {css}", aria_hidden="true"),
        high,
        class_="scale",
    )
