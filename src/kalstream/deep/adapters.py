"""Networks of timm, torchvision and transformers as backbones: inputs to (b, n_features)."""

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
        With weights, which timm fetches or finds in its cache; or with random ones.
    **options
        Of ``timm.create_model``.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width) to features, and has ``n_features``, and ``mean`` and
        ``std`` of its pixels where timm knows them, which `embed` uses.
    """
    timm = require("timm", "timm")
    model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    # what comes out without classifier; in some networks a layer of the head is left
    n_features = getattr(model, "head_hidden_size", None) or model.num_features
    adapter = _Adapter(model, n_features, f"timm's {name}")
    known = getattr(model, "pretrained_cfg", None) or {}
    if "mean" in known and "std" in known:
        adapter.mean, adapter.std = tuple(known["mean"]), tuple(known["std"])
    return adapter


def from_torchvision(model: nn.Module | str, weights: Any = None) -> nn.Module:
    """A classifier of torchvision, without the last layer.

    Parameters
    ----------
    model : nn.Module or str
        One of ``torchvision.models``, of which a copy is made; or a name, such as
        ``"convnext_tiny"``.
    weights
        With a name: those that torchvision loads, such as ``"DEFAULT"``.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width) to features, and has ``n_features``.
    """
    if isinstance(model, str):
        model = require("torchvision", "torchvision").models.get_model(model, weights=weights)
    elif weights is not None:
        raise InvalidInput(f"weights go with the name of a model, got {weights!r} and a model")
    else:
        model = copy.deepcopy(model)
    what = f"torchvision's {type(model).__name__}"
    for name, layer in reversed(list(model.named_modules())):
        if isinstance(layer, nn.Linear) and name.startswith(("fc", "classifier", "head")):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
            return _Adapter(model, layer.in_features, what)
    raise InvalidInput(
        f"{what} has no linear layer in fc, classifier, heads or head that could be left out; "
        "give a module of your own with n_features instead"
    )


def from_transformers(model: nn.Module | str, pooling: str = "cls") -> nn.Module:
    """An encoder of transformers, its tokens pooled.

    Parameters
    ----------
    model : nn.Module or str
        One with ``last_hidden_state``, such as a ``ViTModel`` or ``BertModel``; or a name, which
        ``AutoModel.from_pretrained`` loads.
    pooling : "cls" or "mean"
        The first token; or the mean of all, of those alone that the attention mask keeps; of a
        network with maps instead of tokens, over all places.

    Returns
    -------
    nn.Module
        Maps images (b, 3, height, width), ids of tokens (b, n), or what a processor of
        transformers returned, to features, and has ``n_features``.
    """
    if pooling not in ("cls", "mean"):
        raise InvalidInput(f'pooling must be "cls" or "mean", got {pooling!r}')
    if isinstance(model, str):
        model = require("transformers", "transformers").AutoModel.from_pretrained(model)
    what = f"transformers' {type(model).__name__}"
    sizes = getattr(model.config, "hidden_sizes", None) or [None]
    n_features = getattr(model.config, "hidden_size", None) or sizes[-1]
    if n_features is None:
        raise InvalidInput(
            f"{what} has no hidden_size in its config; give the part of it that encodes, "
            "such as its vision_model"
        )
    return _Pooled(model, n_features, what, pooling)


class _Adapter(nn.Module):
    def __init__(self, model: nn.Module, n_features: int, what: str) -> None:
        super().__init__()
        self.model, self.n_features, self.what = model, int(n_features), what

    def forward(self, inputs: Any) -> torch.Tensor:
        features = self._features(inputs)
        found = tuple(getattr(features, "shape", ()))
        if len(found) != 2 or found[1] != self.n_features:
            raise InvalidInput(
                f"{self.what} must give (b, {self.n_features}), got "
                f"{found or type(features).__name__}; it needs pooling, or eval() if it has "
                "auxiliary outputs"
            )
        return features

    def _features(self, inputs: Any) -> Any:
        return self.model(inputs)


class _Pooled(_Adapter):
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
                f"{self.what} gives no last_hidden_state; give a model without a task's head, "
                "such as AutoModel's"
            )
        if hidden.ndim == 4:  # (b, n_features, height, width)
            if self.pooling == "cls":
                raise InvalidInput(f'{self.what} has maps, no tokens; give pooling="mean"')
            return hidden.mean((2, 3))
        if self.pooling == "cls":
            return hidden[:, 0]  # (b, tokens, n_features)
        mask = inputs.get("attention_mask")
        if mask is None:
            return hidden.mean(1)
        weights = mask.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
