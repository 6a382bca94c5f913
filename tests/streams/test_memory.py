"""Tables in memory as streams, and rows and targets without one."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kalstream import KalmanClassifier, KalmanRegressor, streams
from kalstream.errors import InvalidInput, InvalidType
from kalstream.evaluate import prequential
from kalstream.streams import ArrayStream, TableStream

TABLE = {
    "size": [k % 7 / 7 for k in range(60)],
    "color": [("red", "blue", "green")[k % 3] for k in range(60)],
    "y": [("yes", "no")[k % 3 > 0] for k in range(60)],
}


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("opened", [TableStream, streams.open])
def test_a_frame_is_a_stream_as_its_file_is(frame, opened, tmp_path):
    pd.DataFrame(TABLE).to_csv(tmp_path / "table.csv", index=False)
    (expected,) = TableStream(tmp_path / "table.csv", "y").batches()
    stream = opened(frame(TABLE), target="y")
    assert (stream.name, stream.n_rows, stream.repeatable) == ("memory", 60, True)
    for _ in range(2):
        (batch,) = stream.batches()
        np.testing.assert_array_equal(batch.rows, expected.rows)
        assert batch.targets.tolist() == expected.targets.tolist()
    (rest,) = stream.batches(50)
    assert len(rest) == 10
    assert stream.describe()["source"] == "memory"
    with pytest.raises(InvalidInput, match="target='z': there is no such column"):
        opened(frame(TABLE), target="z")


def test_what_is_no_stream_is_refused_with_the_remedy():
    for source in ((row for row in [{"a": 1}]), 3, np.eye(2), None):
        for opened in (TableStream, streams.open):
            with pytest.raises(InvalidType, match=r"source must be a path.*collect a generator"):
                opened(source, target="y")
    for data in (pd.DataFrame(TABLE), (row for row in [1]), None, [np.eye(2), [0, 1]]):
        with pytest.raises(InvalidType, match=r"stream must be a Stream or a pair \(X, y\)"):
            prequential(KalmanClassifier(), data)


def test_rows_and_targets_are_a_stream():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    labels, numbers = np.where(X[:, 0] > 0, "a", "b"), X[:, 0] + 1
    for learner, y in ((KalmanClassifier(), labels), (KalmanRegressor(), numbers)):
        task = "regression" if y is numbers else "classification"
        expected = prequential(type(learner)(features="raw"), ArrayStream(X, y, task=task)).total
        assert prequential(type(learner)(features="raw"), (X, y)).total == expected
    table = pd.DataFrame({**TABLE, "target": 1.0}).drop(columns="y")
    result = prequential(KalmanClassifier(features="scaled"), (table, TABLE["y"]))
    named = TableStream(pd.DataFrame({**TABLE, "target": 1.0}), "y")
    assert result.total == prequential(KalmanClassifier(features="scaled"), named).total
