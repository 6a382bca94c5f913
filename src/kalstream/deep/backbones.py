"""ResNets and MobileNetV2 without classifier; weight files and preprocessing."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from kalstream.errors import InvalidInput, MissingFile

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

# MobileNetV2 (table 2 of its paper): expansion, channels, blocks, stride of the first block
_MOBILE = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_CLASSIFIER = ("fc.", "classifier.")
_SHOWN = 3

_CUT_STD = 0.8796256610342398  # of a standard normal truncated to [-2, 2]


def resnet18(
    stem: str = "imagenet",
    width: int = 64,
    seed: int | torch.Generator = 0,
    *,
    init: str = "kaiming",
    zero_residual: bool = False,
) -> Backbone:
    """ResNet-18 without its classifier.

    Parameters
    ----------
    stem : "imagenet" or "cifar"
        "imagenet" is a 7×7 convolution of stride 2 and a max pool, for images of 100 pixels or
        more. "cifar" is a 3×3 convolution of stride 1, for smaller images.
    width : int
        Channels of the first stage; there are 8 times as many features. Weight files need 64.
    seed : int or torch.Generator
        Seed of the initial weights.
    init : "kaiming" or "lecun"
        Standard deviation of the initial weights. "kaiming" is sqrt(2 / outgoing connections), as
        in torchvision. "lecun" is sqrt(1 / incoming connections), truncated at two standard
        deviations, as in JAX's libraries.
    zero_residual : bool
        Start the last scale of each residual branch at 0, so that only blocks which change the size
        have an effect at first.

    Returns
    -------
    Backbone
        On the CPU, in training mode, with the parameter names of torchvision.

    Examples
    --------
    >>> backbone = resnet18(stem="cifar", width=4)
    >>> backbone(torch.zeros(2, 3, 8, 8)).shape, backbone.n_features
    (torch.Size([2, 32]), 32)
    """
    return _ResNet((2, 2, 2, 2), False, stem, width, seed, init, zero_residual)


def resnet50(
    stem: str = "imagenet",
    width: int = 64,
    seed: int | torch.Generator = 0,
    *,
    init: str = "kaiming",
    zero_residual: bool = False,
) -> Backbone:
    """ResNet-50 without its classifier; as in torchvision, the 3×3 convolutions have the stride.

    Parameters
    ----------
    stem, width, seed, init, zero_residual
        As for `resnet18`; there are 32 times as many features as ``width``.

    Examples
    --------
    >>> resnet50(stem="cifar", width=4)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 128])
    """
    return _ResNet((3, 4, 6, 3), True, stem, width, seed, init, zero_residual)


def slim_resnet18(
    stem: str = "cifar", seed: int | torch.Generator = 0, **initial_weights: Any
) -> Backbone:
    """ResNet-18 with 20, 40, 80 and 160 channels, common in continual learning.

    Parameters
    ----------
    stem, seed, **initial_weights
        As for `resnet18`.

    Examples
    --------
    >>> slim_resnet18().n_features
    160
    """
    return resnet18(stem, 20, seed, **initial_weights)


def mobilenet_v2(seed: int | torch.Generator = 0) -> Backbone:
    """MobileNetV2 without its classifier.

    Parameters
    ----------
    seed
        As for `resnet18`.

    Examples
    --------
    >>> mobilenet_v2().eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 1280])
    """
    return _MobileNetV2(seed)


class Backbone(nn.Module, ABC):
    """Maps images (b, 3, height, width), float, to features (b, n_features).

    Attributes
    ----------
    n_features : int

    Examples
    --------
    >>> backbone = resnet18(stem="cifar", width=4)
    >>> isinstance(backbone, Backbone), backbone.n_features
    (True, 32)
    >>> backbone(torch.zeros(2, 8, 8, 3, dtype=torch.uint8))
    Traceback (most recent call last):
    kalstream.errors.InvalidInput: images must be (b, 3, height, width), float, ...
    """

    n_features: int

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features of images, averaged over all positions."""
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise InvalidInput(
                f"images must be (b, 3, height, width), float, got {tuple(images.shape)} of "
                f"{images.dtype}; preprocess() converts images (b, height, width, 3), uint8"
            )
        return self._maps(images).mean((2, 3))  # (b, n_features)

    @abstractmethod
    def _maps(self, images: torch.Tensor) -> torch.Tensor:
        """The last feature maps (b, n_features, h, w)."""

    def _initialise(self, seed: int | torch.Generator, init: str = "kaiming") -> None:
        """Allocate the weights and draw them, without using torch's global generator."""
        if init not in ("kaiming", "lecun"):
            raise InvalidInput(f'init must be "kaiming" or "lecun", got {init!r}')
        generator = (
            seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        )
        self.to_empty(device="cpu")
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and init == "lecun":
                std = module.weight[0].numel() ** -0.5
                wide = std / _CUT_STD
                nn.init.trunc_normal_(
                    module.weight, 0.0, wide, -2.0 * wide, 2.0 * wide, generator=generator
                )
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()


class _ResNet(Backbone):
    def __init__(
        self,
        blocks: tuple[int, ...],
        bottleneck: bool,
        stem: str,
        width: int,
        seed: int | torch.Generator,
        init: str,
        zero_residual: bool,
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "cifar"):
            raise InvalidInput(f'stem must be "imagenet" or "cifar", got {stem!r}')
        if width < 1:
            raise InvalidInput(f"width must be a positive number of channels, got {width}")
        with torch.device("meta"):
            large = stem == "imagenet"
            self.conv1 = _conv(3, width, 7 if large else 3, 2 if large else 1)
            self.bn1 = nn.BatchNorm2d(width)
            self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
            n_in = width
            for stage, n in enumerate(blocks):
                layer = nn.Sequential()
                for k in range(n):
                    stride = 2 if stage and not k else 1
                    layer.append(_Residual(n_in, width << stage, stride, bottleneck))
                    n_in = (width << stage) * (4 if bottleneck else 1)
                self.add_module(f"layer{stage + 1}", layer)
        self.n_features, self.n_stages = n_in, len(blocks)
        self._initialise(seed, init)
        for block in self.modules() if zero_residual else ():
            if isinstance(block, _Residual):
                nn.init.zeros_(getattr(block, f"bn{block.depth}").weight)

    def _maps(self, images: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(images)), inplace=True))
        for stage in range(self.n_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x


class _Residual(nn.Module):
    """Two 3×3 convolutions, or 1×1, 3×3 and 1×1, with a skip connection."""

    def __init__(self, n_in: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        n_out = 4 * width if bottleneck else width
        if bottleneck:
            plan = [(n_in, width, 1, 1), (width, width, 3, stride), (width, n_out, 1, 1)]
        else:
            plan = [(n_in, width, 3, stride), (width, width, 3, 1)]
        for k, (before, after, kernel, step) in enumerate(plan, 1):
            self.add_module(f"conv{k}", _conv(before, after, kernel, step))
            self.add_module(f"bn{k}", nn.BatchNorm2d(after))
        self.depth = len(plan)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = self.downsample(x)
        for k in range(1, self.depth + 1):
            x = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(x))
            if k < self.depth:
                x = functional.relu(x, inplace=True)
        return functional.relu(x + around, inplace=True)


class _MobileNetV2(Backbone):
    def __init__(self, seed: int | torch.Generator) -> None:
        super().__init__()
        with torch.device("meta"):
            self.features = nn.Sequential(_conv_relu(3, 32, 3, 2))
            n_in = 32
            for expansion, n_out, n, stride in _MOBILE:
                for k in range(n):
                    block = _Inverted(n_in, n_out, 1 if k else stride, expansion)
                    self.features.append(block)
                    n_in = n_out
            self.n_features = 1280
            self.features.append(_conv_relu(n_in, self.n_features, 1))
        self._initialise(seed)

    def _maps(self, images: torch.Tensor) -> torch.Tensor:
        return self.features(images)


class _Inverted(nn.Module):
    """Expand channels, convolve each with 3×3, reduce channels; with a skip connection."""

    def __init__(self, n_in: int, n_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        n = n_in * expansion
        self.around = stride == 1 and n_in == n_out
        self.conv = nn.Sequential(
            *([_conv_relu(n_in, n, 1)] if expansion > 1 else []),
            _conv_relu(n, n, 3, stride, n),
            _conv(n, n_out, 1),
            nn.BatchNorm2d(n_out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.around else self.conv(x)


def _conv(n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=False)


def _conv_relu(
    n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = _conv(n_in, n_out, kernel, stride, groups)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU6(inplace=True))


def load_weights(backbone: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Load pretrained weights, such as torchvision's.

    Parameters
    ----------
    backbone : nn.Module
        Unchanged if the file does not fit.
    path : path
        A state dict as `torch.save` writes it, or a ``.safetensors``. No code in it is run.

    Returns
    -------
    nn.Module
        The backbone itself.

    Raises
    ------
    InvalidInput
        If a parameter is missing, has another shape, or is not one of the backbone's. Parameters of
        a classifier, ``fc.*`` and ``classifier.*``, are ignored. Counters of batches
        (``num_batches_tracked``) may be missing, as in old files.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> backbone = resnet18(stem="cifar", width=4, seed=1)
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "weights.pth"
    ...     torch.save(resnet18(stem="cifar", width=4, seed=2).state_dict(), path)
    ...     _ = load_weights(backbone, path)
    >>> torch.equal(backbone.conv1.weight, resnet18(stem="cifar", width=4, seed=2).conv1.weight)
    True
    """
    path = Path(path)
    loaded, wanted = read_weights(path), backbone.state_dict()
    loaded = {k: v for k, v in loaded.items() if k in wanted or not str(k).startswith(_CLASSIFIER)}
    problems = {
        "missing": [
            name for name in wanted if name not in loaded and "num_batches_tracked" not in name
        ],
        "unexpected": [str(name) for name in loaded if name not in wanted],
        "of another shape": [
            f"{name} ({_shape(loaded[name])} in the file, {_shape(wanted[name])} in the backbone)"
            for name in wanted
            if name in loaded and loaded[name].shape != wanted[name].shape
        ],
    }
    if any(problems.values()):
        named = (
            f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}"
            for what, names in problems.items()
            if names
        )
        raise InvalidInput(
            f"{path} does not fit {type(backbone).__name__.lstrip('_')}: {'; '.join(named)}; "
            "build the network of the file (depth, stem and width are arguments), or rename the "
            "parameters that differ only in their names"
        )
    backbone.load_state_dict(loaded, strict=False)
    return backbone


def _shape(tensor: torch.Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name, from a state dict or a ``.safetensors``; no code in the file is run.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "weights.pth"
    ...     torch.save({"fc.weight": torch.ones(2, 3)}, path)
    ...     {name: tuple(tensor.shape) for name, tensor in read_weights(path).items()}
    {'fc.weight': (2, 3)}
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            mapped = zipfile.is_zipfile(file)  # torch before 1.6 wrote another format
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError as error:
        raise MissingFile(f"no weight file {path}; check the path") from error
    except SafetensorError as error:
        raise InvalidInput(f"{path} is not a safetensors file: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise InvalidInput(  # torch's own message advises running the code in it
            f"{path} is not a state dict that can be loaded without running code "
            f"({type(error).__name__}); save one with torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        got = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise InvalidInput(
            f"{path} must hold only tensors by name, got {got[:200]}; if one of these is the state "
            "dict, save only that with torch.save"
        )
    return state


def preprocess(
    images: ArrayLike,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
    size: int | None = None,
    device: str | torch.device = "cpu",
    *,
    interpolation: str = "bilinear",
) -> torch.Tensor:
    """Convert images of streams into inputs of backbones.

    Parameters
    ----------
    images : (b, height, width, 3)
        uint8.
    mean, std : 3 numbers
        Mean and standard deviation of each channel, for values from 0 to 1, with which the weights
        were trained.
    size : int, optional
        Resize to (size, size), antialiased.
    device
        Device of the backbone.
    interpolation : "bilinear" or "bicubic"
        How to resize.

    Returns
    -------
    torch.Tensor
        (b, 3, height, width) or (b, 3, size, size), float32.

    Examples
    --------
    >>> preprocess(np.zeros((2, 32, 32, 3), np.uint8), size=64).shape
    torch.Size([2, 3, 64, 64])
    """
    array = np.asarray(images)
    if array.ndim != 4 or array.shape[3] != 3 or array.dtype != np.uint8:
        raise InvalidInput(
            f"images must be (b, height, width, 3), uint8, got {array.shape} of {array.dtype}"
        )
    if size is not None and size < 1:
        raise InvalidInput(f"size must be a positive number of pixels, got {size}")
    if interpolation not in ("bilinear", "bicubic"):
        raise InvalidInput(f'interpolation must be "bilinear" or "bicubic", got {interpolation!r}')
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise InvalidInput(
            f"mean and std must be 3 numbers each, std positive, got mean={mean}, std={std}"
        )
    if not array.flags.writeable or min(array.strides) < 0:
        array = array.copy()  # torch cannot wrap other arrays
    pixels = torch.from_numpy(array).to(device).permute(0, 3, 1, 2)
    scaled = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    for k in range(3):
        scaled[:, k].sub_(255 * mean[k]).div_(255 * std[k])
    if size is not None and scaled.shape[2:] != (size, size):
        scaled = functional.interpolate(scaled, (size, size), mode=interpolation, antialias=True)
    return scaled
