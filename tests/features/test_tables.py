"""Tables of any library as numbers: those of a file, or an error that names the column."""

import datetime
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from kalstream import TableEncoder
from kalstream.errors import InvalidInput, InvalidType
from kalstream.features.rows import is_table
from kalstream.streams import TableStream

N = 120
DAYS = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=7 * k) for k in range(N)]
TABLE = {
    "size": [None if k % 11 == 0 else k / 7 for k in range(N)],
    "color": [None if k % 13 == 5 else ("red", "blue", "green")[k * k % 3] for k in range(N)],
    "open": [k % 3 == 0 for k in range(N)],
    "when": [None if k % 17 == 3 else DAYS[k] for k in range(N)],
    "count": [k % 5 for k in range(N)],
    "day": [each.date() for each in DAYS],
}


class OnlyArrow:
    """A table of a library that nobody knows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def relation(table: dict[str, object]) -> object:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    return duckdb.from_arrow(pa.table(table))


FRAMES = {
    "pandas": pd.DataFrame,
    "nullable": lambda table: pd.DataFrame(table).convert_dtypes(),
    "objects": lambda table: pd.DataFrame(table, dtype=object),
    "categories": lambda table: pd.DataFrame(table).astype({"color": "category"}),
    "polars": pl.DataFrame,
    "lazy": pl.LazyFrame,
    "polars categories": lambda t: pl.DataFrame(t).with_columns(
        pl.col("color").cast(pl.Categorical)
    ),
    "arrow": pa.table,
    "batch": pa.record_batch,
    "stream": lambda table: OnlyArrow(pa.table(table)),
    "DuckDB": relation,
    "dicts": lambda t: [dict(zip(t, row, strict=True)) for row in zip(*t.values(), strict=True)],
}
with_frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    pd.DataFrame({**TABLE, "y": ["a", "b"] * (N // 2)}).to_csv(path, index=False)
    return path


@with_frames
def test_every_library_gives_what_the_file_gives(frame: object, file: Path) -> None:
    stream = TableStream(file, "y")
    (batch,) = stream.batches()
    encoder = TableEncoder()
    rows = encoder.fit_transform(frame(TABLE))
    assert tuple(encoder.get_feature_names_out()) == stream.columns
    assert encoder.encoding_.columns == stream.encoder.features
    np.testing.assert_array_equal(rows, batch.rows)
    shuffled = {name: TABLE[name] for name in sorted(TABLE)} | {"more": list(range(N))}
    np.testing.assert_array_equal(encoder.transform(frame(shuffled)), rows)


@with_frames
def test_rows_one_by_one_give_the_same_categories(frame: object) -> None:
    whole = TableEncoder(n_slots=5).fit(frame(TABLE))
    online = TableEncoder(n_slots=5)
    # the first two rows say what the columns hold
    parts = [slice(0, 2), *(slice(k, k + 1) for k in range(2, 30)), slice(30, N)]
    made = [online.advance(frame({n: v[part] for n, v in TABLE.items()})) for part in parts]
    assert online.encoding_ == whole.encoding_
    np.testing.assert_array_equal(np.vstack(made), whole.transform(frame(TABLE)))


ODD = {
    "durations": pd.to_timedelta([1, 2, 3]),
    "lists": [[1], [2], [1]],
    "records": [{"q": 1}] * 3,
    "complex": [1j] * 3,
    "intervals": pd.interval_range(0, 3),
    "bytes": [b"a"] * 3,
    "masked": pd.Series([np.ma.masked, 1, 2], dtype=object),
    "infinity": [np.inf, 1.0, 2.0],
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_a_column_that_cannot_be_learned_is_named(values: object) -> None:
    frame = pd.DataFrame({"good": [1.0, 2.0, 3.0], "odd": values})
    with pytest.raises(InvalidInput, match="column 'odd'"):
        TableEncoder().fit_transform(frame)
    assert TableEncoder(ignore=["odd"]).fit_transform(frame).shape == (3, 1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.array([1, None, 2], dtype="Int64"), "number"),
        (pd.array([True, None, False], dtype="boolean"), "boolean"),
        (pd.Categorical([1, 2, 1]), "category"),
        (pd.arrays.SparseArray([0.0, 0.0, 1.0]), "number"),
        (pd.to_datetime(["2026-01-01"] * 3).tz_localize("Europe/Berlin"), "date"),
        (pd.period_range("2020", periods=3), "date"),
        ([datetime.time(3), None, datetime.time(4)], "time of day"),
        (pd.Series(["a", pd.NA, 3], dtype=object), "category"),
        (pd.Series([1, None, 2.5], dtype=object), "number"),
        (pd.Series(["1", 2, 3.0], dtype=object), "number"),
        ([None] * 3, "number"),
        (["1,5", "2,25", "-3,5"], "decimal comma"),
    ],
)
def test_kinds_of_odd_columns(values: object, kind: str) -> None:
    encoder = TableEncoder().fit(pd.DataFrame({"a": values}))
    assert encoder.encoding_.columns[0].kind == kind
    assert encoder.transform(pd.DataFrame({"a": values})).shape[0] == 3


def test_a_zone_is_read() -> None:
    frame = pd.DataFrame({"a": pd.to_datetime(["2026-01-01 01:00"]).tz_localize("Europe/Berlin")})
    assert TableEncoder().fit_transform(frame)[0, :2].tolist() == [0.0, 1.0]  # midnight, UTC


def test_parameters_change_the_columns() -> None:
    rows = [{"code": 7, "note": "none", "amount": "1,234"}, {"code": 9, "note": "b", "amount": "5"}]
    names = TableEncoder(categorical=["code"], n_slots=2).fit(rows).get_feature_names_out()
    assert names.tolist()[:3] == ["code[0]", "code[1]", "note[0]"]
    missing = TableEncoder(missing=["none"], ignore=["code", "amount"]).fit(rows)
    assert list(missing.encoding_.columns[0].slots) == [None, "b"]
    comma = TableEncoder(decimal=",", ignore=["code", "note"]).fit_transform(rows)
    assert comma.ravel().tolist() == [1.234, 5.0]
    with pytest.raises(InvalidInput, match="decimal must be"):
        TableEncoder(decimal=";").fit(rows)
    with pytest.raises(InvalidInput, match="n_slots must be from 1 to"):
        TableEncoder(n_slots=0).fit(rows)
    with pytest.raises(InvalidInput, match=r"no column 'cod'. Did you mean 'code'\?"):
        TableEncoder(categorical=["cod"]).fit(rows)


def test_an_error_changes_nothing() -> None:
    encoder = TableEncoder().fit([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    before = encoder.encoding_
    with pytest.raises(InvalidInput, match="row 1, column 'a' of X: 'z' is not a number"):
        encoder.advance([{"a": "1", "b": "new"}, {"a": "z", "b": "x"}])
    with pytest.raises(InvalidInput, match="no column 'b'"):
        encoder.partial_fit([{"a": 1}])
    assert encoder.encoding_ is before


def test_what_is_no_table_is_refused() -> None:
    for X in ([{"a": 1}, 3], 3, pl.Series([1]), OnlyArrow(pa.chunked_array([[1]]))):
        with pytest.raises((InvalidInput, InvalidType)):
            TableEncoder().fit(X)
    for X in (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), [{1: 1, "1": 2}]):
        with pytest.raises(InvalidInput, match=r"2 (columns|times)"):
            TableEncoder().fit(X)
    for X in (pd.DataFrame(), pd.DataFrame({"a": []})):
        with pytest.raises(InvalidInput, match="there are no"):
            TableEncoder().fit(X)
    for X in (np.eye(2), [[1]], [1], "ab", pl.Series([1]), pd.Series([1]), None):
        assert not is_table(X)


def test_it_is_a_transformer_of_sklearn() -> None:
    encoder = TableEncoder(n_slots=2)
    frame = pd.DataFrame({"a": ["x", "y"], "b": [1, 2]}, index=[5, 6])
    made = encoder.set_output(transform="pandas").fit_transform(frame)
    assert made.columns.tolist() == ["a[0]", "a[1]", "b"]
    assert made.index.tolist() == [5, 6]
    made = encoder.set_output(transform="polars").transform(pl.DataFrame(frame))
    assert made.columns == ["a[0]", "a[1]", "b"]
    assert clone(encoder).get_params() == encoder.get_params()
    again = pickle.loads(pickle.dumps(encoder))
    assert again.encoding_ == encoder.encoding_
    assert (encoder.n_features_in_, encoder.feature_names_in_.tolist()) == (2, ["a", "b"])
    assert TableEncoder().fit_transform(np.eye(2)).tolist() == np.eye(2).tolist()
    assert not hasattr(clone(encoder), "n_features_in_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_contract_of_sklearn() -> None:
    results = check_estimator(TableEncoder(), on_fail=None)
    failed = [each["check_name"] for each in results if each["status"] == "failed"]
    assert not failed
    assert len(results) > 30
