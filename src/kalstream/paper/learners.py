"""Make a learner from the options of an experiment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from kalstream.baselines import ACE, ExperienceReplay, OnlineSGD, SoftmaxHead
from kalstream.deep import (
    CrossEntropy,
    Frozen,
    KalmanHead,
    Learner,
    MixtureHead,
    OnlineLearner,
    RecentMemory,
    ReplayStreams,
    Stack,
)
from kalstream.deep import backbones as networks
from kalstream.deep.backbones import CIFAR100_MEAN, CIFAR100_STD
from kalstream.errors import InvalidInput

BASELINES: Final = {"sgd": OnlineSGD, "er": ExperienceReplay, "ace": ACE}
_OF_NETWORK: Final = ("stem", "init", "zero_residual")
_OF_STREAM: Final = ("transition", "bias", "normalize")
_OF_HEAD: Final = (
    *(*_OF_STREAM, "gamma", "gamma_lr", "likelihood", "predictive", "n_samples", "calibration"),
)
_OF_STACK: Final = ("decays", "gammas", "layers", "prior_var")

_Reader = Callable[[int], tuple[Tensor, Tensor]]


def make(
    options: Mapping[str, Any],
    n_classes: int,
    seed: int,
    device: str,
    again: _Reader | None = None,
) -> Learner:
    """Make a new learner.

    Parameters
    ----------
    options : mapping
        learner ("kalman", "stack", "sgd", "er", "ace"), backbone, and the options of these.
        replay is "recent", "streams" or "none"; ``last`` trains only the last modules of the
        network.
    n_classes, seed : int
    device : str
    again : function, optional
        Reads the k-th chunk of the stream again, where not all chunks fit into memory.
    """
    options = dict(options)
    kind = options.pop("learner")
    backbone = _backbone(options, seed)
    shared: dict[str, Any] = {
        "batch_norm": options.pop("batch_norm", "eval"),
        "device": device,
        "replay": _replay(kind, options, seed, again),
        "autocast": torch.bfloat16 if options.pop("autocast", False) and device != "cpu" else None,
        "optimizer": _optimizer(options),
    }
    torch.manual_seed(seed)
    if kind == "stack":
        return _stack(options, backbone, n_classes, seed, shared)
    if kind == "kalman":
        head = _kalman_head(options, backbone.n_features, n_classes)
        return OnlineLearner(backbone, head, **shared, **options)
    if kind not in BASELINES:
        names = ", ".join(("kalman", "stack", *BASELINES))
        raise InvalidInput(f"learner must be one of {names}, got {kind!r}")
    _pop(options, _OF_STREAM)  # these are for a Kalman head
    optimizer = partial(shared.pop("optimizer"), lr=options.pop("lr"))
    softmax = SoftmaxHead(backbone.n_features, n_classes)
    return BASELINES[kind](backbone, softmax, **shared, optimizer=optimizer, seed=seed, **options)


def _stack(
    options: dict[str, Any], backbone: Any, n_classes: int, seed: int, shared: dict[str, Any]
) -> Learner:
    """A stack, and a network that is trained by cross-entropy or, with ``tune = false``, frozen."""
    _pop(options, _OF_STREAM)  # these are for a Kalman head
    head = Stack(backbone.n_features, n_classes, **_pop(options, _OF_STACK))
    optimizer, replay = shared.pop("optimizer"), shared.pop("replay")
    if not options.pop("tune", True):
        return Learner(backbone, head, Frozen(), **shared, **options)
    own = _pop(options, ("n_steps", "flip", "shift", "spare_past"))
    optimizer = partial(optimizer, lr=options.pop("lr"))
    training = CrossEntropy(optimizer=optimizer, replay=replay, seed=seed, **own)
    return Learner(backbone, head, training, **shared, **options)


def _kalman_head(
    options: dict[str, Any], n_features: int, n_classes: int
) -> KalmanHead | MixtureHead:
    """The Kalman head, whose options are removed."""
    m = n_features + int(options.get("bias", False))
    softmax = options.get("likelihood") == "softmax"  # its weights make logits
    usual = (100.0 if options.get("normalize") else 100.0 / m) if softmax else 1.0 / m
    mixes = options.pop("mixture", False)
    head = (MixtureHead if mixes else KalmanHead)(
        n_features,
        n_classes,
        prior_var=options.pop("prior_scale", 1.0) * usual,
        dtype=getattr(torch, options.pop("dtype", "float64")),
        **_pop(options, _OF_HEAD),
    )
    head.log_calibration.requires_grad_(options.pop("calibrate", True))
    return head


def _backbone(options: dict[str, Any], seed: int) -> Any:
    """The network, whose options are removed."""
    name, own = options.pop("backbone"), _pop(options, _OF_NETWORK)
    weights, width = options.pop("weights", None), options.pop("width", None)
    size, last = options.pop("size", None), options.pop("last", None)
    if width is not None:
        own["width"] = width
    if name.startswith("resnet"):
        own.setdefault("stem", "cifar")
    else:
        own = {}
    network = copy.deepcopy(_network(name, seed, tuple(own.items())))
    if weights is not None:
        network = networks.load_weights(network, weights)
    if last is not None:
        _train_last(network, last)
    return network if size is None else _Enlarged(network, size)


def _train_last(network: nn.Module, n: int) -> None:
    """Train only the last ``n`` modules of the network, those of a sequence counted singly."""
    modules = [
        part
        for child in network.children()
        for part in (child if isinstance(child, nn.Sequential) else [child])
    ]
    network.requires_grad_(False)
    for module in modules[-n:]:
        module.requires_grad_(True)


@lru_cache(maxsize=8)
def _network(name: str, seed: int, own: tuple[tuple[str, Any], ...]) -> Any:
    """A network with its initial weights, which are slow to draw."""
    return getattr(networks, name)(seed=seed, **dict(own))


class _Enlarged(nn.Module):
    """A network trained on ImageNet, for small images that are scaled as those of CIFAR."""

    factor: Tensor
    offset: Tensor

    def __init__(self, network: Any, size: int) -> None:
        super().__init__()
        self.network, self.size, self.n_features = network, size, network.n_features
        mean, std = torch.tensor(networks.IMAGENET_MEAN), torch.tensor(networks.IMAGENET_STD)
        cifar_mean, cifar_std = torch.tensor(CIFAR100_MEAN), torch.tensor(CIFAR100_STD)
        self.register_buffer("factor", (cifar_std / std)[:, None, None])
        self.register_buffer("offset", ((cifar_mean - mean) / std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        large = nn.functional.interpolate(images, (self.size, self.size), mode="bicubic")
        return self.network(large * self.factor + self.offset)


def _optimizer(options: dict[str, Any]) -> Callable[..., torch.optim.Optimizer]:
    name = options.pop("optimizer", "sgd")
    own = _pop(options, ("momentum", "weight_decay"))
    return partial({"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name], **own)


def _replay(
    kind: str, options: dict[str, Any], seed: int, again: _Reader | None
) -> RecentMemory | ReplayStreams | None:
    recent = kind == "stack" or getattr(BASELINES.get(kind), "replays", None) is RecentMemory
    name = options.pop("replay", "recent" if recent else None)
    size, draw = options.pop("memory", (100, 10))
    if name == "streams":
        return ReplayStreams(8, seed, again)
    flip = kind == "kalman" and options.pop("flip", False)  # baselines mirror new rows too
    return RecentMemory(size, draw, seed, flip=flip) if name == "recent" else None


def _pop(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Remove options and return them."""
    return {name: options.pop(name) for name in names if name in options}
