"""CIFAR-100 from a small archive in the official layout."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kalstream.errors import InvalidInput
from kalstream.streams.base import Batch
from kalstream.streams.cifar import Cifar100Stream

N, CLASSES = 90, 30


def contents() -> dict[str, object]:
    rng = np.random.default_rng(0)
    fine = np.arange(N) % CLASSES
    return {
        "data": rng.integers(0, 256, (N, 3072), dtype=np.uint8),
        "fine_labels": fine.tolist(),
        "coarse_labels": (fine // 3).tolist(),
    }


def write(folder: Path, name: str, data: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(data, protocol=2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "cifar-100-python"
    for split in ("train", "test"):
        write(inner, split, {key.encode(): value for key, value in contents().items()})
    names = [f"class {k}".encode() for k in range(CLASSES)]
    write(inner, "meta", {b"fine_label_names": names})
    return tmp_path


def whole(stream: Cifar100Stream, start: int = 0) -> Batch:
    batches = list(stream.batches(start))
    rows = np.concatenate([batch.rows for batch in batches])
    return Batch(batches[0].start, rows, np.concatenate([batch.targets for batch in batches]))


def test_pictures_and_labels_stay_together(folder: Path) -> None:
    data = contents()
    stream = Cifar100Stream(folder, batch_size=7)
    got = whole(stream)
    assert got.rows.shape == (N, 32, 32, 3)
    assert got.rows.dtype == np.uint8
    assert all(type(label) is int for label in got.targets)
    label_of = {bytes(x): y for x, y in zip(data["data"], data["fine_labels"], strict=True)}
    for picture, label in zip(got.rows, got.targets, strict=True):
        assert label_of.pop(picture.transpose(2, 0, 1).tobytes()) == label
    assert not label_of
    assert stream.classes == list(range(CLASSES))
    assert stream.class_names[4] == "class 4"
    assert stream.boundaries == (0,)


@pytest.mark.parametrize("order", ["stationary", "tasks"])
def test_a_stream_can_start_at_any_row(folder: Path, order: str) -> None:
    stream = Cifar100Stream(folder, order, seed=3, batch_size=8)
    rows, targets = whole(stream).rows, whole(stream).targets
    for start in (0, 1, 8, 13, N - 1):
        tail = whole(stream, start)
        assert tail.start == start
        np.testing.assert_array_equal(tail.rows, rows[start:])
        np.testing.assert_array_equal(tail.targets, targets[start:])
    assert list(stream.batches(N)) == []


@pytest.mark.parametrize(("labels", "per_task"), [("fine", 3), ("coarse", 1)])
def test_tasks_share_no_class(folder: Path, labels: str, per_task: int) -> None:
    stream = Cifar100Stream(folder, "tasks", labels=labels)
    assert len(stream.boundaries) == 10
    groups = np.split(whole(stream).targets, stream.boundaries[1:])
    assert [len(set(group)) for group in groups] == [per_task] * 10
    assert len(set.union(*map(set, groups))) == 10 * per_task
    assert any(group.tolist() != sorted(group) for group in groups) == (per_task > 1)


@pytest.mark.parametrize("order", ["stationary", "tasks"])
def test_a_seed_determines_the_order(folder: Path, order: str) -> None:
    first, again = (Cifar100Stream(folder, order, 1) for _ in range(2))
    other = Cifar100Stream(folder, order, 2)
    assert whole(first).rows.tobytes() == whole(again).rows.tobytes()
    assert whole(first).rows.tobytes() != whole(other).rows.tobytes()
    assert first.describe() == again.describe() != other.describe()
    assert json.loads(json.dumps(first.describe())) == first.describe()
    assert first.describe()["fingerprint"] == other.describe()["fingerprint"]


def test_folder_parent_and_archive_are_the_same(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder / "cifar-100-python", "cifar-100-python")
    streams = [Cifar100Stream(f) for f in (folder, folder / "cifar-100-python", archive)]
    assert len({json.dumps(stream.describe()) for stream in streams}) == 1
    assert len({tuple(stream.class_names) for stream in streams}) == 1


def test_a_pickle_of_python_2_is_read(folder: Path) -> None:
    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(text)) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    data = contents()
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b")
    array += b"\x87R(K\x01" + number(N) + number(3072) + b"\x86" + dtype + b"\x89"
    array += string(data["data"].tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in data["fine_labels"]) + b"e"
    entries = string(b"data") + array + string(b"fine_labels") + labels
    raw = b"\x80\x02}(" + entries + b"u."
    expected = whole(Cifar100Stream(folder)).rows
    (folder / "cifar-100-python" / "train").write_bytes(raw)
    np.testing.assert_array_equal(whole(Cifar100Stream(folder)).rows, expected)


class Run:
    """Its pickle calls a function when it is loaded."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("name", ["train", "meta"])
@pytest.mark.parametrize(
    ("function", "says"),
    [(os.system, "system"), (eval, "eval"), (np.load, "load"), (getattr, "getattr")],
)
def test_a_pickle_cannot_run_code(folder: Path, name: str, function: object, says: str) -> None:
    witness = folder / "witness"
    write(folder / "cifar-100-python", name, {b"data": Run(function, f"touch {witness}")})
    with pytest.raises(InvalidInput, match=rf"{name}.* contains \S*{says}\b"):
        Cifar100Stream(folder)
    assert not witness.exists()


def test_bad_archives_and_missing_files(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "wrong.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.addfile(tarfile.TarInfo("../../train"), io.BytesIO(b""))
    with pytest.raises(FileNotFoundError, match=r"wrong.tar.gz has no cifar-100-python/train"):
        Cifar100Stream(archive)
    archive.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="not a readable archive"):
        Cifar100Stream(archive)
    with pytest.raises(FileNotFoundError, match="no file train"):
        Cifar100Stream(tmp_path / "nowhere")
    (folder / "cifar-100-python" / "train").write_bytes(b"\x80\x02broken")
    with pytest.raises(InvalidInput, match="train is not a file of CIFAR-100"):
        Cifar100Stream(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": np.zeros((N, 3), np.uint8)}, r"\(n, 3072\) of uint8, got \(90, 3\)"),
        ({"data": np.zeros((N, 3072))}, "float64"),
        ({"fine_labels": [1, 2]}, r"90 ints.*got \(2,\)"),
        ({"fine_labels": ["a"] * N}, "90 ints"),
    ],
)
def test_wrong_contents_are_named(folder: Path, changes: dict[str, object], says: str) -> None:
    write(folder / "cifar-100-python", "train", contents() | changes)
    with pytest.raises(InvalidInput, match=says):
        Cifar100Stream(folder)


def test_wrong_choices_are_named(folder: Path) -> None:
    for wrong in ({"order": "x"}, {"split": "x"}, {"labels": "x"}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be one of .*, got 'x'"):
            Cifar100Stream(folder, **wrong)
    data = contents()
    del data["coarse_labels"]
    write(folder / "cifar-100-python", "train", data)
    with pytest.raises(InvalidInput, match="no coarse_labels, only data, fine_labels"):
        Cifar100Stream(folder, labels="coarse")
    (folder / "cifar-100-python" / "meta").unlink()
    assert Cifar100Stream(folder).class_names is None


def test_the_real_one(tmp_path: Path) -> None:
    if not os.environ.get("KALSTREAM_DATA"):
        pytest.skip("KALSTREAM_DATA is not set")
    pytest.importorskip("PIL")
    unpack = Path(os.environ["KALSTREAM_DATA"]) / "cifar100" / "unpack"
    subprocess.run([sys.executable, unpack, tmp_path], check=True, capture_output=True)
    stream = Cifar100Stream(tmp_path, "tasks")
    assert stream.n_rows == 50_000
    assert stream.boundaries == tuple(range(0, 50_000, 5_000))
    assert stream.class_names[0] == "apple"
    assert [len(set(batch.targets)) for batch in Cifar100Stream(tmp_path).batches(49_000)] == [100]
