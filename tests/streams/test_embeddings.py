"""Embeddings from .npy, .npz and .safetensors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kalstream.errors import InvalidInput
from kalstream.streams.base import Batch
from kalstream.streams.embeddings import EmbeddingStream

N, D = 61, 5
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(N, D))
LABELS = RNG.integers(0, 12, N)
TIMES = np.arange(N) * 2.0


def whole(stream: EmbeddingStream, start: int = 0) -> Batch:
    batches = list(stream.batches(start))
    times = None if batches[0].times is None else np.concatenate([b.times for b in batches])
    rows = np.concatenate([batch.rows for batch in batches])
    return Batch(start, rows, np.concatenate([batch.targets for batch in batches]), times)


def write(folder: Path, kind: str, dtype: type = np.float32, **more: np.ndarray) -> Path:
    features, path = FEATURES.astype(dtype), folder / f"mine.{kind}"
    if kind == "npy":
        np.save(path, features)
        np.save(folder / "mine-labels.npy", LABELS)
        for name, values in more.items():
            np.save(folder / f"mine.{name}.npy", values)
    else:
        arrays = {"features": features, "labels": LABELS, **more}
        if kind == "npz":
            np.savez(path, **arrays)
        else:
            save_file(arrays, path)
    return path


KINDS = ("npy", "npz", "safetensors")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_every_format_and_type_gives_the_same_stream(
    tmp_path: Path, kind: str, dtype: type
) -> None:
    stream = EmbeddingStream(write(tmp_path, kind, dtype, times=TIMES), batch_size=7)
    got = whole(stream)
    assert got.rows.dtype == np.float64
    np.testing.assert_array_equal(got.rows, FEATURES.astype(dtype).astype(np.float64))
    assert got.targets.tolist() == LABELS.tolist()
    assert got.times.tolist() == TIMES.tolist()
    assert stream.n_rows == N
    assert stream.columns == ("x0", "x1", "x2", "x3", "x4")
    assert stream.classes == sorted(set(LABELS.tolist()))
    assert stream.boundaries == (0,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["as-is", "shuffled", "tasks"])
def test_a_stream_can_start_at_any_row(tmp_path: Path, kind: str, order: str) -> None:
    stream = EmbeddingStream(write(tmp_path, kind), order=order, seed=4, n_tasks=3, batch_size=8)
    rows, targets = whole(stream).rows, whole(stream).targets
    for start in (0, 1, 8, 13, N - 1):
        assert next(stream.batches(start)).start == start
        np.testing.assert_array_equal(whole(stream, start).rows, rows[start:])
        np.testing.assert_array_equal(whole(stream, start).targets, targets[start:])


@pytest.mark.parametrize("kind", KINDS)
def test_orders_are_seeded_and_keep_rows_with_labels(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, np.float64, times=TIMES)
    label_of = {x.tobytes(): y for x, y in zip(FEATURES, LABELS, strict=True)}
    for order in ("shuffled", "tasks"):
        first, again = (EmbeddingStream(path, order=order, seed=1, n_tasks=5) for _ in range(2))
        other = EmbeddingStream(path, order=order, seed=2, n_tasks=5)
        got = whole(first)
        assert got.times is None
        assert [label_of[x.tobytes()] for x in got.rows] == got.targets.tolist()
        assert sorted(map(bytes, got.rows)) == sorted(map(bytes, FEATURES))
        np.testing.assert_array_equal(got.rows, whole(again).rows)
        assert (got.rows != whole(other).rows).any()
        assert first.describe() == again.describe() != other.describe()
        assert json.loads(json.dumps(first.describe())) == first.describe()


def test_tasks_share_no_class(tmp_path: Path) -> None:
    stream = EmbeddingStream(write(tmp_path, "npy"), order="tasks", n_tasks=5)
    groups = [set(g) for g in np.split(whole(stream).targets, stream.boundaries[1:])]
    assert [len(group) for group in groups] == [3, 3, 2, 2, 2]
    assert len(set.union(*groups)) == 12
    with pytest.raises(InvalidInput, match="makes 13 tasks, and there are 12 classes; make 1"):
        EmbeddingStream(tmp_path / "mine.npy", order="tasks", n_tasks=13)


def test_labels_of_another_file_names_and_regression(tmp_path: Path) -> None:
    words = np.array([f"class {label}" for label in LABELS])
    np.save(tmp_path / "words.npy", words)
    for kind in KINDS:
        stream = EmbeddingStream(write(tmp_path, kind), tmp_path / "words.npy")
        assert whole(stream).targets.tolist() == words.tolist()
        assert stream.describe() != EmbeddingStream(write(tmp_path, kind)).describe()
    save_file({"a": FEATURES, "b": TIMES}, tmp_path / "other.safetensors")
    stream = EmbeddingStream(
        tmp_path / "other.safetensors", names=("a", "b", "c"), task="regression"
    )
    assert whole(stream).targets.dtype == np.float64
    assert stream.classes is None


@pytest.mark.parametrize("order", ["as-is", "shuffled"])
def test_a_row_that_is_not_finite_is_named(tmp_path: Path, order: str) -> None:
    features = FEATURES.astype(np.float16)
    features[40, 2] = np.inf
    np.save(tmp_path / "mine.npy", features)
    np.save(tmp_path / "mine-labels.npy", LABELS)
    stream = EmbeddingStream(tmp_path / "mine.npy", order=order, batch_size=7)
    with pytest.raises(InvalidInput, match=r"mine.npy: features of row 40 \(row \d+ of"):
        list(stream.batches())


def test_wrong_files_are_named(tmp_path: Path) -> None:
    def error(name: str, says: str, kind: type[Exception] = InvalidInput) -> None:
        with pytest.raises(kind, match=says):
            EmbeddingStream(tmp_path / name)

    for kind in (*KINDS, "csv"):
        wrong = InvalidInput if kind == "csv" else FileNotFoundError
        error(f"none.{kind}", f"none.{kind}", wrong)
        (tmp_path / f"bad.{kind}").write_bytes(b"nothing of the kind")
        error(f"bad.{kind}", f"bad.{kind}")
    np.save(tmp_path / "alone.npy", FEATURES)
    error("alone.npy", "no labels for .*alone.npy.*alone-labels.npy beside it", FileNotFoundError)
    np.save(tmp_path / "alone-labels.npy", LABELS[1:])
    error("alone.npy", r"alone-labels.npy: labels must be \(61,\).*got \(60,\)")
    np.save(tmp_path / "flat.npy", FEATURES[0])
    error("flat.npy", r"features must be \(n, d\) numbers, got \(5,\) of float64")
    np.savez(tmp_path / "empty.npz", other=FEATURES)
    error("empty.npz", "features must be .* got none")
    save_file({"features": np.zeros((0, 3)), "labels": LABELS}, tmp_path / "empty.safetensors")
    error("empty.safetensors", r"features is empty, \(0, 3\)")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None], object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "objects.npz", features=objects)
    for kind in ("npy", "npz"):
        with pytest.raises(InvalidInput, match=f"objects.{kind} must hold (a )?plain array"):
            EmbeddingStream(tmp_path / f"objects.{kind}")


def test_bfloat16_is_refused_with_a_remedy(tmp_path: Path) -> None:
    header = {"features": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(InvalidInput, match=r"features is BF16; save it as one of .*F16, F32"):
        EmbeddingStream(tmp_path / "x.safetensors")


def test_real_embeddings() -> None:
    if not os.environ.get("KALSTREAM_DATA"):
        pytest.skip("KALSTREAM_DATA is not set")
    folder = Path(os.environ["KALSTREAM_DATA"]) / "embeddings"
    stream = EmbeddingStream(
        folder / "cifar100-train-mobilenetv2-pca256.safetensors", order="tasks"
    )
    assert stream.boundaries == tuple(range(0, 50_000, 5_000))
    batch = next(stream.batches(49_999))
    assert batch.rows.shape == (1, 256)
    assert len(stream.classes) == 100


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e101, -1e300])
def test_features_that_cannot_be_learned_are_named(tmp_path: Path, value: float) -> None:
    features = FEATURES.copy()
    features[40, 2] = value
    np.savez(tmp_path / "x.npz", features=features, labels=LABELS)
    with pytest.raises(InvalidInput, match=r"x.npz: features of row 40 \(row 40 of"):
        list(EmbeddingStream(tmp_path / "x.npz", batch_size=7).batches())
    targets = FEATURES[:, 0].copy()
    targets[[3, 4, 5]] = 1e101, np.nan, np.inf
    np.savez(tmp_path / "x.npz", features=FEATURES, labels=targets)
    with pytest.raises(InvalidInput, match="labels of row 3 "):
        list(EmbeddingStream(tmp_path / "x.npz", task="regression").batches())


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": np.array([b"a"] * N)}, r"labels are of type \|S1; save them as numbers, or as"),
        ({"labels": np.arange(N).astype("M8[s]")}, "labels are of type datetime64"),
        ({"labels": np.full(N, np.inf)}, "a label is infinite"),
        ({"labels": np.full(N, 0x110000, "<u4").view("<U1")}, "labels are not Unicode"),
        ({"features": np.zeros((0, 3)), "labels": np.zeros(0)}, "features is empty"),
        ({"features": np.zeros((N, 0))}, "features is empty"),
        ({"times": np.array(["now"] * N)}, "times are of type <U3; save them as numbers"),
        ({"times": TIMES[::-1]}, "never decrease, and that of row 1 is 118; sort"),
        ({"times": np.full(N, np.nan)}, "that of row 0 is nan"),
    ],
)
def test_unusable_arrays_are_refused(tmp_path: Path, arrays: dict, says: str) -> None:
    np.savez(tmp_path / "x.npz", **{"features": FEATURES, "labels": LABELS, **arrays})
    with pytest.raises(InvalidInput, match=f"x.npz: .*{says}"):
        EmbeddingStream(tmp_path / "x.npz")


def test_a_label_that_is_not_a_number_is_missing(tmp_path: Path) -> None:
    labels = LABELS.astype(float)
    labels[7] = np.nan
    np.savez(tmp_path / "x.npz", features=FEATURES, labels=labels)
    stream = EmbeddingStream(tmp_path / "x.npz")
    assert whole(stream).targets[7] is None
    assert stream.classes == sorted(set(np.delete(LABELS, 7).tolist()))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_named(tmp_path: Path, kind: str) -> None:
    """Changed, removed or added bytes give one of our errors or a stream, never another error."""
    path = write(tmp_path, kind, times=TIMES)
    whole_file, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole_file)
        for place in rng.integers(0, min(len(data), 400) if rng.random() < 0.7 else len(data), 3):
            cut = int(rng.integers(3))
            data[place : place + cut] = rng.bytes(int(rng.integers(3)))
        path.write_bytes(data)
        try:
            whole(EmbeddingStream(path))
        except InvalidInput as error:
            assert str(path) in str(error)
