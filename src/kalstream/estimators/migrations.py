"""The format of checkpoints, and how trees of earlier formats become those of the current one.

A tree is what `checkpoint` describes: JSON in which arrays are in their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any, Final

import numpy as np

from kalstream.core.judging import Kept
from kalstream.estimators._soundness import need

FORMAT: Final = 10


def _everywhere(tree: Any, tag: str, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The tree, with ``change`` applied to the parts of every object that has this tag."""
    if isinstance(tree, list):
        return [_everywhere(each, tag, change) for each in tree]
    if not isinstance(tree, dict):
        return tree
    tree = {key: _everywhere(each, tag, change) for key, each in tree.items()}
    return change(tree[tag]) if tag in tree else tree


def _with_average(parts: dict[str, Any]) -> dict[str, Any]:
    """Format 3: Watch.numbers has an average at its end."""
    return {"Watch": parts | {"numbers": np.append(parts["numbers"], 0.0)}}


def _by_task(tree: Any) -> Any:
    """Format 4: a model holds what is known of its own task only, and the step of a bank."""
    flat = []
    for key, fitted in tree.get("@dict", ()) if isinstance(tree, dict) else ():
        if key == "fitted":
            flat = [value for name, value in fitted["@dict"] if name == "_flat"]
            fitted["@dict"] = [pair for pair in fitted["@dict"] if pair[0] != "_flat"]

    def model(parts: dict[str, Any]) -> dict[str, Any]:
        known = ("labels", "counts", "stack", "ordered", "offset", "spread", "told")
        old = {name: parts.pop(name, None) for name in known}
        if flat:
            targets = {"offset": old["offset"], "spread": old["spread"], "flat": flat[0]}
            parts["targets"] = {"Values": targets}
        else:
            names = ("labels", "counts", "stack", "ordered")
            parts["targets"] = {"Classes": {name: old[name] for name in names}}
        return {"Model": parts | {"last_step": old["told"]}}

    def bank(parts: dict[str, Any]) -> dict[str, Any]:
        return {"Bank": {"stored" if key == "stack" else key: v for key, v in parts.items()}}

    def step(parts: dict[str, Any]) -> dict[str, Any]:
        each = ("logit_mean", "logit_var", "gamma", "nis")
        arrays = {name: parts[name][None] for name in each}
        return {"BankStep": arrays | {"noise_var": parts["noise_var"]}}

    def mixture(parts: dict[str, Any]) -> dict[str, Any]:
        return {"MixtureState": parts | {"log_weights": _normalised(parts["log_weights"])}}

    changes = {"Model": model, "Bank": bank, "Step": step, "MixtureState": mixture}
    for tag, change in changes.items():
        tree = _everywhere(tree, tag, change)
    return tree


def _normalised(log_weights: Any) -> Any:
    """Log-weights that sum to 1: those of version 0.1 may not, after an outlier."""
    need(isinstance(log_weights, np.ndarray), "MixtureState.log_weights", "an array")
    need(log_weights.dtype == np.float64, "MixtureState.log_weights", "float64")
    need(
        log_weights.size and not np.isnan(log_weights).any(), "MixtureState.log_weights", "numbers"
    )
    top = log_weights.max()
    need(np.isfinite(top), "MixtureState.log_weights", "finite somewhere")
    total = np.log(np.exp(log_weights - top).sum())
    return log_weights if abs(top + total) < 1e-9 else log_weights - top - total


def _with_likelihood(tree: Any) -> Any:
    """Format 5: a classifier says how it observes labels, and each filter has its own noise.

    The scaling before waves has a half-life, and the watch gathers evidence for a change.
    """
    classifies = False

    def classes(parts: dict[str, Any]) -> dict[str, Any]:
        nonlocal classifies
        classifies = True
        return {"Classes": parts}

    def step(parts: dict[str, Any]) -> dict[str, Any]:
        noise, nis = parts["noise_var"], parts["nis"]
        need(isinstance(nis, np.ndarray) and nis.ndim == 2, "last_step.nis", "of two dimensions")
        need(np.shape(noise) == nis.shape[1:], "last_step.noise_var", "of as many rows")
        return {"BankStep": parts | {"noise_var": np.repeat(noise[None], len(nis), axis=0)}}

    def waves(parts: dict[str, Any]) -> dict[str, Any]:
        return {"RandomFourierFeatures": {"half_life": math.inf} | parts}

    def watch(parts: dict[str, Any]) -> dict[str, Any]:
        numbers, now = parts["numbers"], parts["now"]
        need(np.shape(numbers) == (7,), "watch.numbers", "seven numbers")
        need(isinstance(now, np.ndarray) and now.ndim == 1, "watch.now", "of one dimension")
        new = {"gains": np.ones_like(now), "odds": np.zeros((len(now), 3))}
        return {"Watch": parts | new | {"numbers": np.append(numbers, numbers[0])}}

    changes = {"Classes": classes, "BankStep": step, "RandomFourierFeatures": waves}
    changes["Watch"] = watch
    for tag, change in changes.items():
        tree = _everywhere(tree, tag, change)
    for params in _params(tree) if classifies else ():
        # A policy of one's own has a likelihood of its own.
        own = any(key == "forgetting" and isinstance(v, dict) for key, v in params)
        params.append(["likelihood", "auto" if own else "onehot"])
    return tree


def _params(tree: Any) -> Iterator[list[Any]]:
    """The names and values of an estimator's parameters, where a tree has them."""
    for key, params in tree.get("@dict", ()) if isinstance(tree, dict) else ():
        if key == "params" and isinstance(params, dict):
            yield params["@dict"]


def _models(tree: Any) -> Iterator[dict[str, Any]]:
    """The model of a tree."""
    yield from (each for key, each in tree.get("@dict", ()) if key == "model")


def _with_count(tree: Any) -> Any:
    """Format 6: a model counts its targets, and rows may wait; in the file all rows were seen.

    The file of a regression says how heavy its targets were, but not how many they were. They
    were no more than the rows.
    """

    def model(parts: dict[str, Any]) -> dict[str, Any]:
        n_seen = parts["n_seen"]
        parts = {"came": n_seen, "last": n_seen - 1, **parts}
        values, state = parts["targets"].get("Values"), parts.get("state")
        if values is None or values["offset"] is None:
            return {"Model": parts}
        mixture = state.get("MixtureState") if isinstance(state, dict) else None
        spread = values["spread"] if mixture is None else mixture["spread"][0]
        need(np.shape(spread) == (2,) and np.isfinite(spread).all(), "spread", "two numbers")
        weight = float(spread[0]) / max(len(values["offset"]), 1)
        return {"Model": parts | {"n_targets": min(round(weight), n_seen)}}

    return _everywhere(tree, "Model", model)


def _with_judge(tree: Any) -> Any:
    """Format 7: late targets have a judge, which begins with the weights of the filters.

    Rows that wait are not in blocks.
    """

    def model(parts: dict[str, Any]) -> dict[str, Any]:
        beside, state = parts.pop("beside", None), parts.get("state")
        mixture = state.get("MixtureState") if isinstance(state, dict) else None
        late = None
        known = parts["targets"].get("Classes")
        if parts.get("store") is not None and isinstance(mixture, dict):
            weights = {name: mixture[name] for name in ("log_weights", "spread")}
            n = 0 if known is None else 2 if known["stack"] is None else 4
            own = np.zeros(0) if known is None else beside
            late = {
                "LateJudge": {
                    **weights,
                    "beside": own,
                    "beliefs": np.full(n, 1 / max(n, 1)),
                    "since": 0,
                }
            }
        return {"Model": parts | {"late": late}}

    def kept(parts: dict[str, Any]) -> dict[str, Any]:
        n, n_experts, k = np.shape(parts["experts"])
        stacked = 4 if np.shape(parts["described"])[2] else 2
        return {"Kept": parts | {"answers": np.zeros((n, stacked if n_experts else 0, k))}}

    for tag, change in {"Model": model, "Kept": kept, "Store": _without_blocks}.items():
        tree = _everywhere(tree, tag, change)
    return tree


def _without_blocks(parts: dict[str, Any]) -> dict[str, Any]:
    """A store without blocks; its ids are in arrays, or in a list."""
    blocks = [dict(block["@dict"]) for block in parts.pop("blocks")]
    numbers: list[int] = []
    groups: list[Any] = []
    for block in blocks:
        n, kept = len(block["ids"]), Kept(**block["kept"]["Kept"])
        need(type(block["start"]) is int and len(block["targets"]) == n, "blocks", f"{n} rows")
        predicted = kept.packed() if any(kept.sizes) else np.empty((n, 0))
        group = {
            "places": np.arange(len(numbers), len(numbers) + n),
            "sizes": {"@tuple": list(kept.sizes)},
            "columns": block["rows"],
            "kept": predicted,
        }
        numbers += range(block["start"], block["start"] + n)
        groups.append({"@dict": [list(pair) for pair in group.items()]})

    def joined(name: str, dtype: type) -> Any:
        return np.concatenate([np.empty(0, dtype), *(block[name] for block in blocks)])

    status, times = joined("status", np.int8), joined("times", np.float64)
    targets = [target for block in blocks for target in block["targets"]]
    new = {
        "rows": np.array(numbers, np.int64),
        "numbers": joined("numbers", np.int64),
        "times": times,
        "status": status,
        "ids": [key for block in blocks for key in block["ids"]],
        "targets": [target for target, each in zip(targets, status, strict=True) if each == 1],
        "groups": groups,
        "done": np.array(numbers, np.int64)[status != 0],
        "n_columns": blocks[-1]["rows"].shape[1] if blocks else 0,
        "newest": float(times[-1]) if len(times) else math.nan,
    }
    return {"Store": parts | new}


def _with_answers(tree: Any) -> Any:
    """Format 8: late values have two judges; their predictions of rows that wait are unknown.

    A classifier has experts unless its parameters exclude them.
    """
    classifies = False

    def classes(parts: dict[str, Any]) -> dict[str, Any]:
        nonlocal classifies
        classifies = True
        return {"Classes": parts}

    def judge(parts: dict[str, Any]) -> dict[str, Any]:
        unknown = {} if len(parts["beliefs"]) else {"beliefs": np.full(2, 0.5)}
        return {"LateJudge": parts | unknown}

    def store(parts: dict[str, Any]) -> dict[str, Any]:
        for group in (group["@dict"] for group in parts["groups"]):
            named = dict(group)
            _, n_outputs, n_experts, *_ = named["sizes"]["@tuple"]
            if n_outputs and not n_experts:
                blank = np.zeros((len(named["kept"]), 4 * n_outputs))
                named["kept"] = np.hstack([named["kept"], blank])
                group[:] = [list(pair) for pair in named.items()]
        return {"Store": parts}

    for tag, change in {"LateJudge": judge, "Store": store, "Classes": classes}.items():
        tree = _everywhere(tree, tag, change)
    for params in _params(tree) if classifies else ():
        params.append(["experts", []])
    return tree


def _with_five_filters(tree: Any) -> Any:
    """Format 10: a regression keeps the mixture it had, of five filters of one prior variance."""
    keyed = [each for key, each in tree.get("@dict", ()) if key == "base"]
    for part in (tree, *keyed):
        if any("Values" in each["Model"]["targets"] for each in _models(part)):
            for params in _params(part):
                params[:] = map(list, _as_five_filters(dict(params)).items())
    return tree


def _as_five_filters(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a regression whose mixture is a policy of its own."""
    if params["forgetting"] != "mixture":
        return params
    orders = params.get("order", 1)
    orders = [orders] if isinstance(orders, int) else next(iter(orders.values()))
    moving = [1e2, 1e3, 1e4, 1e5]
    mixture = {
        "half_lives": {"@tuple": [*moving * len(orders), {"@float": pack("<d", math.inf).hex()}]},
        "order": {"@tuple": [*(each for each in orders for _ in moving), 1]},
        "predictive": "probit",
    }
    return params | {"forgetting": {"Mixture": mixture}, "order": 1, "calibration": "auto"}


# MIGRATIONS[n] turns a tree of format n into one of format n + 1.
MIGRATIONS: Final[dict[int, Callable[[Any], Any]]] = {
    1: lambda tree: tree,  # Model.stack is newer, and None if it is not there
    2: lambda tree: _everywhere(tree, "Watch", _with_average),
    3: _by_task,
    4: _with_likelihood,
    5: _with_count,
    6: _with_judge,
    7: _with_answers,
    8: lambda tree: tree,  # Representation.before is newer, and None if it is not there
    9: _with_five_filters,
}
