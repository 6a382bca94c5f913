"""Arrays as a stream: masked, sparse and other arrays are refused, labels stay unchanged."""

import datetime

import numpy as np
import pytest

from kalstream import KalmanClassifier
from kalstream.errors import InvalidInput
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream

ROWS = np.arange(8.0).reshape(4, 2)
LABELS = ["a", "b", "a", "b"]
MASK = [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": np.ma.masked_array(ROWS, ROWS > 5.0)}, "rows is a masked array; fill it"),
        ({"rows": [np.ma.masked_array([1.0, 2.0], [0, 1])] * 4}, "rows holds a masked array"),
        ({"targets": np.ma.masked_array(LABELS, MASK)}, "targets is a masked array; fill it"),
        ({"targets": ["a", np.ma.masked, "a", "b"]}, "targets holds a masked array or value"),
        (
            {"targets": np.ma.masked_array(ROWS[:, 0], MASK), "task": "regression"},
            "targets is a masked array; fill it with NaN",
        ),
        ({"times": np.ma.masked_array(ROWS[:, 0], MASK)}, "time is a masked array"),
        ({"rows": [["a", "b"]] * 4}, "rows must be real numbers"),
        ({"rows": [[1.0], [1.0, 2.0]] * 2}, "rows must be an array of numbers"),
        ({"rows": ROWS[:, 0]}, r"rows must be \(n, d\)"),
        ({"targets": None}, "target targets is None"),
        ({"targets": "abcd"}, "targets must be one label per row"),
        ({"targets": np.ones((4, 2))}, r"targets must be one label per row.* \(4, 2\)"),
        ({"targets": LABELS[:3]}, r"targets must be \(4,\)"),
        ({"targets": ["x"] * 4, "task": "regression"}, "targets must be real numbers"),
        ({"times": [1.0, 2.0]}, r"time must be a scalar or have shape \(4,\)"),
        ({"times": ["now"] * 4}, "time must be real numbers"),
    ],
)
def test_bad_arrays_are_refused_by_name(change, says):
    with pytest.raises(InvalidInput, match=says):
        ArrayStream(**{"rows": ROWS, "targets": LABELS} | change)


def test_labels_stay_unchanged():
    names = [("a", 1), "b", 3, ("a", 1)]
    stream = ArrayStream(ROWS, names)
    assert next(stream.batches()).targets.tolist() == names
    numbers = ArrayStream(ROWS, [np.int64(1), np.str_("b"), None, 2]).targets.tolist()
    assert list(map(type, numbers)) == [int, str, type(None), int]
    result = prequential(KalmanClassifier(features="raw"), stream)
    assert result is not None


def test_dates_of_any_unit_become_seconds():
    days = [datetime.date(2026, 1, k) for k in (1, 2, 3, 4)]
    expected = [float(np.datetime64(day, "s").astype(int)) for day in days]
    for times in (days, np.array(days, "M8[D]"), np.array(days, "M8[ns]")):
        assert ArrayStream(ROWS, LABELS, times).times.tolist() == expected
