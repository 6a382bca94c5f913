"""Estimators that are handed tables: every library gives the same model as `kalstream run`."""

import datetime
import functools
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from kalstream import KalmanClassifier, KalmanRegressor, TableEncoder
from kalstream.errors import CheckpointError, InvalidInput, InvalidType, TableWarning
from kalstream.runs import Options, Run, open_run

N = 120
DAYS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=7 * k) for k in range(N)]
TABLE = {
    "size": [None if k % 11 == 0 else k % 7 / 7 for k in range(N)],
    "color": [None if k % 13 == 5 else ("red", "blue", "green")[k * k % 3] for k in range(N)],
    "open": [k % 3 == 0 for k in range(N)],
    "when": DAYS,
}
LABELS = [("yes", "no")[k % 3 == 0 or k % 7 > 4] for k in range(N)]
Frame = Callable[[dict[str, Any]], Any]
FRAMES: dict[str, Frame] = {
    "pandas": pd.DataFrame,
    "nullable": lambda table: pd.DataFrame(table).convert_dtypes(),
    "categories": lambda table: pd.DataFrame(table).astype({"color": "category"}),
    "polars": pl.DataFrame,
    "lazy": pl.LazyFrame,
    "arrow": pa.table,
    "batch": pa.record_batch,
    "dicts": lambda t: [dict(zip(t, row, strict=True)) for row in zip(*t.values(), strict=True)],
}
with_frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
small = functools.partial(KalmanClassifier, features="scaled", forgetting=0.99)


def cut(part: slice) -> dict[str, Any]:
    return {name: values[part] for name, values in TABLE.items()}


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Probabilities of the rows by the model that the command line makes of them."""
    folder: Path = tmp_path_factory.mktemp("tables")
    pd.DataFrame({**TABLE, "y": LABELS}).to_csv(folder / "table.csv", index=False)
    options = Options(source=str(folder / "table.csv"), target="y", features="scaled")
    Run(f"{folder}/run", options).go()
    return open_run(f"{folder}/run").predict_proba(pd.DataFrame(TABLE))


@with_frames
def test_every_library_gives_the_model_of_the_command_line(
    frame: Frame, of_a_run: np.ndarray
) -> None:
    model = KalmanClassifier(features="scaled")
    model.predict_then_learn(frame(TABLE), LABELS)
    np.testing.assert_allclose(model.predict_proba(frame(TABLE)), of_a_run, rtol=0, atol=1e-12)


@with_frames
def test_learned_in_chunks_and_predicted_by_name(frame: Frame, tmp_path: Path) -> None:
    encoder = TableEncoder().fit(pd.DataFrame(cut(slice(0, 100))))
    model, other = small(), small()
    for part in (slice(0, 100), slice(100, 101), slice(101, N)):
        model.partial_fit(frame(cut(part)), LABELS[part])
        other.partial_fit(encoder.advance(pd.DataFrame(cut(part))), LABELS[part])
    expected = other.predict_proba(encoder.transform(pd.DataFrame(TABLE)))
    shuffled = {name: TABLE[name] for name in sorted(TABLE)} | {"more": [0] * N}
    np.testing.assert_array_equal(model.predict_proba(frame(shuffled)), expected)
    # an array holds the numbers that the table becomes
    np.testing.assert_array_equal(model.predict_proba(encoder.transform(frame(TABLE))), expected)
    assert model.feature_names_in_.tolist() == list(TABLE)
    assert model.n_features_in_ == len(TABLE)
    model.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(frame(TABLE)), expected)
    later = frame({**cut(slice(0, 1)), "color": ["violet"]})
    assert again.partial_fit(later, ["yes"]).predict_proba(later).tolist() != (
        model.predict_proba(later).tolist()
    )


@with_frames
def test_regression(frame: Frame) -> None:
    y = np.arange(N) % 7.0
    model = KalmanRegressor(features="scaled").partial_fit(frame(TABLE), y)
    other = KalmanRegressor(features="scaled").partial_fit(
        TableEncoder().fit_transform(frame(TABLE)), y
    )
    assert (
        model.predict(frame(TABLE)).tolist()
        == other.predict(TableEncoder().fit_transform(frame(TABLE))).tolist()
    )


def test_labels_of_the_same_library() -> None:
    expected = (
        small().partial_fit(pd.DataFrame(TABLE), LABELS).predict(pd.DataFrame(TABLE)).tolist()
    )
    for frame, column in (
        (pl.DataFrame, pl.Series),
        (pa.table, pa.array),
        (pd.DataFrame, pd.Series),
    ):
        model = small().partial_fit(frame(TABLE), column(LABELS))
        assert model.predict(frame(TABLE)).tolist() == expected


def test_late_labels() -> None:
    model = small()
    for k in range(40):
        asked = model.ask([{name: values[k] for name, values in TABLE.items()}], ids=[k])
        if k >= 5:
            model.tell([k - 5], [LABELS[k - 5]])
    assert asked.shape == (1, 2)
    assert model.waiting_.waiting == 5
    before = model._model
    model.ask([{**dict.fromkeys(TABLE), "color": "violet"}], keep=False)
    assert model._model is before


def test_a_new_category_is_learned_once_it_is_learned() -> None:
    model = small().partial_fit(pd.DataFrame(TABLE), LABELS)
    new = [{**dict.fromkeys(TABLE), "color": "violet"}]
    slots = model._model.fitted["encoding"].columns[1].slots
    model.predict(new)
    assert model._model.fitted["encoding"].columns[1].slots == slots
    model.partial_fit(new, ["yes"])
    assert list(model._model.fitted["encoding"].columns[1].slots) == [*slots, "violet"]


def good(value: Any) -> pd.DataFrame:
    return pd.DataFrame({"n": [1.0, 2.0, 3.0], "odd": value})


READ = {
    "nullable numbers": pd.array([1, None, 2], dtype="Int64"),
    "nullable booleans": pd.array([True, None, False], dtype="boolean"),
    "text": ["a", None, "b"],
    "nullable text": pd.array(["a", pd.NA, "b"], dtype="string"),
    "text of arrow": pd.array(["a", None, "b"], dtype=pd.ArrowDtype(pa.string())),
    "categories": pd.Categorical(["a", None, "b"]),
    "codes": pd.Categorical([3, 1, 3]),
    "dates": pd.to_datetime(["2026-01-01", None, "2026-03-01"]),
    "zones": pd.to_datetime(["2026-01-01"] * 3).tz_localize("Europe/Berlin"),
    "days": [datetime.date(2026, 1, 1)] * 3,
    "mixed": pd.Series(["a", 1, None], dtype=object),
    "numbers as objects": pd.Series([1, None, 2.5], dtype=object),
    "nothing": [None] * 3,
}
REFUSED = {
    "lists": [[1], [2], [1]],
    "records": [{"q": 1}] * 3,
    "durations": pd.to_timedelta([1, 2, 3]),
    "complex": [1j] * 3,
    "bytes": [b"a"] * 3,
    "masked": pd.Series([np.ma.masked, "a", 2], dtype=object),
}


@pytest.mark.parametrize("value", READ.values(), ids=READ)
def test_columns_that_are_read(value: Any) -> None:
    model = small().partial_fit(good(value), [0, 1, 0])
    assert model.n_features_in_ == 2
    assert np.isfinite(model.predict_proba(good(value)[["odd", "n"]])).all()


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_columns_that_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match="column 'odd'"):
        small().partial_fit(good(value), [0, 1, 0])
    model = small().partial_fit(good(["a", "b", "c"]), [0, 1, 0])
    before = model._model
    with pytest.raises(InvalidInput, match="row 0, column 'n' of X: 'x' is not a number"):
        model.partial_fit(good(value).assign(n="x", odd="a"), [0, 1, 0])
    with pytest.raises(InvalidInput, match="no column 'odd'"):
        model.predict(good(value)[["n"]])
    assert model._model is before


def test_tables_of_numbers_are_as_before() -> None:
    """They have their names, and no encoding; another order is found by name."""
    rows = np.random.default_rng(0).standard_normal((N, 3))
    expected = small().partial_fit(rows, LABELS).predict_proba(rows)
    for frame in (
        pd.DataFrame(rows, columns=list("abc")),
        pl.DataFrame(rows, schema=list("abc")),
        pa.table(dict(zip("abc", rows.T, strict=True))),
    ):
        model = small().partial_fit(frame, LABELS)
        assert set(model._model.fitted) == {"n_features_in_", "feature_names_in_"}
        np.testing.assert_array_equal(model.predict_proba(frame), expected)
        turned = frame.select(["c", "a", "b"]) if hasattr(frame, "select") else frame[list("cab")]
        np.testing.assert_array_equal(model.predict_proba(turned), expected)
        dicts = pd.DataFrame(rows, columns=list("abc")).to_dict("records")
        np.testing.assert_array_equal(model.predict_proba(dicts), expected)


def test_columns_can_be_forgotten_and_not_added() -> None:
    frame = pd.DataFrame(TABLE)
    model = small().partial_fit(frame, LABELS)
    with pytest.raises(InvalidInput, match="call drop_column_names"):
        model.add_columns(1)
    rows = TableEncoder().fit_transform(frame)
    expected = model.predict_proba(frame)
    model.drop_column_names()
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == rows.shape[1]
    np.testing.assert_array_equal(model.predict_proba(rows), expected)


def test_a_file_whose_encoding_is_not_of_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small().partial_fit(pd.DataFrame(TABLE), LABELS)
    model._model.fitted["encoding"] = TableEncoder().fit([{"a": 1}]).encoding_
    with pytest.raises(CheckpointError, match="encoding must be"):
        model.save(tmp_path / "model.safetensors")


def test_sparse_rows_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"use X.toarray\(\).*HashingVectorizer"):
        small().partial_fit(scipy.sparse.csr_array(np.eye(3)), [0, 1, 0])


BROKEN = [str(k / 7) if k % 5 else "broken" for k in range(N)]
# A column, and the warning of it.
SUSPICIOUS = {
    "uuid": ([str(uuid.UUID(int=k)) for k in range(N)], "column 'odd' looks like ids: a new value"),
    "counter": (list(range(N)), "column 'odd' looks like ids: a new value or a number that grows"),
    "broken": (BROKEN, "'odd' is taken for text: 96 of 120 values are numbers, but not 'broken' "),
    "mixed": ([float(x) if x[0] != "b" else x for x in BROKEN], "96 of 120 values are numbers"),
}


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_a_column_that_is_probably_a_mistake_is_warned_of_once_per_fit(name: str) -> None:
    column, message = SUSPICIOUS[name]
    frame = pd.DataFrame({"odd": column, "color": ["red", "blue"] * (N // 2)})
    model = KalmanClassifier(features="raw", random_state=0)
    for learn in (model.fit, KalmanClassifier(features="raw").partial_fit):
        with pytest.warns(TableWarning, match=message) as caught:
            learn(frame, LABELS)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(frame, LABELS)
        model.predict(frame)
        # As an error it leaves the model as it was.
        fresh = KalmanClassifier(features="raw")
        with pytest.raises(TableWarning):
            fresh.partial_fit(frame, LABELS)
    assert not hasattr(fresh, "classes_")


def test_what_is_no_table_is_named_with_the_remedy() -> None:
    frame = pd.DataFrame({"a": [0.5, 1.5] * 30, "c": ["u", "v"] * 30})
    model = KalmanClassifier(features="raw").fit(frame, [0, 1] * 30)
    with pytest.raises(InvalidType, match=r"X is a dict; give a list of dicts.*\[X\] for one row"):
        model.predict_proba({"a": 1.0, "c": "u"})
    for rows in (frame.iloc[0], frame.to_numpy()):
        columns = r"is of type (Series|ndarray), but .* a table with the columns \['a', 'c'\]; give"
        with pytest.raises(InvalidInput, match=columns):
            model.predict_proba(rows)
    with pytest.raises(InvalidInput, match=r"give a table, such as pd.DataFrame\(X\)"):
        KalmanClassifier().fit(frame.to_numpy(), [0, 1] * 30)
    with pytest.raises(InvalidType, match="X is a dict"):
        KalmanClassifier().fit({"a": 1.0}, [0])
    assert model.predict_proba([{"a": 1.0, "c": "u"}]).shape == (1, 2)
