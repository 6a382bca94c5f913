"""Numbers in words, axes and downsampling."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalstream.evaluate import METRICS
from kalstream.report import format as fmt
from kalstream.report import read_run
from kalstream.report.axes import covering, linear, percent_axis
from kalstream.report.markup import escape, tag
from kalstream.report.svg import coordinates, curve, packed, spread
from kalstream.report.timeline import Timeline, trend
from report import synthetic

NUMBERS = st.floats(-1e12, 1e12) | st.just(math.nan)


@given(NUMBERS)
def test_no_number_is_written_as_nan(value: float) -> None:
    shown = [
        fmt.fixed(value),
        fmt.significant(value),
        fmt.percent(value),
        fmt.count(value),
        fmt.half_life(abs(value)),
        fmt.seconds(abs(value)),
    ]
    assert not any("nan" in text.lower() for text in shown)
    assert all(shown)


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.integers(2, 8), st.booleans())
def test_axes_hold_their_range_and_mark_round_numbers(
    lo: float, span: float, steps: int, snug: bool
) -> None:
    axis = linear(lo, lo + span, steps=steps, snug=snug)
    slack = 1e-8 * span + 1e-9 * abs(lo)
    assert axis.lo <= lo + slack
    assert axis.hi >= lo + span - slack
    assert axis.hi > axis.lo
    assert len(axis.ticks) <= 3 * steps + 3
    if not snug:
        assert len(axis.ticks) >= 2


@given(st.floats(0, 1), st.floats(0, 1))
def test_percent_axes_stay_within_0_and_100(a: float, b: float) -> None:
    axis = percent_axis(min(a, b), max(a, b))
    assert 0 <= axis.lo < axis.hi <= 1
    assert axis.lo <= min(a, b) + 1e-9
    assert axis.hi >= max(a, b) - 1e-9


@given(st.lists(st.floats(0, 200), max_size=8))
def test_labels_keep_their_distance_and_order(places: list[float]) -> None:
    moved = spread(places, 0, 200, gap=12)
    assert np.all(np.diff(np.sort(moved)) >= 12 - 1e-9)
    assert [moved[i] for i in np.argsort(places, kind="stable")] == sorted(moved)
    assert all(-1e-9 <= place <= 200 + 1e-9 for place in moved)


def test_a_wild_value_does_not_flatten_a_curve() -> None:
    values = np.concatenate([[50.0], np.linspace(0.3, 0.4, 200)])
    lo, hi, clipped = covering([values])
    assert hi < 1
    assert clipped
    assert covering([values], [60.0])[1] == 60.0
    assert covering([np.array([math.nan])]) == (0.0, 1.0, False)
    assert covering([np.array([1.0, 3.0])]) == (1.0, 3.0, False)
    assert lo == pytest.approx(0.3)


def test_curves_break_where_a_value_is_missing() -> None:
    nan = math.nan
    path = curve(np.array([0, 0.25, 0.5, 0.75, 1.0]), np.array([0, 1, nan, 0.5, 1.0]))
    assert path == "M0 1000L250 0M750 500L1000 0"
    assert coordinates(np.array([0.33333])) == ["333.3"]
    assert curve(np.array([nan]), np.array([nan])) == ""


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_packed_shares_can_be_read_back(values: list[float]) -> None:
    text = packed(np.array(values))
    back = [int(text[i : i + 2], 36) / 1000 for i in range(0, len(text), 2)]
    np.testing.assert_allclose(back, values, atol=0.00051)


@pytest.mark.parametrize("limit", [1, 7, 63, 1000])
def test_downsampling_keeps_means_and_totals(tmp_path: Path, limit: int) -> None:
    run = read_run(synthetic.classification(tmp_path, rows=6450, window=100, missing=3))
    time = Timeline(run, limit)
    assert len(time) <= limit
    assert time.weights.sum() == run.n
    assert time.left[0] == 0
    assert time.right[-1] == run.rows
    np.testing.assert_array_equal(time.left[1:], time.right[:-1])
    mean = np.average(time.mean(run.column("window.accuracy")), weights=time.weights)
    assert mean == pytest.approx(run.total("accuracy"))
    roots = time.average(METRICS["rmse"], run.column("window.accuracy"))
    squares = np.average(roots**2, weights=time.weights)
    n = [window.n for window in run.windows]
    assert squares == pytest.approx(np.average(run.column("window.accuracy") ** 2, weights=n))
    assert time.last(run.column("total.accuracy"))[-1] == run.total("accuracy")
    assert len(time.group_of_window()) == len(run.windows)


@pytest.mark.parametrize("size", [1, 60, 61, 63, 600])
def test_smoothing_leaves_a_constant_alone(size: int) -> None:
    values = np.full(size, 0.7)
    values[size // 2] = math.nan if size > 60 else 0.7
    smooth, width = trend(values, np.ones(size))
    np.testing.assert_allclose(smooth, 0.7)
    assert width % 2 == 1
    assert (width > 1) == (size > 60)


def test_markup_escapes_everything_but_itself() -> None:
    inner = tag("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert tag("p", inner, None, 3, class_='"x') == '<p class="&quot;x"><b>&lt;i&gt;</b>3</p>'
    assert escape("a\x00b\ud800c\u202ed") == "a\ufffdb\ufffdc\ufffdd"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
