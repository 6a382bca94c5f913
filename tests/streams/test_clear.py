"""CLEAR from a small folder in its layout."""

import json
from pathlib import Path

import numpy as np
import pytest

from kalstream.errors import InvalidInput
from kalstream.streams.base import Batch
from kalstream.streams.clear import ClearStream

CLASSES = ("zebra", "apple", "BACKGROUND")
BUCKETS = ("10", "2", "1")  # sorted as numbers: 2 comes before 10
EACH = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pixels of picture k of class c in bucket b: (b, c, k)."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "train"
    root.mkdir()
    (root / "class_names.txt").write_text("\n".join(CLASSES))
    listing: dict[str, dict[str, str]] = {}
    for bucket in BUCKETS:
        for label, name in enumerate(CLASSES):
            pictures = {}
            for k in range(EACH):
                place = f"labeled_images/{bucket}/{name}/{k}.png"
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                image.new("RGB", (5, 5), (int(bucket), label, k)).save(root / place)
                pictures[f"{bucket}{label}{k}"] = {"IMG_PATH": place, "DATE_UPLOADED": "0"}
            place = f"labeled_metadata/{bucket}/{name}.json"
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(json.dumps(pictures))
            listing.setdefault(bucket, {})[name] = place
    (root / "labeled_metadata.json").write_text(json.dumps(listing))
    return tmp_path


def whole(stream: ClearStream, start: int = 0) -> Batch:
    batches = list(stream.batches(start))
    rows = np.concatenate([batch.rows for batch in batches])
    return Batch(start, rows, np.concatenate([batch.targets for batch in batches]))


def test_buckets_come_in_order_and_are_shuffled(folder: Path) -> None:
    stream = ClearStream(folder, size=5, batch_size=7)
    got = whole(stream)
    per = EACH * len(CLASSES)
    assert stream.buckets == ["1", "2", "10"]
    assert stream.boundaries == (0, per, 2 * per)
    assert stream.n_rows == 3 * per
    assert got.rows[:, 0, 0, 0].tolist() == [1] * per + [2] * per + [10] * per
    assert got.rows[:, 0, 0, 1].tolist() == got.targets.tolist()
    assert len({bytes(row[0, 0]) for row in got.rows}) == 3 * per
    assert got.targets[:per].tolist() != sorted(got.targets[:per])
    assert stream.class_names == list(CLASSES)
    assert stream.classes == [0, 1, 2]


def test_any_start_row_and_seed(folder: Path) -> None:
    stream = ClearStream(folder, seed=1, size=2, batch_size=5)
    got = whole(stream)
    for start in (0, 1, 5, 17, 35):
        np.testing.assert_array_equal(whole(stream, start).rows, got.rows[start:])
    again, other = ClearStream(folder, seed=1, size=2), ClearStream(folder, seed=2, size=2)
    np.testing.assert_array_equal(whole(again).rows, got.rows)
    assert (whole(other).rows != got.rows).any()
    assert stream.describe() == again.describe() != other.describe()
    assert json.loads(json.dumps(stream.describe())) == stream.describe()


def test_missing_pictures_move_the_boundaries(folder: Path) -> None:
    for place in ("1/zebra/0", "2/apple/1", "2/apple/2"):
        (folder / f"train/labeled_images/{place}.png").unlink()
    with pytest.raises(FileNotFoundError, match="missing='skip'"):
        whole(ClearStream(folder))
    stream = ClearStream(folder, missing="skip", size=2)
    assert stream.boundaries == (0, 11, 21)
    assert stream.boundaries == (0, 11, 21)
    got = whole(stream)
    assert got.rows[:, 0, 0, 0].tolist() == [1] * 11 + [2] * 10 + [10] * 12
    assert (stream.n_rows, stream.skipped) == (33, 3)


def test_errors_name_the_problem(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*test/class_names.txt; give"):
        ClearStream(folder, "test")
    root = folder / "train"
    listing = json.loads((root / "labeled_metadata.json").read_text())
    for change, says in (
        ({"x": {}}, "buckets must be numbers, got .*'x'"),
        ({"3": {"zebra": listing["1"]["zebra"]}}, "bucket 3 has no class 'apple'.*only zebra"),
        ({"3": listing["1"] | {"apple": "none.json"}}, "no file .*none.json"),
        ([], "must hold a JSON object, got list"),
    ):
        new = listing | change if isinstance(change, dict) else change
        (root / "labeled_metadata.json").write_text(json.dumps(new))
        with pytest.raises(InvalidInput, match=says):
            ClearStream(folder)
    (root / "labeled_metadata.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"labeled_metadata.json is not JSON"):
        ClearStream(folder)
    (root / "labeled_metadata.json").write_text(json.dumps(listing))
    (root / listing["2"]["zebra"]).write_text('{"17": {}}')
    with pytest.raises(InvalidInput, match=r"2/zebra.json: image 17 has no IMG_PATH"):
        ClearStream(folder)
