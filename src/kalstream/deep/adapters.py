"""Use networks of timm, torchvision and transformers as backbones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kalstream._optional import require
from kalstream.errors import InvalidInput


def from_timm(name: str, pretrained: bool = True, **options: Any) -> nn.Module:
    """A network of timm, without its classifier.

    Parameters
    ----------
    name : str
        Such as ``"resnet50.a1_in1k"``, or ``"hf_hub:..."``.
    pretrained : bool
        With pretrained weights, which timm downloads or finds in its cache, or with random ones.
    **options
        Options of ``timm.create_model``.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width) to features (b, n_features). It has the attributes
        ``n_features`` and, if timm knows them, ``mean`` and ``std`` of its pixels, which `embed`
        uses.

    Examples
    --------
    >>> network = from_timm("resnet18", pretrained=False)  # doctest: +SKIP
    >>> network.n_features  # doctest: +SKIP
    512
    """
    timm = require("timm", "timm")
    model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    # size of the output without classifier; some networks keep a layer of their head
    n_features = getattr(model, "head_hidden_size", None) or model.num_features
    adapter = _CheckedNetwork(model, n_features, f"timm's {name}")
    known = getattr(model, "pretrained_cfg", None) or {}
    if "mean" in known and "std" in known:
        adapter.mean, adapter.std = tuple(known["mean"]), tuple(known["std"])
    return adapter


def from_torchvision(model: nn.Module | str, weights: Any = None) -> nn.Module:
    """A classifier of torchvision, without its last layer.

    Parameters
    ----------
    model : nn.Module or str
        A model of ``torchvision.models``, which is copied, or a name such as ``"convnext_tiny"``.
    weights
        With a name: the weights that torchvision loads, such as ``"DEFAULT"``.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width) to features (b, n_features).

    Examples
    --------
    It takes any network whose last layer is named as in torchvision:

    >>> class Small(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 1000)
    ...
    ...     def forward(self, images):
    ...         return self.fc(self.body(images).flatten(1))
    >>> network = from_torchvision(Small())
    >>> network(torch.zeros(2, 3, 8, 8)).shape, network.n_features
    (torch.Size([2, 3]), 3)
    """
    if isinstance(model, str):
        network = require("torchvision", "torchvision").models.get_model(model, weights=weights)
    elif weights is not None:
        raise InvalidInput(
            f"weights={weights!r} need the name of a model, got a model; load them into it first"
        )
    else:
        network = copy.deepcopy(model)
    what = f"torchvision's {type(network).__name__}"
    for name, layer in reversed(list(network.named_modules())):
        if isinstance(layer, nn.Linear) and name.startswith(("fc", "classifier", "head")):
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, nn.Identity())
            return _CheckedNetwork(network, layer.in_features, what)
    raise InvalidInput(
        f"{what} has no linear layer in fc, classifier, heads or head to remove; pass a module of "
        "your own that returns features (b, n_features)"
    )


def from_transformers(model: nn.Module | str, pooling: str = "cls") -> nn.Module:
    """An encoder of transformers, with its tokens pooled.

    Parameters
    ----------
    model : nn.Module or str
        A model with ``last_hidden_state``, such as ``ViTModel`` or ``BertModel``, or a name for
        ``AutoModel.from_pretrained``.
    pooling : "cls" or "mean"
        The first token, or the mean over all tokens that the attention mask keeps. A network with
        feature maps in place of tokens needs "mean", which averages over all positions.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width), token ids (b, n), or the output of a processor of
        transformers, to features (b, n_features).

    Examples
    --------
    ``from_transformers("bert-base-uncased")`` loads a network by its name. A network of your own
    needs a config, and returns its tokens:

    >>> from types import SimpleNamespace
    >>> class Small(nn.Module):
    ...     config = SimpleNamespace(hidden_size=4)
    ...
    ...     def forward(self, input_ids):
    ...         return SimpleNamespace(last_hidden_state=torch.ones(*input_ids.shape, 4))
    >>> network = from_transformers(Small(), pooling="mean")
    >>> network(torch.zeros(2, 7, dtype=torch.int64)).shape, network.n_features
    (torch.Size([2, 4]), 4)
    """
    if pooling not in ("cls", "mean"):
        raise InvalidInput(f'pooling must be "cls" or "mean", got {pooling!r}')
    if isinstance(model, str):
        network = require("transformers", "transformers").AutoModel.from_pretrained(model)
    else:
        network = model
    what = f"transformers' {type(network).__name__}"
    config: Any = network.config
    sizes = getattr(config, "hidden_sizes", None) or [None]
    n_features = getattr(config, "hidden_size", None) or sizes[-1]
    if n_features is None:
        raise InvalidInput(
            f"{what} has no hidden_size in its config; pass its encoder instead, such as its "
            "vision_model"
        )
    return _Pooled(network, n_features, what, pooling)


class _CheckedNetwork(nn.Module):
    """A network whose output is checked to be (b, n_features)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __init__(self, model: nn.Module, n_features: int, what: str) -> None:
        super().__init__()
        self.model, self.n_features, self.what = model, int(n_features), what

    def forward(self, inputs: Any) -> torch.Tensor:
        features = self._features(inputs)
        shape = tuple(getattr(features, "shape", ()))
        if len(shape) != 2 or shape[1] != self.n_features:
            raise InvalidInput(
                f"{self.what} must return (b, {self.n_features}), got "
                f"{shape or type(features).__name__}; it needs pooling, or eval() if it has "
                "auxiliary outputs"
            )
        return features

    def _features(self, inputs: Any) -> Any:
        return self.model(inputs)


class _Pooled(_CheckedNetwork):
    """An encoder whose tokens or feature maps are pooled."""

    def __init__(self, model: nn.Module, n_features: int, what: str, pooling: str) -> None:
        super().__init__(model, n_features, what)
        self.pooling = pooling

    def extra_repr(self) -> str:
        return f"pooling={self.pooling!r}"

    def _features(self, inputs: Any) -> torch.Tensor:
        if not isinstance(inputs, Mapping):
            inputs = {"pixel_values" if inputs.is_floating_point() else "input_ids": inputs}
        hidden = getattr(self.model(**inputs), "last_hidden_state", None)
        if hidden is None:
            raise InvalidInput(
                f"{self.what} returns no last_hidden_state; pass a model without a task head, such "
                "as AutoModel loads"
            )
        if hidden.ndim == 4:  # (b, n_features, height, width)
            if self.pooling == "cls":
                raise InvalidInput(
                    f'{self.what} has feature maps and no tokens; pass pooling="mean"'
                )
            return hidden.mean((2, 3))
        if self.pooling == "cls":
            return hidden[:, 0]  # (b, tokens, n_features)
        mask = inputs.get("attention_mask")
        if mask is None:
            return hidden.mean(1)
        weights = mask.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
