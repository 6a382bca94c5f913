"""Networks with torchvision's names, their weights and pixels, and other libraries' networks."""

import os
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from kalstream.deep.adapters import (  # noqa: E402
    from_timm,
    from_torchvision,
    from_transformers,
)
from kalstream.deep.backbones import (  # noqa: E402
    CIFAR100_MEAN,
    CIFAR100_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    load_weights,
    mobilenet_v2,
    preprocess,
    resnet18,
    resnet50,
    slim_resnet18,
)
from kalstream.errors import InvalidInput, MissingExtra, MissingFile  # noqa: E402

torch.set_num_threads(1)

# without the classifier: parameters, names in the state dict, features
SIZES = {
    resnet18: (11_176_512, 120, 512),
    resnet50: (23_508_032, 318, 2048),
    mobilenet_v2: (2_223_872, 312, 1280),
}


def images(n: int, size: int = 32, seed: int = 0) -> Any:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def randomize_batch_norms(backbone: Any) -> Any:
    """Give each batch norm its own moments, scales and shifts, so that each of them matters."""
    generator = torch.Generator().manual_seed(1)
    for name, value in backbone.state_dict().items():
        if value.ndim == 1:
            new = torch.rand(value.shape, generator=generator)
            value.copy_(new + 0.5 if name.endswith(("weight", "var")) else new - 0.5)
    return backbone.eval()


# ---- networks


@pytest.mark.parametrize("build", SIZES)
def test_sizes_equal_those_of_torchvision(build: Any) -> None:
    backbone = build()
    n_parameters = sum(p.numel() for p in backbone.parameters())
    assert (n_parameters, len(backbone.state_dict()), backbone.n_features) == SIZES[build]
    assert not any(name.startswith(("fc", "classifier")) for name in backbone.state_dict())


def test_names_and_shapes_equal_those_of_torchvision() -> None:
    shapes = {
        resnet18: {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.running_mean": (64,),
            "layer1.0.bn1.running_mean": (64,),
            "layer2.0.conv1.weight": (128, 64, 3, 3),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer2.0.downsample.1.num_batches_tracked": (),
            "layer4.1.conv2.weight": (512, 512, 3, 3),
        },
        resnet50: {
            "layer1.0.downsample.0.weight": (256, 64, 1, 1),
            "layer1.2.conv1.weight": (64, 256, 1, 1),
            "layer3.5.conv3.weight": (1024, 256, 1, 1),
            "layer4.0.bn3.bias": (2048,),
        },
        mobilenet_v2: {
            "features.0.0.weight": (32, 3, 3, 3),
            "features.1.conv.0.0.weight": (32, 1, 3, 3),
            "features.1.conv.1.weight": (16, 32, 1, 1),
            "features.1.conv.2.running_var": (16,),
            "features.2.conv.0.0.weight": (96, 16, 1, 1),
            "features.17.conv.1.0.weight": (960, 1, 3, 3),
            "features.17.conv.3.bias": (320,),
            "features.18.1.weight": (1280,),
        },
    }
    for build, expected in shapes.items():
        state = build().state_dict()
        assert {name: tuple(state[name].shape) for name in expected} == expected


def plain_resnet(state: dict[str, Any], x: Any, blocks: tuple[int, ...], large: bool) -> Any:
    """A ResNet written with torch's functions, from the names of its weights."""

    def layer(x: Any, conv: str, norm: str, stride: int = 1) -> Any:
        weight = state[f"{conv}.weight"]
        x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        moments = (state[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *moments)

    x = layer(x, "conv1", "bn1", 2 if large else 1).relu()
    if large:
        x = functional.max_pool2d(x, 3, 2, 1)
    for stage, n in enumerate(blocks, 1):
        for k in range(n):
            at, stride = f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1
            y = x
            if f"{at}.downsample.0.weight" in state:
                y = layer(x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            if f"{at}.conv3.weight" in state:
                x = layer(x, f"{at}.conv1", f"{at}.bn1").relu()
                x = layer(x, f"{at}.conv2", f"{at}.bn2", stride).relu()
                x = layer(x, f"{at}.conv3", f"{at}.bn3")
            else:
                x = layer(x, f"{at}.conv1", f"{at}.bn1", stride).relu()
                x = layer(x, f"{at}.conv2", f"{at}.bn2")
            x = (x + y).relu()
    return functional.adaptive_avg_pool2d(x, 1).flatten(1)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize(("build", "blocks"), [(resnet18, (2, 2, 2, 2)), (resnet50, (3, 4, 6, 3))])
def test_a_resnet_equals_the_plain_one(build: Any, blocks: tuple[int, ...], stem: str) -> None:
    backbone = randomize_batch_norms(build(stem, width=6)).double()
    x = images(3, 35).double()
    with torch.no_grad():
        expected = plain_resnet(backbone.state_dict(), x, blocks, stem == "imagenet")
        assert backbone.n_features == expected.shape[1]
        torch.testing.assert_close(backbone(x), expected)


def test_slim_resnet18() -> None:
    backbone = slim_resnet18()
    state = backbone.state_dict()
    assert state["conv1.weight"].shape == (20, 3, 3, 3)
    assert [state[f"layer{k}.1.conv2.weight"].shape[0] for k in range(1, 5)] == [20, 40, 80, 160]
    assert backbone(images(2)).shape == (2, 160)


@pytest.mark.parametrize(
    "build", [lambda seed: resnet18("cifar", 4, seed), lambda seed: mobilenet_v2(seed)]
)
def test_initial_weights(build: Any) -> None:
    before = torch.get_rng_state()
    first, again, other = build(3), build(torch.Generator().manual_seed(3)), build(4)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        if value.ndim == 4:
            assert not torch.equal(value, other.state_dict()[name]), name
            if value.numel() > 2000 and value.shape[1] > 1:  # the fan out, not that of each channel
                std = (2 / (value.shape[0] * value[0, 0].numel())) ** 0.5
                assert value.std().item() == pytest.approx(std, rel=0.1)
        elif name.endswith(("weight", "var")):
            assert (value == 1).all()
        else:
            assert (value == 0).all()


def test_every_parameter_has_a_gradient() -> None:
    for backbone in (resnet18("cifar", 2), resnet50("imagenet", 2), mobilenet_v2()):
        backbone(images(2)).square().sum().backward()
        for name, parameter in backbone.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    "bad", [torch.zeros(2, 8, 8, 3), torch.zeros(3, 8, 8), torch.zeros(2, 3, 8, 8).byte()]
)
def test_wrong_images(bad: Any) -> None:
    with pytest.raises(InvalidInput, match=r"\(b, 3, height, width\).*preprocess"):
        slim_resnet18()(bad)


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidInput, match=r"stem must be.*'imagenette'"):
        resnet18("imagenette")
    with pytest.raises(InvalidInput, match=r"width must be.*got 0"):
        resnet50(width=0)


# ---- weights


def torch_file(path: Path, state: Any, **options: Any) -> Path:
    torch.save(state, path, **options)
    return path


def tiny(seed: int = 0) -> Any:
    return resnet18("cifar", 2, seed)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors", "half", "old"])
def test_weights_load(tmp_path: Path, kind: str) -> None:
    source = randomize_batch_norms(tiny(1))
    state = OrderedDict(source.state_dict())
    state |= {"fc.weight": torch.zeros(10, 16), "fc.bias": torch.zeros(10)}
    path = tmp_path / "w.pth"
    if kind == "safetensors":
        path = tmp_path / "w.safetensors"
        save_file(dict(state), path)
    elif kind == "half":
        torch_file(path, {k: v.half() if v.is_floating_point() else v for k, v in state.items()})
    elif kind == "old":  # from before batch norms counted their updates
        torch_file(path, {k: v for k, v in state.items() if "num_batches" not in k})
    else:
        torch_file(path, state, _use_new_zipfile_serialization=kind == "zip")
        assert zipfile.is_zipfile(path) == (kind == "zip")
    backbone = tiny(2).eval()
    assert load_weights(backbone, path) is backbone
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if kind == "half" else {"rtol": 0, "atol": 0}
    with torch.no_grad():
        torch.testing.assert_close(backbone(images(2)), source(images(2)), **tolerance)
    assert backbone.conv1.weight.dtype == torch.float32


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    good = tiny(1).state_dict()
    fewer = {k: v for k, v in good.items() if not k.startswith("layer4.1")}
    renamed = {f"module.{k}": v for k, v in good.items()}
    for state, words in (
        (fewer, "missing: layer4.1.conv1.weight.*build the network"),
        (renamed, r"missing: conv1.weight.*\.\.\.; 120 unexpected: module.conv1.weight.*rename"),
        (good | {"extra": torch.zeros(1)}, "1 unexpected: extra;"),
        (resnet18("imagenet", 2).state_dict(), r"1 of another shape: conv1.weight \(2×3×7×7 in"),
        ({0: torch.zeros(1)}, "missing.*unexpected: 0"),
    ):
        backbone = tiny(2)
        with pytest.raises(InvalidInput, match=words) as error:
            load_weights(backbone, torch_file(tmp_path / "w.pth", state))
        assert str(tmp_path / "w.pth") in str(error.value)
        for name, value in tiny(2).state_dict().items():
            assert torch.equal(value, backbone.state_dict()[name])


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/kalstream-was-here",)


def test_files_without_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    for content, words in (
        ({"epoch": 3, "state_dict": tiny().state_dict()}, "got epoch, state_dict.*save only that"),
        ([torch.zeros(1)], "got list"),
        (Evil(), "without running code"),
    ):
        with pytest.raises(InvalidInput, match=words):
            load_weights(tiny(), torch_file(path, content))
    assert not Path("/tmp/kalstream-was-here").exists()
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidInput, match=r"w\.pth is not a state dict"):
        load_weights(tiny(), path)
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        load_weights(tiny(), path.rename(tmp_path / "w.safetensors"))
    for name in ("none.pth", "none.safetensors"):
        with pytest.raises(MissingFile, match=name):
            load_weights(tiny(), tmp_path / name)


# ---- pixels


def test_pixels_are_normalised() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    for mean, std in ((IMAGENET_MEAN, IMAGENET_STD), (CIFAR100_MEAN, CIFAR100_STD)):
        expected = ((pixels / 255 - mean) / std).transpose(0, 3, 1, 2)
        for given in (pixels, pixels[::-1][::-1], np.asfortranarray(pixels)):
            actual = preprocess(given, mean, std)
            assert actual.dtype == torch.float32
            assert actual.is_contiguous()
            np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-5)
    pixels.flags.writeable = False
    preprocess(pixels)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [11, 48])
def test_pixels_are_resized_like_pillow(size: int, interpolation: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    way = image.Resampling[interpolation.upper()]
    expected = [
        [
            np.asarray(image.fromarray(np.float32(p[..., k])).resize((size, size), way))
            for k in range(3)
        ]
        for p in pixels
    ]
    actual = preprocess(pixels, (0,) * 3, (1,) * 3, size, interpolation=interpolation)
    np.testing.assert_allclose(255 * actual.numpy(), expected, atol=0.01)


def test_wrong_pixels() -> None:
    good = np.zeros((2, 4, 4, 3), np.uint8)
    for bad in (good.astype(float), good[0], good.transpose(0, 3, 1, 2)):
        with pytest.raises(InvalidInput, match="uint8, got"):
            preprocess(bad)
    with pytest.raises(InvalidInput, match=r"size must be.*got 0"):
        preprocess(good, size=0)
    with pytest.raises(InvalidInput, match="got 'nearest'"):
        preprocess(good, size=8, interpolation="nearest")
    with pytest.raises(InvalidInput, match="std positive"):
        preprocess(good, std=(1.0, 1.0, 0.0))


# ---- networks of other libraries


class TimmLike(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_features, self.head_hidden_size = 4, 6
        self.pretrained_cfg = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
        self.head = nn.Linear(3, 6 + num_classes)

    def forward(self, x: Any) -> Any:
        return self.head(x.mean((2, 3)))


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, pretrained: bool, num_classes: int, **options: Any) -> Any:
        asked.update(name=name, pretrained=pretrained, **options)
        return TimmLike(num_classes)

    timm = ModuleType("timm")
    timm.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    backbone = from_timm("tiny.in1k", pretrained=False, drop_rate=0.1)
    assert asked == {"name": "tiny.in1k", "pretrained": False, "drop_rate": 0.1}
    assert backbone(images(2)).shape == (2, backbone.n_features) == (2, 6)
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.25,) * 3)
    backbone.model.head = nn.Linear(3, 5)
    with pytest.raises(InvalidInput, match=r"timm's tiny.in1k must return \(b, 6\), got \(2, 5\)"):
        backbone(images(2))


def heads() -> dict[str, tuple[str, Any, int]]:
    """Last layers of torchvision's networks: attribute, layers, features before the last layer."""
    return {
        "resnet": ("fc", nn.Linear(8, 10), 8),
        "mobilenet_v2": ("classifier", nn.Sequential(nn.Dropout(), nn.Linear(8, 10)), 8),
        "mobilenet_v3": (
            "classifier",
            nn.Sequential(nn.Linear(8, 12), nn.Hardswish(), nn.Dropout(), nn.Linear(12, 10)),
            12,
        ),
        "convnext": ("classifier", nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 10)), 8),
        "vit": ("heads", nn.Sequential(OrderedDict(head=nn.Linear(8, 10))), 8),
        "swin": ("head", nn.Linear(8, 10), 8),
    }


class TorchvisionLike(nn.Module):
    def __init__(self, name: str, end: Any) -> None:
        super().__init__()
        self.name = name
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.add_module(name, end)

    def forward(self, x: Any) -> Any:
        return getattr(self, self.name)(self.features(x))


@pytest.mark.parametrize("kind", list(heads()))
def test_torchvision(kind: str) -> None:
    name, end, n_features = heads()[kind]
    model = TorchvisionLike(name, end).eval()
    backbone = from_torchvision(model).eval()
    assert backbone.n_features == n_features
    with torch.no_grad():
        features, logits = backbone(images(2)), model(images(2))
        last = [m for m in end.modules() if isinstance(m, nn.Linear)][-1]
        torch.testing.assert_close(last(features), logits)


def test_torchvision_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_model(name: str, weights: Any) -> Any:
        asked.append((name, weights))
        return TorchvisionLike("fc", nn.Linear(8, 10))

    torchvision = ModuleType("torchvision")
    torchvision.models = SimpleNamespace(get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    assert from_torchvision("resnet18", "DEFAULT").n_features == 8
    assert asked == [("resnet18", "DEFAULT")]
    with pytest.raises(InvalidInput, match="Like has no linear layer"):
        from_torchvision(TorchvisionLike("classifier", nn.Conv1d(8, 10, 1)))
    with pytest.raises(InvalidInput, match="'DEFAULT' need the name"):
        from_torchvision(get_model("resnet18", None), "DEFAULT")


class TransformersLike(nn.Module):
    """Returns a fixed value and records its arguments."""

    def __init__(self, hidden: Any, **config: Any) -> None:
        super().__init__()
        self.hidden, self.config, self.asked = hidden, SimpleNamespace(**config), ()

    def forward(self, **inputs: Any) -> Any:
        self.asked = tuple(inputs)
        return SimpleNamespace(last_hidden_state=self.hidden)


def test_transformers_pooling() -> None:
    tokens = torch.arange(24.0).reshape(2, 3, 4)
    vit = TransformersLike(tokens, hidden_size=4)
    backbone = from_transformers(vit)
    assert torch.equal(backbone(images(2)), tokens[:, 0])
    assert (vit.asked, backbone.n_features) == (("pixel_values",), 4)
    backbone = from_transformers(vit, pooling="mean")
    assert torch.equal(backbone(torch.zeros(2, 3, dtype=torch.int64)), tokens.mean(1))
    assert vit.asked == ("input_ids",)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    actual = backbone({"input_ids": mask, "attention_mask": mask})
    assert torch.equal(actual, torch.stack([tokens[0, :2].mean(0), tokens[1, 0]]))
    assert repr(backbone) != repr(from_transformers(vit))

    maps = images(2).repeat(1, 2, 1, 1)
    convnext = TransformersLike(maps, hidden_sizes=[2, 6])
    backbone = from_transformers(convnext, "mean")
    torch.testing.assert_close(backbone(images(2)), maps.mean((2, 3)))
    for model, pooling, words in (
        (convnext, "cls", 'maps and no tokens; pass pooling="mean"'),
        (TransformersLike(None, hidden_size=4), "cls", "no last_hidden_state"),
    ):
        with pytest.raises(InvalidInput, match=words):
            from_transformers(model, pooling)(images(2))
    with pytest.raises(InvalidInput, match=r"no hidden_size.*vision_model"):
        from_transformers(TransformersLike(None))
    with pytest.raises(InvalidInput, match="'max'"):
        from_transformers(vit, "max")


def test_transformers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = ModuleType("transformers")
    model = TransformersLike(None, hidden_size=4)
    loader = SimpleNamespace(from_pretrained=lambda name: {"org/vit": model}[name])
    transformers.AutoModel = loader
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    assert from_transformers("org/vit").model is model


@pytest.mark.parametrize(
    ("build", "library"),
    [(from_timm, "timm"), (from_torchvision, "torchvision"), (from_transformers, "transformers")],
)
def test_missing_libraries(monkeypatch: pytest.MonkeyPatch, build: Any, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"kalstream\[{library}\]"):
        build("any")


# ---- real weights and features


def data() -> Path:
    if not os.environ.get("KALSTREAM_DATA"):
        pytest.skip("KALSTREAM_DATA is not set")
    path = Path(os.environ["KALSTREAM_DATA"])
    if not (path / "weights").is_dir():
        pytest.skip(f"no weights in {path}")
    return path


def test_real_weights_and_features(tmp_path: Path) -> None:
    """The published features equal ours (images resized bicubically), projected to 256 numbers."""
    from safetensors.numpy import load_file

    from kalstream.streams import Cifar100Stream

    path = data()
    pytest.importorskip("PIL")
    backbone = load_weights(mobilenet_v2(), path / "weights" / "mobilenet_v2-b0353104.pth").eval()
    pack = path / "cifar100" / "train-000-049.zip"
    unpack = [sys.executable, str(path / "cifar100" / "unpack"), str(tmp_path), str(pack)]
    subprocess.run(unpack, check=True, capture_output=True)
    stream = Cifar100Stream(tmp_path)
    (embedded,) = (path / "embeddings").glob("*.safetensors")
    published = load_file(embedded)
    picked = np.arange(97, 25_000, 250)  # 100 images, of 50 classes
    order = np.argsort(stream._rows)  # the stream is shuffled, the published features are not
    pixels = np.concatenate([batch.rows for batch in stream.batches()])[order][picked]
    labels = np.concatenate([batch.targets for batch in stream.batches()])[order][picked]
    assert np.array_equal(labels.astype(int), published["labels"][picked])
    with torch.inference_mode():
        mine = backbone(preprocess(pixels, size=160, interpolation="bicubic")).double().numpy()
    theirs = published["features"][picked].astype(float)
    gram = [(x - x.mean(0)) @ (x - x.mean(0)).T for x in (mine, theirs)]
    pairs = np.triu_indices(len(picked), 1)
    assert np.corrcoef(gram[0][pairs], gram[1][pairs])[0, 1] > 0.995
