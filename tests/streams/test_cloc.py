"""CLOC from small folders in its published layouts."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kalstream.errors import InvalidInput, MissingExtra
from kalstream.streams import cloc
from kalstream.streams.base import Batch
from kalstream.streams.cloc import ClocStream, pack_cloc

N = 11
LISTS = {
    "labels": [3 * k % 7 for k in range(N)],
    "time": [100 + k for k in range(N)],
    "userID": [k % 4 for k in range(N)],
    "store_loc": [f"/a{k % 3}/{k}.png\n" for k in range(N)],
}


def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch.load, so that saved lists are JSON."""

    def load(path: Path, *, map_location: str, weights_only: bool) -> object:
        assert weights_only
        return json.loads(path.read_text())

    monkeypatch.setattr(cloc, "require", lambda *_: SimpleNamespace(load=load))


def release(folder: Path, lists: dict[str, list[object]] = LISTS, split: str = "train") -> Path:
    (folder / "release").mkdir(exist_ok=True)
    for name, values in lists.items():
        (folder / "release" / f"{split}_{name}.torchSave").write_text(json.dumps(values))
    (folder / "release" / "dataset" / "images").mkdir(parents=True, exist_ok=True)
    return folder


def pictures(root: Path, without: tuple[int, ...] = ()) -> None:
    """Picture k is 20 x 10, with colour k in the middle and black sides."""
    image = pytest.importorskip("PIL.Image")
    for k, place in enumerate(LISTS["store_loc"]):
        path = root / place.strip().lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if k not in without:
            pixels = np.zeros((10, 20, 3), np.uint8)
            pixels[:, 5:15] = k
            image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_torch(monkeypatch)
    pictures(tmp_path / "release" / "dataset" / "images")
    return release(tmp_path)


def whole(stream: ClocStream, start: int = 0) -> Batch:
    batches = list(stream.batches(start))
    times = None if batches[0].times is None else np.concatenate([b.times for b in batches])
    rows = np.concatenate([batch.rows for batch in batches])
    return Batch(start, rows, np.concatenate([batch.targets for batch in batches]), times)


def colours(batch: Batch) -> list[int]:
    return batch.rows[:, 2, 2, 0].tolist()


def test_the_release(folder: Path) -> None:
    for place in (folder, folder / "release"):
        stream = ClocStream(place, size=6, batch_size=4)
        got = whole(stream)
        assert got.rows.shape == (N, 6, 6, 3)
        assert got.rows.dtype == np.uint8
        middle = got.rows[:, 1:-1, 1:-1]  # the black sides are cropped, but blur the edge
        assert (middle == np.arange(N)[:, None, None, None]).all()
        assert got.targets.tolist() == LISTS["labels"]
        assert got.times.tolist() == LISTS["time"]
        assert stream.n_rows == N
        assert stream.classes == list(range(7))
        assert stream.users(got[2:5]).tolist() == LISTS["userID"][2:5]
        assert stream.skipped == 0


def test_a_stream_can_start_at_any_row(folder: Path) -> None:
    stream = ClocStream(folder, size=3, batch_size=4)
    rows = whole(stream).rows
    for start in range(N):
        np.testing.assert_array_equal(whole(stream, start).rows, rows[start:])
    assert list(stream.batches(N)) == []


def test_rows_are_sorted_by_time_and_ties_keep_their_order(folder: Path) -> None:
    release(folder, {"time": [5, 5, 3, 9, 9, 9, 0, 1, 2, 7, 7]})
    stream = ClocStream(folder, size=6)
    got = whole(stream)
    order = [6, 7, 8, 2, 0, 1, 9, 10, 3, 4, 5]
    assert colours(got) == order
    assert got.targets.tolist() == [LISTS["labels"][k] for k in order]
    assert stream.users(got).tolist() == [LISTS["userID"][k] for k in order]
    assert (np.diff(got.times) >= 0).all()


def test_missing_pictures_raise_or_are_skipped(folder: Path) -> None:
    gone = (0, 4, 5, 10)
    for k in gone:
        (folder / "release/dataset/images" / LISTS["store_loc"][k].strip("/\n")).unlink()
    with pytest.raises(FileNotFoundError, match=r"a0/0.png; use missing='skip'"):
        whole(ClocStream(folder))
    there = [k for k in range(N) if k not in gone]
    for start in range(len(there)):  # a new stream can start at any row
        stream = ClocStream(folder, size=6, missing="skip", batch_size=2)
        assert stream.n_rows is None
        got = whole(stream, start)
        assert colours(got) == there[start:]
        assert got.targets.tolist() == [LISTS["labels"][k] for k in there[start:]]
        assert stream.users(got).tolist() == [LISTS["userID"][k] for k in there[start:]]
        assert (stream.n_rows, stream.skipped) == (7, 4)
    stream = ClocStream(folder, missing="skip")
    description = stream.describe()
    whole(stream)
    assert stream.describe() == description


def test_files_are_opened_when_their_row_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kalstream.streams.images._BLOCK", 2)
    stream = ClocStream(folder, size=3, missing="skip", batch_size=3)
    next(stream.batches())
    assert stream._n_checked == 4


def test_a_bad_picture_is_named(folder: Path) -> None:
    path = folder / "release/dataset/images/a0/0.png"
    good = path.read_bytes()
    for bad in (b"no picture", b"", good[:45]):
        path.write_bytes(bad)
        with pytest.raises(InvalidInput, match=r"a0/0.png cannot be decoded: .*remove it"):
            next(ClocStream(folder).batches())


def test_packed_lists_are_the_same_stream(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ClocStream(folder, size=4)
    out = pack_cloc(folder, out=tmp_path / "packed")
    pack_cloc(folder)
    monkeypatch.undo()  # the packed file is read without torch
    images = folder / "release/dataset/images"
    for stream in (ClocStream(out, size=4, images=images), ClocStream(folder, size=4)):
        assert stream.describe() == first.describe()
        np.testing.assert_array_equal(whole(stream).rows, whole(first).rows)
        assert isinstance(stream._labels, np.memmap)
    assert json.loads(json.dumps(first.describe())) == first.describe()


def test_other_lists_are_another_stream(folder: Path) -> None:
    first = ClocStream(folder).describe()
    release(folder, {"labels": [0] * N})
    assert ClocStream(folder).describe()["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"labels": [1, 2]}, "differ in length: .*'labels': 2"),
        ({"labels": ["x"] * N}, "train_labels.torchSave is not a list of int32"),
        ({"labels": [[1]] * N}, "train_labels.torchSave must be a plain list"),
        ({"labels": [-1] * N}, "must be 0 or more"),
    ],
)
def test_wrong_lists_are_named(folder: Path, lists: dict[str, list[object]], says: str) -> None:
    release(folder, lists)
    with pytest.raises(InvalidInput, match=says):
        ClocStream(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no test_store_loc.torchSave in .*release and no"):
        ClocStream(folder, "test")
    for wrong in ({"missing": "x"}, {"size": 0}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
            ClocStream(folder, **wrong)
    pack_cloc(folder, out=tmp_path / "lists")
    with pytest.raises(FileNotFoundError, match=r"none of the folders release/dataset.*images="):
        ClocStream(tmp_path / "lists")


def test_without_torch_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"kalstream\[torch\]"):
        ClocStream(release(folder))


def test_lists_saved_by_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    release(tmp_path)
    for name, values in LISTS.items():
        torch.save(values, tmp_path / "release" / f"train_{name}.torchSave")
    pictures(tmp_path / "release/dataset/images")
    stream = ClocStream(tmp_path, size=6)
    assert colours(whole(stream)) == list(range(N))
    assert stream.users(whole(stream)).tolist() == LISTS["userID"]
    (tmp_path / "release/train_time.torchSave").write_bytes(b"broken")
    with pytest.raises(InvalidInput, match=r"train_time.torchSave is not a list of float64"):
        ClocStream(tmp_path)


def test_the_mirror(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "order_files").mkdir()
    names = {"image_paths": "store_loc", "labels": "labels"}
    for name, key in names.items():
        with h5py.File(tmp_path / "order_files" / f"train_{name}.hdf5", "w") as file:
            file["store_list"] = LISTS[key]
    pictures(tmp_path / "images")
    for folder in (tmp_path, tmp_path / "order_files"):
        stream = ClocStream(folder, size=6, images=tmp_path / "images")
        got = whole(stream)
        assert colours(got) == list(range(N))
        assert got.targets.tolist() == LISTS["labels"]
        assert got.times is None
        assert stream.users(got) is None
    assert ClocStream(tmp_path).root == tmp_path / "images"
    with h5py.File(tmp_path / "order_files/train_labels.hdf5", "w") as file:
        file["other"] = [1]
    with pytest.raises(InvalidInput, match=r"train_labels.hdf5 is not a list of int32.*store_list"):
        ClocStream(tmp_path)
