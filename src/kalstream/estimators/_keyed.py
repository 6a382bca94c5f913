"""What estimators with a small model for each of many keys share."""

from __future__ import annotations

import copy
import math
import os
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.alarm import Drift
from kalstream.core.keyed import Keyed, KeyedState, Pool
from kalstream.core.spilled import Spilled
from kalstream.errors import CheckpointError, InvalidInput
from kalstream.estimators import _saving, checkpoint
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._published import PublishedEstimator
from kalstream.estimators._sharing import Shared, interruptible
from kalstream.estimators._soundness import need, need_array
from kalstream.estimators.inputs import read_columns, read_path, read_weights
from kalstream.estimators.labels import Labels, _as_array
from kalstream.features import OnlineScaler


class KeyPlace(Protocol):
    """Where keys are: declares what a place must offer."""

    def records(self, keyed: Keyed, max_keys: int | None) -> Any:
        """No records yet, of at most so many keys in memory.

        They have the methods of `kalstream.core.records.Records`.
        """


@dataclass(frozen=True)
class Known:
    """All that an estimator with keys has learned. Never changed.

    Attributes
    ----------
    base : KalmanEstimator
        What is known of all keys. Nobody else has it.
    labels : Labels
        Those of the base, in the order of the columns of a key's means; none in regression.
    scaler : OnlineScaler
        Of the columns that keys see.
    keyed, state : Keyed, KeyedState
    fitted : dict
        What is known of the columns; see `kalstream.estimators.inputs.read_columns`.
    """

    base: Any
    labels: Labels
    scaler: OnlineScaler
    keyed: Keyed
    state: KeyedState
    fitted: dict[str, Any]

    @property
    def n_seen(self) -> int:
        """Rows that have passed, with a target or not."""
        return self.state.n_rows

    @property
    def is_fitted(self) -> bool:
        """Whether a target is known."""
        return self.base.__sklearn_is_fitted__()

    def features(self, columns: Array) -> Array:
        """Features (b, 1 + d) of a key, from scaled columns (b, d)."""
        return self.scaler.features(columns, 1, math.sqrt(columns.shape[1]))


class KeyedEstimator(PublishedEstimator[Known]):
    """One model for all keys, and a small one for each. A subclass says what targets are."""

    base: KalmanEstimator | None
    max_keys: int | None
    folder: str | None

    _BASE: ClassVar[type[KalmanEstimator]]
    _KEYED: ClassVar[type[Keyed]]

    @abstractmethod
    def _passed_base(
        self, known: Known, base: Any, rows: Array, y: Any, weight: Array | None
    ) -> tuple[Labels, Array, Array]:
        """Let the base learn rows; returns labels, offsets (b, width) and targets (b,) of keys."""

    @staticmethod
    def _labels_of(model: Any) -> Labels:
        """Labels of a base with this model; none in regression."""
        return Labels()

    @abstractmethod
    def _shown(self, known: Known, out: Array) -> Any:
        """What users see of the predictions of keys (b, width)."""

    @interruptible
    def _learn(self, X: Any, y: Any, key: Any, sample_weight: Any, *, restart: bool = False) -> Any:
        def change(known: Known | None) -> tuple[Known, Array]:
            before = None if known is None else known.fitted
            rows, fitted = read_columns(X, before, type(self).__name__, learns=True)
            keys = read_keys(key, len(rows))
            weight = read_weights(sample_weight, len(rows))
            if known is None:
                known = self._start(rows.shape[1])
            return self._learned(replace(known, fitted=fitted), rows, y, keys, weight)

        return self._publish(change, restart=restart)

    def _learned(
        self, known: Known, rows: Array, y: Any, keys: list[Hashable], weight: Array | None
    ) -> tuple[Known, Any]:
        """What is known after rows, and predictions of each before it was learned.

        The base learns a piece of the rows while the one before it may still pass the keys.
        """
        base = known.base.snapshot() if known.n_seen else known.base
        after = known

        def pieces() -> Iterator[tuple[Any, ...]]:
            nonlocal after
            for at in known.keyed.pieces(known.n_seen, len(rows)):
                some = None if weight is None else weight[at]
                after, seen = self._passed(after, base, rows[at], y[at], some)
                yield keys[at], *seen, np.ones(len(seen[0])) if some is None else some

        state, outs = known.keyed.advance_pieces(known.state, pieces())
        return replace(after, state=state), self._shown(after, _joined(outs))

    def _passed(
        self, known: Known, base: Any, rows: Array, y: Any, weight: Array | None
    ) -> tuple[Known, tuple[Array, Array, Array]]:
        """Let the base learn rows; also returns features, offsets and targets for their keys."""
        labels, offsets, targets = self._passed_base(known, base, rows, y, weight)
        scaler, columns = known.scaler.passed(rows)
        known = replace(known, base=base, labels=labels, scaler=scaler)
        return known, (known.features(columns), offsets, targets)

    def _start(self, n_columns: int) -> Known:
        """What is known before any row."""
        base = self._BASE() if self.base is None else self.base
        check.instance("base", base, self._BASE)
        keyed = self._KEYED(1 + n_columns)
        scaler = OnlineScaler(half_life=self._BASE._SCALE_HALF_LIFE)
        return Known(clone(base), Labels(), scaler, keyed, self._no_keys(keyed), {})

    def _no_keys(self, keyed: Keyed) -> KeyedState:
        """The state of keys before any row."""
        place = self.__dict__.get("_place")
        if place is not None:
            return keyed.start(place.records(keyed, self.max_keys))
        if self.max_keys is None:
            return keyed.start()
        check.count("max_keys", self.max_keys)
        if not hasattr(os, "pread"):
            raise InvalidInput("max_keys needs a system with pread, such as Linux; leave it None")
        if not os.path.isdir(self.folder or "."):
            raise InvalidInput(f"folder is {check.shown(self.folder)}; give a folder that is there")
        return keyed.start(Spilled(most=self.max_keys, folder=self.folder))

    def _seen(self) -> Known:
        known = self._model
        if not known.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has seen "
                f"{known.n_seen} rows, all without a target; call partial_fit with a target first."
            )
        return known

    # ---- what has been learned ------------------------------------------------------------

    @property
    def keys_(self) -> list[Any]:
        """Keys with a target that taught them something."""
        return self._model.state.records.keys()

    def spread(self, place: KeyPlace | None) -> Self:
        """The same estimator, whose keys are at another place; this one stays as it is.

        Predictions are the same bits wherever the keys are. `kalstream.distributed` has places;
        None is this process.

        Examples
        --------
        >>> from kalstream import KeyedClassifier
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.spread(None).predict([[2.0]], ["a"]).tolist()
        ['up']
        """
        made = copy.copy(self)
        made.__dict__["_place"] = place
        if "_published" in made.__dict__:
            known = self._model
            keys, block = _block(known)
            start = made._no_keys(known.keyed).records
            state = replace(known.state, records=known.keyed.of_block(start, keys, block))
            made._published = Shared(replace(known, base=known.base.snapshot(), state=state))
        return made

    @property
    def n_keys_(self) -> int:
        """Number of `keys_`."""
        return len(self._model.state.records)

    @property
    def base_(self) -> Any:
        """A copy of the model of all keys."""
        return self._model.base.snapshot()

    @property
    def half_life_weights_(self) -> dict[float, float]:
        """Weights of the half-lives of the model of all keys."""
        return self._seen().base.half_life_weights_

    def drift(self) -> Drift:
        """Drift of the model of all keys; see `kalstream.KalmanClassifier.drift`.

        Examples
        --------
        >>> from kalstream import KeyedClassifier
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> model.drift().alarms
        0
        """
        return self._model.base.drift()

    @property
    def spread_(self) -> float:
        """How strongly keys differ: standard deviation of what a key adds."""
        variances = ((a**2 + b**2) * w for (a, b, _), w in self.spread_weights_.items())
        return math.sqrt(sum(variances))

    @property
    def spread_weights_(self) -> dict[tuple[float, float, float], float]:
        """Posterior over how strongly keys differ, by the targets of all keys."""
        known = self._model
        each = [(math.sqrt(a), math.sqrt(b), h) for a, b, h in known.keyed.filters]
        weights = np.exp(known.state.heard.weights).tolist()
        return dict(zip([(0.0, 0.0, math.inf), *each], weights, strict=True))

    @property
    def nbytes_(self) -> int:
        """Bytes of the numbers in memory, of the base and of all keys."""
        known = self._model
        return known.base.nbytes_ + known.state.nbytes

    # ---- saving ---------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimator to one file, safetensors with JSON; the file is replaced atomically.

        `load` returns an estimator that continues with the same bits as this one. All keys are in
        the file. Meanwhile their numbers are in memory twice, or with ``max_keys`` in a second
        temporary file.

        Examples
        --------
        >>> from kalstream import KeyedClassifier
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     KeyedClassifier.load(f"{folder}/model.safetensors").predict([[2.0]], ["a"]).tolist()
        ['up']
        """
        cls, known = type(self), self._model
        keys, block = _block(known)
        tree = {
            "default": self.base is None,
            "max_keys": None if self.max_keys is None else int(self.max_keys),
            "base": _saving.tree_of(known.base),
            "scaler": known.scaler,
            "keyed": known.keyed,
            "pooled": known.state.heard.weights,
            "level": known.state.heard.level,
            "used": known.state.used.weights,
            "used_level": known.state.used.level,
            "keys": _as_array(keys),
            "records": block,
            "n_seen": known.n_seen,
            "fitted": _saving._plain_columns(known.fitted),
        }
        checkpoint.write(read_path(path), cls.__name__, tree, lambda saved: _check_tree(cls, saved))

    @classmethod
    def load(
        cls, path: str | PathLike[str], features: Any = None, folder: str | None = None
    ) -> Self:
        """Read a file that `save` wrote, with this or an earlier version of kalstream.

        ``features`` is as in `KalmanClassifier.load`: a transformer of another library in the base.
        ``folder`` is the parameter, which the file does not hold.

        Examples
        --------
        >>> from kalstream import KeyedClassifier
        >>> model = KeyedClassifier().partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.safetensors")
        ...     KeyedClassifier.load(f"{folder}/model.safetensors").n_seen_
        2
        """
        tree = checkpoint.read(read_path(path), cls.__name__)
        try:
            fitted = _check_tree(cls, tree)
        except Exception as error:  # a nonsensical file with a right checksum can raise anything
            raise CheckpointError(
                f"{path} is damaged; take another copy of it ({type(error).__name__}: {error})"
            ) from error
        base = _saving.estimator_of(cls._BASE, tree["base"], path, features)
        keyed, keys = tree["keyed"], tree["keys"].tolist()
        made = cls(None if tree["default"] else clone(base), tree.get("max_keys"), folder)
        records = keyed.of_block(made._no_keys(keyed).records, keys, tree["records"])
        state = KeyedState(*_pools(tree), tree["n_seen"], records)
        labels = cls._labels_of(base._model)
        known = Known(base, labels, tree["scaler"], keyed, state, fitted)
        made._published = Shared(known)
        return made


def read_keys(key: Any, n: int) -> list[Hashable]:
    """Keys of n rows as a list; each can be hashed, and none is missing."""
    if isinstance(key, str | bytes) or not hasattr(key, "__len__"):
        raise InvalidInput(f"key is {check.shown(key)}; give a list with the key of each row")
    keys = key.tolist() if hasattr(key, "tolist") else list(key)
    one_each("key", "key", len(keys), n)
    try:
        distinct = set(keys)
    except TypeError:
        bad = next(each for each in keys if not _can_be_hashed(each))
        raise InvalidInput(
            f"key holds {check.shown(bad)}, which cannot be hashed; use strings, numbers or tuples"
        ) from None
    missing = next((each for each in distinct if each is None or each != each), 0)
    if missing != 0:
        raise InvalidInput(
            f"key is {missing} at row {keys.index(missing)}; give such rows a key, such as 'none'"
        )
    return keys


def _can_be_hashed(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def one_each(name: str, what: str, n: int, n_rows: int) -> None:
    """Refuse fewer or more keys, or labels, than rows."""
    if n != n_rows:
        raise InvalidInput(f"{name} has {n} {what}s for the {n_rows} rows of X; give one for each")


def _check_tree(cls: type[KeyedEstimator], tree: dict[str, Any]) -> dict[str, Any]:
    """The columns of a file, if its parts are sound and of each other."""
    fitted, scaler, keys, n_seen = (tree[n] for n in ("fitted", "scaler", "keys", "n_seen"))
    if "encoding" in fitted:
        fitted = {**fitted, "encoding": _saving._encoding(fitted)}
    _, model, columns = _saving._check(cls._BASE, tree["base"])
    need(type(tree["default"]) is bool, "default", "True or False")
    most = tree.get("max_keys")  # files of before it have none
    need(most is None or (type(most) is int and most > 0), "max_keys", "None or at least 1")
    need(isinstance(scaler, OnlineScaler), "scaler", "an OnlineScaler")
    need(type(n_seen) is int and n_seen > 0, "n_seen", "an integer of at least 1")
    n_columns = fitted["n_features_in_"]
    same = columns["n_features_in_"] == scaler.n_features_in_ == n_columns
    need(same, "base", f"of {n_columns} columns")
    keyed, n_keys = tree["keyed"], len(set(keys.tolist()))
    fits = type(keyed) is cls._KEYED and keyed.n_features == 1 + n_columns
    need(fits, "keyed", f"of {n_columns} columns")
    need(keys.shape == (n_keys,), "keys", "different")
    size = keyed.size(keyed.n_outputs(len(cls._labels_of(model).names))) // 8
    need_array("records", tree["records"], (n_keys, size))
    need(n_keys == 0 or (tree["records"][:, 0] > 0.0).all(), "records", "of keys with targets")
    for pool in _pools(tree):
        need_array("pooled", pool.weights, keyed.start().heard.weights.shape)
        need(abs(np.exp(pool.weights).sum() - 1.0) < 1e-6, "pooled", "logarithms of weights")
        need_array("level", pool.level, (2,))
        need(pool.level[0] >= 0.0, "level", "of at least 0 rows")
    return fitted


def _pools(tree: dict[str, Any]) -> tuple[Pool, Pool]:
    """What keys used last and what they have heard since; files of before it have less."""
    level = tree.get("level", np.zeros(2))
    heard = Pool(tree["pooled"], level)
    return Pool(tree.get("used", tree["pooled"]), tree.get("used_level", level)), heard


def _block(known: Known) -> tuple[list[Any], Array]:
    """All keys, and their records as one block."""
    n_outputs = known.keyed.n_outputs(len(known.labels.names))
    return known.keyed.block(known.state, n_outputs)


def _joined(parts: list[Array]) -> Array:
    """Predictions of pieces as one array (b, width); classes of later ones had probability 0."""
    width = parts[-1].shape[1]
    wide = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts[:-1]]
    return np.concatenate([*wide, parts[-1]]) if wide else parts[-1]
