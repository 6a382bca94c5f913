"""Checkpoints: damaged files, and forged files with a valid checksum.

A damaged file must be refused. A forged file is refused, or gives a model whose calls work or raise
an error of kalstream, and whose predictions are finite.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import uuid
from decimal import Decimal
from hashlib import sha256
from typing import Any

import numpy as np
from safetensors.numpy import load, save
from sklearn.exceptions import NotFittedError

from fuzz.cases import Case, Finding, shown
from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.errors import CheckpointError

MARK, ZEROS = b'"{\\"sha256\\":\\"', "0" * 64
NAN = {"@float": "000000000000f87f"}
LEAVES = (
    *(None, True, 0, 1, -1, 3, 7, 2**31, 2**62, 0.5, -1.0, 1e308, "", "x", "mixture", "@tuple"),
    *([], {}, [[]], [0, 1], NAN, {"@tuple": []}, {"@dict": []}, {"@int": "0x" + "f" * 60}),
    *({"@same": 0}, {"@bytes": "00"}, {"@objects": [[2], [1, 2]]}, {"Labels": {"names": []}}),
)
Forged = tuple[dict[str, Any], dict[str, np.ndarray]]


@functools.cache
def originals() -> list[tuple[type, bytes]]:
    """Files that `save` writes for models of every kind."""
    import tempfile

    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((30, 2)), [["a", "b", "c"][i % 3] for i in range(30)]
    models: list[Any] = [
        KalmanClassifier(n_components=3, random_state=0),
        KalmanClassifier("mixture", "raw", stacking=False, random_state=0),
        KalmanClassifier("learned", "scaled", random_state=np.random.default_rng(1)),
        KalmanClassifier(0.9, "raw", dtype="float32", random_state=np.random.RandomState(1)),
    ]
    for model in models:
        model.partial_fit(X, labels, time=np.arange(30.0))
        model.predict_then_learn(X[:3], ["a", "b", "d"], time=[30.0, 31.0, 32.0])
        ids = ["p", "q", 3, (b"r", Decimal("1.5")), uuid.UUID(int=1), datetime.date(2020, 2, 29)]
        model.ask(X[:6], ids=ids, time=[33.0] * 6)
        model.tell(["q", 3], ["a", "b"])
    waiting = KalmanClassifier(features="raw").partial_fit(X, [None] * 30)
    two = KalmanClassifier(features="scaled", random_state=0).partial_fit(X, [0, 1] * 15)
    numbers = [KalmanRegressor(n_components=3, random_state=0), KalmanRegressor(0.9, "raw")]
    models += [*(each.partial_fit(X, X[:, 0]) for each in numbers), waiting, two]
    models.append(KalmanRegressor("mixture", "raw", noise_var=0.1).partial_fit(X, X))
    models.append(KalmanRegressor(0.9, "raw", order=3).partial_fit(X, X[:, 0]))
    models[-1].partial_fit(X[:3], X[:3, 0])
    models.append(KalmanClassifier("mixture", "raw", order=(1, 2)).partial_fit(X[:9], labels[:9]))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model"
        files = []
        for model in models:
            model.save(path)
            with open(path, "rb") as file:
                files.append((type(model), file.read()))
    if any(sealed(*opened(data)) != data for _, data in files):
        raise Finding("sealed(*opened(file)) differs from the file: update them to its format")
    return files


def opened(data: bytes) -> Forged:
    """The JSON and the tensors of a file."""
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["kalstream"])
    return about, dict(sorted(load(data).items()))  # safetensors has no fixed order


def sealed(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """A file with a valid checksum."""
    text = json.dumps(about | {"sha256": ZEROS}, separators=(",", ":"))
    data = save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, {"kalstream": text})
    start = data.index(MARK) + len(MARK)
    return data[:start] + sha256(data).hexdigest().encode() + data[start + 64 :]


def case(case: Case) -> None:
    """Load a damaged or forged file, and call the model."""
    cls, data = case.pick(originals())
    path = case.folder / "model"
    if case.chance(0.3):
        changed, text = damaged(case, data)
        path.write_bytes(changed)
        _, error = case.attempt(f"{cls.__name__}.load of a file {text}", lambda: cls.load(path))
        if changed != data and not isinstance(error, CheckpointError):
            raise Finding(f"a file {text} was accepted, or gave {error!r}")
        return
    about, tensors = opened(data)
    for _ in range(case.pick([1, 1, 1, 2, 3])):
        forge(case, about, tensors)
    path.write_bytes(sealed(about, tensors))
    model, error = case.attempt(f"{cls.__name__}.load", lambda: cls.load(path))
    if error is None:
        use(case, model, path)


# ---- changes ------------------------------------------------------------------------------


def damaged(case: Case, data: bytes) -> tuple[bytes, str]:
    """Damage the bytes of a file; return them and a description of the damage."""
    rng, n = case.rng, len(data)
    at, width = int(rng.integers(n)), int(rng.integers(1, 64))
    if case.chance(0.3):  # in the header, with lengths and offsets
        at = int(rng.integers(min(200, n)))
    block = rng.integers(0, 256, width, dtype=np.uint8).tobytes()
    options = {
        f"with bit {width % 8} of byte {at} flipped": (
            data[:at] + bytes([data[at] ^ (1 << width % 8)]) + data[at + 1 :]
        ),
        f"cut at byte {at}": data[:at],
        f"with {width} bytes inserted at {at}": data[:at] + block + data[at:],
        f"with {width} bytes removed at {at}": data[:at] + data[at + width :],
        f"with {width} zeros at {at}": data[:at] + bytes(width) + data[at + width :],
        f"with {width} random bytes at {at}": data[:at] + block + data[at + width :],
        "twice in a row": data + data,
        f"with {width} bytes behind it": data + block,
        f"with a header of {2**62}": (2**62).to_bytes(8, "little") + data[8:],
    }
    text = case.pick(options)
    return options[text], text


def places(node: Any, path: str = "") -> list[tuple[Any, Any, str]]:
    """Container, key and path of every value in a JSON tree."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    result = []
    for key in list(keys) if isinstance(node, dict | list) else ():
        result.append((node, key, f"{path}/{key}"))
        if isinstance(node[key], dict | list):
            result += places(node[key], f"{path}/{key}")
    return result


def forge(case: Case, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Change a value, a tensor or a part of the tree."""
    kind = case.pick(["value", "value", "tensor", "tensor", "tensor", "part", "part"])
    if kind == "tensor" and tensors:
        return forge_tensor(case, tensors)
    all_places = places(about["tree"])
    if not all_places:
        return None
    node, key, path = case.pick(all_places)
    if kind == "part":
        return graft(case, about, tensors)
    change = case.pick(["set", "set", "delete", "swap", "append", "nudge"])
    if change == "delete":
        del node[key]
    elif change == "swap":
        other, name, _ = case.pick(places(about["tree"]))
        node[key] = copy.deepcopy(other[name])
    elif change == "append" and isinstance(node[key], list) and node[key]:
        node[key].append(copy.deepcopy(case.pick(node[key])))
    elif change == "nudge" and type(node[key]) in (int, float):
        node[key] = node[key] * case.pick([-1, 2, 10]) + case.pick([-1, 0, 1])
    else:
        node[key] = copy.deepcopy(case.pick(LEAVES))
    value = node.get(key) if isinstance(node, dict) else node[key : key + 1]
    case.note(f"{change} {path}: {json.dumps(value)[:120]}")
    return None


def forge_tensor(case: Case, tensors: dict[str, np.ndarray]) -> None:
    name = case.pick(tensors)
    value = tensors[name]
    axis = int(case.rng.integers(max(1, value.ndim)))
    change = case.pick(["value", "value", "shorter", "longer", "none", "dtype", "flat", "swap"])
    if change == "value" and value.size:
        new = value.copy()
        number = case.pick([np.nan, np.inf, -1.0, 0.0, 1e308, 1e18, -1e30, 1e-320])
        with np.errstate(all="ignore"):
            new.flat[int(case.rng.integers(value.size))] = np.float64(number).astype(value.dtype)
        tensors[name] = new
    elif change == "swap":
        other = case.pick(tensors)
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif change == "dtype":
        kind = case.pick([np.float32, np.float64, np.int64, np.uint8, bool])
        tensors[name] = np.zeros(value.shape, kind)
    elif value.ndim:
        n = value.shape[axis]
        size = {"shorter": max(n - 1, 0), "longer": n + int(case.rng.integers(1, 9)), "none": 0}
        index = np.arange(size.get(change, n)) % max(n, 1)
        resized = np.take(value, index, axis) if n else value
        tensors[name] = resized.ravel() if change == "flat" else resized
    case.note(f"tensor {name}: {change}, {value.shape} to {tensors[name].shape}")


def graft(case: Case, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Replace a part of the tree by that of another model, with its tensors."""
    other, theirs = opened(case.pick(originals())[1])
    tags = ("Stack", "Watch", "Labels", "MixtureState", "FilterState", "Bank", "Posterior")
    tags += ("MovingState", "MotionBank", "MixedBank", "Pending")
    tags += (
        "OnlineScaler",
        "RandomFourierFeatures",
        "Aggregates",
        "Representation",
        "BankStep",
        "Step",
        "Model",
    )
    own = [place for place in places(about["tree"]) if place[1] in tags]
    tag = case.pick(sorted({place[1] for place in own}) or tags)
    parts = [place for place in places(other["tree"]) if place[1] == tag]
    if not parts or not own:
        return
    node, key, path = case.pick([place for place in own if place[1] == tag])
    part = copy.deepcopy(case.pick(parts)[0][tag])
    for holder, name, _ in places({"": part}):
        if name == "@array":
            new = f"graft{len(tensors)}:{holder[name][0]}"
            tensors[new] = theirs[holder[name][0]]
            holder[name] = [new, *holder[name][1:]]
    node[key] = part
    case.note(f"{path} replaced by that of another model")


# ---- calls of a loaded model --------------------------------------------------------------


def use(case: Case, model: Any, path: Any) -> None:
    """Make every kind of call; each works or raises an error of kalstream."""
    rng, classifies = case.rng, isinstance(model, KalmanClassifier)
    y = ["a", "b", "e"] if classifies else [1.0, 2.0, 3.0]
    d = getattr(model, "n_features_in_", 2)
    X = rng.standard_normal((3, d if isinstance(d, int) and 0 < d < 9 else 2))
    when = {} if getattr(model._model, "time", None) is None else {"time": [1e6, 1e6, 1e6]}
    predict = "predict_proba" if classifies else "predict"
    calls: dict[str, Any] = {
        predict: lambda: getattr(model, predict)(X, **when),
        "uncertainty": lambda: model.uncertainty(X, **when),
        "is_novel": lambda: model.is_novel(X, **when),
        "drift": lambda: model.drift(),
        "save": lambda: model.save(path),
        "copy": lambda: copy.deepcopy(model.snapshot()).n_seen_,
        "partial_fit": lambda: model.partial_fit(X, y, **when) and None,
        "predict_then_learn": lambda: model.predict_then_learn(X, y, **when),
        "ask": lambda: model.ask(X, ids=["x", "y", "z"], **when),
        "tell": lambda: model.tell(["p", "x", 3], y, unknown="skip") and None,
    }
    names = ("cov_", "filters_", "half_life_weights_", "health_", "gamma_", "nbytes_", "coef_")
    calls |= {name: lambda name=name: getattr(model, name) for name in names}
    if classifies:
        calls["retire_class"] = lambda: model.retire_class("a") and None
        calls["classes_"] = lambda: model.classes_
    order = [*case.rng.permutation(list(calls)), predict]
    for name in order:
        with np.errstate(all="ignore"):  # forged numbers may overflow
            value, error = case.attempt(str(name), calls[str(name)], (NotFittedError,))
        if name == predict and error is None and not np.isfinite(value).all():
            raise Finding(f"{name} of a forged model is {shown(value)}")
