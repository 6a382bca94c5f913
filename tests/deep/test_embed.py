"""Image streams to embedding files: the features, the file, and interrupted runs."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402

from kalstream.deep.backbones import preprocess, resnet18  # noqa: E402
from kalstream.deep.embed import ImageFolderStream, digest, embed  # noqa: E402
from kalstream.errors import InUse, InvalidInput, MissingFile  # noqa: E402
from kalstream.streams import ArrayStream, EmbeddingStream  # noqa: E402

torch.set_num_threads(1)

MODULE = sys.modules["kalstream.deep.embed"]  # the package also has a function of this name
N = 23
WORDS = np.array(["cat", "dog", "ant"])[np.arange(N) % 3]


def pixels(seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)


def images(labels: Any = WORDS, batch_size: int = 6, seed: int = 0, **options: Any) -> ArrayStream:
    return ArrayStream(pixels(seed), labels, batch_size=batch_size, name="mine", **options)


def network(seed: int = 0) -> Any:
    return resnet18("cifar", 2, seed)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


class Filled(nn.Module):
    """Constant features, except for images that are all black."""

    def __init__(self, black: float) -> None:
        super().__init__()
        self.black = black

    def forward(self, x: Any) -> Any:
        features = torch.ones(len(x), 2)
        features[x.mean((1, 2, 3)) < -1.7] = self.black
        return features


# ---- the file


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_file_has_the_features_of_the_network(tmp_path: Path, dtype: str) -> None:
    times = np.arange(N) * 2.0
    backbone = network().train()
    calls: list[tuple[int, int | None]] = []
    out = embed(
        images(times=times),
        backbone,
        tmp_path / "new" / "out.safetensors",
        batch_size=10,
        size=12,
        dtype=dtype,
        progress=lambda *done: calls.append(done),
    )
    assert calls == [(10, N), (20, N), (23, N)]
    assert all(m.training for m in backbone.modules())
    assert [path.name for path in out.parent.iterdir()] == ["out.safetensors"]
    with torch.no_grad():
        expected = backbone.eval()(preprocess(pixels(), size=12)).numpy()
    arrays = load_file(out)
    assert {k: (v.dtype.name, v.shape) for k, v in arrays.items()} == {
        "features": (dtype, (N, 16)),
        "labels": ("int64", (N,)),
        "times": ("float64", (N,)),
    }
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(arrays["features"], expected, rtol=tolerance, atol=tolerance)
    names = json.loads(metadata(out)["label_names"])
    assert names == ["cat", "dog", "ant"]
    assert np.array(names)[arrays["labels"]].tolist() == WORDS.tolist()

    (batch,) = EmbeddingStream(out).batches()
    np.testing.assert_array_equal(batch.rows, arrays["features"].astype(float))
    np.testing.assert_array_equal(batch.times, times)
    assert batch.targets.tolist() == (np.arange(N) % 3).tolist()


def test_numeric_labels_stay_unchanged(tmp_path: Path) -> None:
    stream = images(np.arange(N) + 40)
    out = embed(stream, network(), tmp_path / "a.safetensors")
    assert load_file(out)["labels"].tolist() == list(range(40, 40 + N))
    assert set(load_file(out)) == {"features", "labels"}
    assert "label_names" not in metadata(out)
    stream.class_names = [f"class {k}" for k in range(70)]
    out = embed(stream, network(), tmp_path / "b.safetensors")
    assert json.loads(metadata(out)["label_names"])[41] == "class 41"
    targets = np.linspace(0, 1, N)
    out = embed(images(targets, task="regression"), network(), tmp_path / "c.safetensors")
    (batch,) = EmbeddingStream(out, task="regression").batches()
    np.testing.assert_array_equal(batch.targets, targets)


def test_the_batches_of_the_stream_do_not_matter(tmp_path: Path) -> None:
    written = [
        embed(images(batch_size=b), network(), tmp_path / f"{b}.safetensors", batch_size=7)
        for b in (1, 5, 7, 100)
    ]
    assert len({path.read_bytes() for path in written}) == 1


def test_moments_of_the_backbone_are_used(tmp_path: Path) -> None:
    backbone = network().eval()
    backbone.mean, backbone.std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    out = embed(images(), backbone, tmp_path / "a.safetensors", dtype="float32")
    own = functools.partial(preprocess, mean=backbone.mean, std=backbone.std)
    with torch.no_grad():
        expected = backbone(own(pixels())).numpy()
    np.testing.assert_allclose(load_file(out)["features"], expected, rtol=1e-5, atol=1e-6)
    other = embed(images(), backbone, tmp_path / "b.safetensors", preprocess=own, dtype="float32")
    assert np.array_equal(load_file(other)["features"], load_file(out)["features"])
    with pytest.raises(InvalidInput, match="size=9 works with the default"):
        embed(images(), backbone, tmp_path / "c.safetensors", preprocess=own, size=9)


# ---- interrupted runs


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_a_killed_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The files are copied after every batch, as a kill would leave them; each copy resumes."""
    monkeypatch.setattr(MODULE, "_SAVE_SECONDS", seconds)
    left: list[Path] = []

    def copy(done: int, total: int | None) -> None:
        left.append(tmp_path / str(done))
        shutil.copytree(tmp_path / "whole", left[-1])

    whole = tmp_path / "whole" / "out.safetensors"
    stream = images(times=np.arange(N))
    embed(stream, network(), whole, batch_size=4, progress=copy)
    assert len(left) == 6
    for k, folder in enumerate(left):
        calls: list[int] = []
        embed(
            images(batch_size=5, times=np.arange(N)),
            network(),
            folder / "out.safetensors",
            batch_size=4,
            progress=lambda done, _, calls=calls: calls.append(done),
        )
        assert calls == [4, 8, 12, 16, 20, 23][0 if seconds else k + 1 :]
        assert (folder / "out.safetensors").read_bytes() == whole.read_bytes()
        assert len(list(folder.iterdir())) == 1


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    backbone, out = network().train(), tmp_path / "out.safetensors"

    def stop(done: int, total: int | None) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(images(), backbone, out, batch_size=4, progress=stop)
    assert backbone.training
    assert not out.exists()
    with (tmp_path / "out.safetensors.part").open("ab") as part:
        part.write(b"half a row")  # left by an interrupted write
    calls: list[int] = []
    embed(images(), backbone, out, batch_size=4, progress=lambda done, _: calls.append(done))
    assert calls == [16, 20, 23]
    whole = embed(images(), backbone, tmp_path / "whole.safetensors", batch_size=4)
    assert whole.read_bytes() == out.read_bytes()


def test_a_run_resumes_after_its_process_dies(tmp_path: Path) -> None:
    script = """
import os, sys
import numpy as np, torch
torch.set_num_threads(1)
from kalstream.deep.backbones import resnet18
from kalstream.deep.embed import embed
from kalstream.streams import ArrayStream
sys.modules["kalstream.deep.embed"]._SAVE_SECONDS = 0.0
pixels = np.random.default_rng(0).integers(0, 256, (23, 8, 8, 3), dtype=np.uint8)
words = np.array(["cat", "dog", "ant"])[np.arange(23) % 3]
stream = ArrayStream(pixels, words, batch_size=6, name="mine")
die = lambda done, _: os._exit(9) if done == 8 else None
embed(stream, resnet18("cifar", 2), sys.argv[1], batch_size=4, progress=die)
"""
    out = tmp_path / "out.safetensors"
    assert subprocess.run([sys.executable, "-c", script, str(out)], check=False).returncode == 9
    calls: list[int] = []
    embed(images(), network(), out, batch_size=4, progress=lambda done, _: calls.append(done))
    assert calls == [12, 16, 20, 23]
    whole = embed(images(), network(), tmp_path / "whole.safetensors", batch_size=4)
    assert whole.read_bytes() == out.read_bytes()


def test_a_finished_file_stays_unchanged(tmp_path: Path) -> None:
    out = embed(images(), network(), tmp_path / "out.safetensors")
    before = out.stat().st_mtime_ns
    calls: list[int] = []
    again = functools.partial(embed, images(), network(), out, progress=lambda *d: calls.append(d))
    assert again() == out
    assert (calls, out.stat().st_mtime_ns) == ([], before)
    again(resume=False)
    assert calls
    assert out.stat().st_mtime_ns != before


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    calls: list[int] = []

    def meanwhile(done: int, n: int | None) -> None:
        calls.append(done)
        with pytest.raises(InUse, match=rf"out\.safetensors is in use by process {os.getpid()} "):
            embed(images(), network(), out)

    embed(images(), network(), out, progress=meanwhile)
    assert calls
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_of_other_settings_is_refused(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out.safetensors"

    def stop(done: int, total: int | None) -> None:
        if not finished:
            raise KeyboardInterrupt

    def begin(stream: Any, backbone: Any, **options: Any) -> None:
        embed(stream, backbone, out, batch_size=4, **options)

    try:
        begin(images(), network(), progress=stop)
    except KeyboardInterrupt:
        assert not finished
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    one = network()
    with torch.no_grad():
        one.bn1.bias[0] = 1e-6
    for stream, backbone, options, words in (
        (images(), network(1), {}, "backbone was sha256:.*resume=False"),
        (images(), one, {}, "backbone was sha256:"),
        (images(seed=1), network(), {}, "stream.fingerprint was sha256:"),
        (images(), network(), {"size": 9}, "preprocess.size was None, is 9;"),
        (images(), network(), {"dtype": "float32"}, "dtype was float16, is float32;"),
        (images(), network(), {"preprocess": preprocess}, "preprocess was None, is preprocess"),
    ):
        with pytest.raises(InvalidInput, match=words):
            begin(stream, backbone, **options)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    begin(images(), network(1), resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]
    assert digest(network(1)) in metadata(out)["source"]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"something of mine")
    with pytest.raises(InvalidInput, match=r"exists and is not an embedding file.*resume=False"):
        embed(images(), network(), out)
    assert out.read_bytes() == b"something of mine"
    out.unlink()

    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(images(), network(), out, batch_size=4, progress=stop)
    part, side = (tmp_path / f"out.safetensors.{end}" for end in ("part", "part.json"))
    good = side.read_text()
    for content in ("", "[]", "{}", good.replace('"done": 4', '"done": 400')):
        side.write_text(content)
        with pytest.raises(InvalidInput, match=r"part\.json.*remove them"):
            embed(images(), network(), out)
    side.write_text(good)
    part.unlink()
    with pytest.raises(InvalidInput, match="remove them"):
        embed(images(), network(), out)
    embed(images(), network(), out, resume=False)


def test_digest() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.extra_repr = inner, lambda: repr(print) + repr(lambda: 0)

    assert digest(network()) == digest(network())
    assert digest(Wrapped(network())) == digest(Wrapped(network()))
    others = [network(1), Wrapped(network()), network().double(), resnet18("imagenet", 2)]
    assert len({digest(net) for net in [network(), *others]}) == 5
    pooled = network()
    pooled.maxpool = nn.MaxPool2d(3, 2, 1)  # the same weights, another network
    assert digest(pooled) != digest(network())


# ---- errors


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "are not finite; check its image"),
        (float("-inf"), "are not finite"),
        (1e5, r"reach 1e\+05, beyond the range of float16; give dtype=\"float32\""),
    ],
)
def test_features_must_be_finite(tmp_path: Path, value: float, words: str) -> None:
    stream = images()
    stream.rows[17] = 0
    out = tmp_path / "out.safetensors"
    with pytest.raises(InvalidInput, match=rf"row 17 of stream 'mine' {words}"):
        embed(stream, Filled(value), out, batch_size=5)
    side = json.loads((tmp_path / "out.safetensors.part.json").read_text())
    assert side["done"] == 15
    if np.isfinite(value):
        embed(stream, Filled(value), out, dtype="float32", resume=False)
        assert load_file(out)["features"][17, 0] == value


def test_out_of_memory(tmp_path: Path) -> None:
    class Large(nn.Module):
        error: Exception

        def forward(self, x: Any) -> Any:
            raise self.error

    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ):
        Large.error = error
        with pytest.raises(
            InvalidInput, match=r"for batch_size=20 .*smaller batch_size, such as 5"
        ):
            embed(images(), Large(), tmp_path / "out.safetensors", batch_size=20)
    Large.error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match=r"^something else$"):
        embed(images(), Large(), tmp_path / "out.safetensors")


def test_wrong_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    none, mixed = WORDS.astype(object), WORDS.astype(object)
    none[5], mixed[6] = None, 3
    rows = ArrayStream(np.zeros((3, 2)), [1, 2, 3])
    for stream, backbone, options, words in (
        (images(), network(), {"batch_size": 0}, "batch_size must be positive, got 0"),
        (images(), network(), {"dtype": "int8"}, "got 'int8'"),
        (images(), network(), {"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
        (images(), nn.Identity(), {}, r"must return \(b, n_features\), got \(23, 3, 8, 8\)"),
        (images(none), network(), {}, "label of row 5 is None"),
        (images(mixed), network(), {}, "label of row 6 is 3; .* all ints or all strings"),
        (rows, network(), {}, r"uint8, got \(3, 2\) of float64"),
        (ArrayStream(np.zeros((0, 8, 8, 3), np.uint8), []), network(), {}, "has no rows"),
    ):
        with pytest.raises(InvalidInput, match=words):
            embed(stream, backbone, out, **options)
        assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match=r"must be a .safetensors file, got .*out.npy"):
        embed(images(), network(), tmp_path / "out.npy")


# ---- folders of pictures


def test_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "pets"
    for name, colour in (
        ("dog/2.png", (0, 0, 255)),
        ("dog/10.jpeg", (0, 255, 0)),
        ("cat/inner/1.PNG", (255, 0, 0)),
        (".cache/1.png", (1, 1, 1)),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (20, 30), colour).save(root / name)
    (root / "ant").mkdir()
    (root / "dog" / "notes.txt").write_text("no picture")
    (root / "top.png").write_text("in no class")
    stream = ImageFolderStream(root, size=6, batch_size=2)
    assert (stream.name, stream.n_rows, stream.classes) == ("pets", 3, [1, 2])
    assert stream.class_names == ["ant", "cat", "dog"]
    batches = list(stream.batches())
    rows = np.concatenate([batch.rows for batch in batches])
    assert (rows.shape, rows.dtype) == ((3, 6, 6, 3), np.uint8)
    assert [rows[k, 0, 0].argmax() for k in range(3)] == [0, 1, 2]
    assert np.concatenate([batch.targets for batch in batches]).tolist() == [1, 2, 2]
    assert [len(batch) for batch in stream.batches(2)] == [1]
    assert stream.describe() == ImageFolderStream(root, size=6).describe()
    assert stream.describe() != ImageFolderStream(root, size=7).describe()

    out = embed(stream, network(), tmp_path / "pets.safetensors")
    assert json.loads(metadata(out)["label_names"]) == ["ant", "cat", "dog"]
    assert load_file(out)["labels"].tolist() == [1, 2, 2]

    with pytest.raises(MissingFile, match=r"no folder .*none"):
        ImageFolderStream(tmp_path / "none")
    with pytest.raises(MissingFile, match=r"no images .*\.png.*each class into a subfolder"):
        ImageFolderStream(root / "ant")
