"""Aggregates by key: what the earlier rows of a row's key had in a column, as features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from kalstream._printable import quoted
from kalstream.core import checks as check
from kalstream.core.half_lives import gamma_of
from kalstream.core.records import Records
from kalstream.errors import InvalidInput
from kalstream.features.scaling import forked

Array = NDArray[np.float64]

MOST_ROWS: Final = 10_000  # of a window
# The name of the column of numbers that stands for the keys in a column of a table.
KEY_COLUMN: Final = "{}[key]"
_HEAD: Final = 2  # a record begins with how many rows its key had, and the number of the last one


@dataclass(frozen=True)
class AggregateKind:
    """A kind of aggregates; `KINDS_OF_AGGREGATES` has one entry for each.

    Attributes
    ----------
    about : str
    size : function of the window
        How many numbers the state of a key has; they begin as NaN.
    update : function of the state, the number of rows before, the value and the window
        Changes the state. The value is NaN where missing.
    value : function of the state, the number of rows before and the window
        The feature of the next row; NaN if nothing is known.
    of_targets : bool
        Whether it is updated by the target of a row, once that is told, and not by the row.
    """

    about: str
    size: Callable[[int], int]
    update: Callable[[Array, int, float, int], None]
    value: Callable[[Array, int, int], float]
    of_targets: bool = False


def _put(ring: Array, n: int, value: float, window: int) -> None:
    ring[n % window] = value


def _mean(ring: Array, n: int, window: int) -> float:
    known = ring[ring == ring]
    return float(known.sum()) / len(known) if len(known) else np.nan


def _fade(sums: Array, n: int, value: float, window: int) -> None:
    if n == 0:
        sums[:] = 0.0
    sums *= gamma_of(window)
    if value == value:
        sums += value, 1.0


def _put_target(told: Array, n: int, value: float, window: int) -> None:
    n_told = int(np.nan_to_num(told[0]))  # rows have come whose targets were not told
    _put(told[1:], n_told, value, window)
    told[0] = n_told + 1


KINDS_OF_AGGREGATES: Final = {
    "lag": AggregateKind(
        "the value so many rows of the key ago",
        size=lambda window: window,
        update=_put,
        value=lambda ring, n, window: float(ring[n % window]),
    ),
    "mean": AggregateKind(
        "the mean of the last rows of the key",
        size=lambda window: window,
        update=_put,
        value=_mean,
    ),
    "ewm": AggregateKind(
        "the mean of all rows of the key, whose weights halve after so many",
        size=lambda window: 2,
        update=_fade,
        value=lambda sums, n, window: float(sums[0] / sums[1]) if sums[1] > 0.0 else np.nan,
    ),
    "count": AggregateKind(
        "how many of the last rows of the key have a value",
        size=lambda window: window,
        update=_put,
        value=lambda ring, n, window: float(np.count_nonzero(ring == ring)),
    ),
    "target": AggregateKind(
        "the mean of the last targets of the key that were told",
        size=lambda window: 1 + window,
        update=_put_target,
        value=lambda told, n, window: _mean(told[1:], n, window),
        of_targets=True,
    ),
}


class Spec(NamedTuple):
    """An aggregate: of which column, by which key, of which kind, over how many rows.

    Examples
    --------
    >>> Spec.of("customer:amount:mean:100")
    Spec(key='customer', column='amount', kind='mean', window=100)
    """

    key: str
    column: str
    kind: str
    window: int

    @classmethod
    def of(cls, text: Any) -> Spec:
        """What a text KEY:COLUMN:KIND:WINDOW says."""
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != 4 or not all(parts):
            raise InvalidInput(
                f"aggregate {quoted(text)} is not KEY:COLUMN:KIND:WINDOW; write it as "
                "customer:amount:mean:100"
            )
        key, column, kind, window = parts
        if kind not in KINDS_OF_AGGREGATES:
            raise InvalidInput(
                f"aggregate {quoted(text)} has the kind {quoted(kind)}; give one "
                f"of {', '.join(KINDS_OF_AGGREGATES)}"
            )
        n = int(window) if window.isascii() and window.isdigit() and len(window) < 9 else 0
        if not 1 <= n <= MOST_ROWS:
            raise InvalidInput(
                f"aggregate {quoted(text)} has the window {quoted(window)}; give a number of rows "
                f"of the key, from 1 to {MOST_ROWS}"
            )
        return cls(key, column, kind, n)


class Aggregates(BaseEstimator):
    """Lags, means and counts of the earlier rows of each row's key, beside the columns.

    It is made for ``features=`` of an estimator. A row sees the values of earlier rows of its key,
    never its own, so a chunk gives what its rows would give one by one. A row counts as soon as it
    has come, also if its label is late; its target counts from the moment it was told. The
    aggregates come first; columns of keys are left out. A row whose key is NaN has no aggregates
    and leaves none; NaN also stands for what is not known yet.

    Parameters
    ----------
    specs : texts
        KEY:COLUMN:KIND:WINDOW. The kinds are ``lag`` (the value WINDOW rows of the key ago),
        ``mean`` and ``count`` (of the values in the last WINDOW rows of the key), ``ewm`` (a mean
        whose weights halve after WINDOW rows of the key) and ``target`` (the mean of the last
        WINDOW targets of the key). For ``target``, COLUMN is the label whose share is meant, or
        any name if targets are numbers.
    names : d names, optional
        Of the columns. Without them, KEY and COLUMN are numbers of columns, from 0.
    then : "fourier", "scaled" or "raw"
        What is made of aggregates and columns.
    max_keys : int
        How many keys are kept in each column of keys. When there are more, a quarter of them is
        dropped: those whose last row is longest ago.

    Attributes
    ----------
    n_seen_ : int
        Rows that have passed.
    n_keys_, dropped_ : list of int
        Keys that are kept, and how often one was dropped, for each column of keys.

    Examples
    --------
    >>> import numpy as np
    >>> aggregates = Aggregates(["0:1:lag:1", "0:1:mean:2"])
    >>> rows = np.array([[7.0, 1.0], [8.0, 5.0], [7.0, 2.0], [7.0, 3.0]])
    >>> after, columns = aggregates.passed(rows)
    >>> columns  # lag and mean by the key in column 0, then column 1
    array([[nan, nan, 1. ],
           [nan, nan, 5. ],
           [1. , 1. , 2. ],
           [2. , 1.5, 3. ]])
    >>> after.columns(np.array([[8.0, 0.0]]))
    array([[5., 5., 0.]])
    >>> after.n_keys_, aggregates.n_keys_
    ([2], [0])
    """

    def __init__(
        self,
        specs: Sequence[str] = (),
        names: Sequence[str] | None = None,
        then: str = "fourier",
        max_keys: int = 100_000,
    ) -> None:
        self.specs = specs
        self.names = names
        self.then = then
        self.max_keys = max_keys

    n_seen_ = 0

    def __repr__(self) -> str:
        return f"Aggregates({list(self.specs)}, then={self.then!r})"

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_groups", None)  # its functions cannot be pickled
        return state

    @property
    def n_keys_(self) -> list[int]:
        """Keys that are kept, for each column of keys."""
        return [len(records) for records in self._known]

    @property
    def dropped_(self) -> list[int]:
        """How often a key was dropped, for each column of keys."""
        return list(self.__dict__.get("_dropped", [0] * len(self._groups)))

    def width(self, n_columns: int) -> int:
        """How many columns rows become; an error if they lack a column."""
        used = [at for group in self._groups for at in (group.key, *group.columns)]
        if max(used) >= n_columns:
            raise InvalidInput(
                f"aggregates use column {max(used)}, counted from 0, and rows have {n_columns} "
                "columns; name columns that rows have"
            )
        return n_columns - len(self._groups) + len(self.specs)

    def columns(self, rows: Array) -> Array:
        """Aggregates and columns (b, d') of rows (b, d), any of which could be the next."""
        return self._made(rows, None)

    def passed(self, rows: Array) -> tuple[Self, Array]:
        """What is known after rows (b, d), and their aggregates and columns (b, d'); pure."""
        after: Self = forked(self)
        after._records, after._dropped = list(self._known), self.dropped_
        made = self._made(rows, after)
        after.n_seen_ = self.n_seen_ + len(rows)
        return after, made

    @property
    def hears(self) -> list[int]:
        """The columns of keys whose targets count; see `told`."""
        return [group.key for group in self._groups if group.has_targets]

    def told(self, keys: Array, targets: Any) -> Self:
        """What is known after the targets of earlier rows were told; pure.

        Parameters
        ----------
        keys : (t, n)
            The columns `hears` of the rows.
        targets : list of t labels, None where unknown; or (t,) numbers, NaN where unknown
        """
        are_numbers = isinstance(targets, np.ndarray)
        if are_numbers and targets.size != len(targets):
            raise InvalidInput(
                f"y has {targets.shape[1]} columns, and aggregates of targets need one; leave the "
                "kind target out"
            )
        values = targets.ravel().tolist() if are_numbers else targets
        after: Self = forked(self)
        after._records = list(self._known)
        heard = ((k, group) for k, group in enumerate(self._groups) if group.has_targets)
        for (k, group), own in zip(heard, keys.T.tolist(), strict=True):
            made = _Pass(group, after._records[k], self.max_keys)
            for key, target in zip(own, values, strict=True):
                if key == key and target is not None and target == target:
                    made.hear(key, target, is_number=are_numbers)
            after._records[k] = made.updated()
        return after

    def with_columns(self, n_columns: int) -> Self:
        """The same: new columns come behind the others."""
        return self

    def packed(self) -> dict[str, Any]:
        """All of it as arrays and plain values, for files of models."""
        known = []
        for group, records in zip(self._groups, self._known, strict=True):
            keys: list[Any] = sorted(records.keys(), key=float)
            block = np.array([np.frombuffer(record) for record in records.several(keys, b"")])
            known.append((np.array(keys, float), block.reshape(-1, group.size)))
        params = self.get_params(deep=False)
        params |= {name: list(params[name]) for name in ("specs", "names") if params[name]}
        return {"params": params, "n_seen": self.n_seen_, "dropped": self.dropped_, "known": known}

    @classmethod
    def unpacked(
        cls, params: dict[str, Any], n_seen: int, dropped: list[int], known: list[Any]
    ) -> Self:
        """The inverse of `packed`; a ValueError if the parts do not fit each other."""
        made = cls(**params)
        made.n_seen_, made._dropped, made._records = n_seen, list(dropped), []
        if not len(made._groups) == len(dropped) == len(known):
            raise ValueError("aggregates must have records for each column of keys")
        if not all(type(each) is int and each >= 0 for each in (n_seen, *dropped)):
            raise ValueError("aggregates must count from 0")
        for group, (keys, block) in zip(made._groups, known, strict=True):
            if block.dtype != np.float64 or block.shape != (len(keys), group.size):
                raise ValueError(f"records of aggregates must have {group.size} numbers")
            if np.isnan(block[:, :_HEAD]).any() or len(keys) > made.max_keys:
                raise ValueError("records of aggregates must be of rows, and at most max_keys")
            rows = map(bytes, np.ascontiguousarray(block))
            made._records.append(Records(dict(zip(keys.tolist(), rows, strict=True))))
        return made

    # -------------------------------------------------------------------------------------------

    @property
    def _known(self) -> list[Records]:
        return list(self.__dict__.get("_records") or (Records() for _ in self._groups))

    @cached_property
    def _groups(self) -> list[_Group]:
        """The aggregates of each column of keys; checks the parameters."""
        check.count("max_keys", self.max_keys)
        if isinstance(self.specs, str) or not len(self.specs):
            raise InvalidInput(
                f"specs is {check.shown(self.specs)}; give a list such as "
                "['customer:amount:mean:100']"
            )
        if self.then not in ("fourier", "scaled", "raw"):
            raise InvalidInput(
                f'then must be "fourier", "scaled" or "raw", got {check.shown(self.then)}'
            )
        by_key: dict[int, list[tuple[int, int, Spec]]] = {}
        for place, text in enumerate(self.specs):
            spec = Spec.of(text)
            key = column = self._place(text, spec.key, is_key=True)
            if not KINDS_OF_AGGREGATES[spec.kind].of_targets:
                column = self._place(text, spec.column)
            by_key.setdefault(key, []).append((place, column, spec))
        return [_Group.of(key, parts) for key, parts in by_key.items()]

    def _place(self, text: str, name: str, *, is_key: bool = False) -> int:
        """The number of a column."""
        if self.names is None:
            if name.isascii() and name.isdigit() and len(name) < 9:
                return int(name)
            raise InvalidInput(
                f"aggregate {quoted(text)} has the column {quoted(name)}; give names=, or the "
                "number of a column, from 0"
            )
        names = list(self.names)
        for known in (KEY_COLUMN.format(name), name)[not is_key :]:
            if known in names:
                return names.index(known)
        raise InvalidInput(
            f"aggregate {quoted(text)}: there is no column of numbers {quoted(name)}; the columns "
            f"are {', '.join(map(quoted, names[:20]))}"
        )

    def _made(self, rows: Array, after: Self | None) -> Array:
        """Aggregates and columns (b, d') of rows; ``after`` learns them."""
        width, first = self.width(rows.shape[1]), len(self.specs)
        out = np.empty((len(rows), width))
        kept = np.ones(rows.shape[1], bool)
        for k, (group, records) in enumerate(zip(self._groups, self._known, strict=True)):
            kept[group.key] = False
            values = rows[:, group.columns]
            made = _Pass(group, records, self.max_keys)
            for i, key in enumerate(rows[:, group.key].tolist()):
                out[i, group.places] = made.features(key)
                if after is not None:
                    made.learn(key, values[i], self.n_seen_ + i)
            if after is not None:
                after._records[k] = made.updated()
                after._dropped[k] += made.dropped
        out[:, first:] = rows[:, kept]
        return out


class _Group(NamedTuple):
    """The aggregates of one column of keys: where they are made, and of which columns."""

    key: int
    places: list[int]
    columns: list[int]
    parts: list[tuple[AggregateKind, int, slice]]  # kind, window and place in a record
    labels: list[str]  # for kinds of targets, the label whose share is meant
    size: int  # numbers of a record

    @classmethod
    def of(cls, key: int, parts: list[tuple[int, int, Spec]]) -> _Group:
        made, at = list[tuple[AggregateKind, int, slice]](), _HEAD
        for _, _, spec in parts:
            kind = KINDS_OF_AGGREGATES[spec.kind]
            stop = at + kind.size(spec.window)
            made.append((kind, spec.window, slice(at, stop)))
            at = stop
        places, columns, _ = map(list, zip(*parts, strict=True))
        return cls(key, places, columns, made, [spec.column for _, _, spec in parts], at)

    @property
    def has_targets(self) -> bool:
        """Whether targets of rows count."""
        return any(kind.of_targets for kind, _, _ in self.parts)


class _Pass:
    """One pass over rows: the records of their keys, which change."""

    def __init__(self, group: _Group, records: Records, max_keys: int) -> None:
        self.group, self.records, self.max_keys = group, records, max_keys
        self.touched: dict[float, Array] = {}  # by key, the states that may differ from `records`
        self.n_keys, self.dropped = len(records), 0

    def features(self, key: float) -> list[float]:
        """The aggregates of the next row, if it has this key."""
        if key != key:
            return [np.nan] * len(self.group.parts)
        record = self._record(key)
        n = int(record[0])
        return [kind.value(record[at], n, window) for kind, window, at in self.group.parts]

    def learn(self, key: float, values: Array, row: int) -> None:
        """Change the record of a key by a row."""
        if key != key:
            return
        record = self._record(key)
        n = int(record[0])
        for (kind, window, at), value in zip(self.group.parts, values.tolist(), strict=True):
            if not kind.of_targets:
                kind.update(record[at], n, value, window)
        record[:_HEAD] = n + 1, row
        if n == 0:
            self.n_keys += 1
            if self.n_keys > self.max_keys:
                self._drop()

    def hear(self, key: float, target: Any, *, is_number: bool) -> None:
        """Change the record of a key by a target; a key that was dropped stays unknown."""
        record = self._record(key)
        for (kind, window, at), label in zip(self.group.parts, self.group.labels, strict=True):
            if kind.of_targets:
                value = float(target if is_number else str(target) == label)
                kind.update(record[at], int(record[0]), value, window)

    def updated(self) -> Records:
        """The records after the rows."""
        changes: dict[Any, bytes] = {
            key: record.tobytes() for key, record in self.touched.items() if record[0]
        }
        return self.records.updated(changes) if changes else self.records

    def _record(self, key: float) -> Array:
        if key not in self.touched:
            (known,) = self.records.several([key], b"-")
            fresh = known == b"-"
            record = np.full(self.group.size, np.nan) if fresh else np.frombuffer(known).copy()
            if fresh:
                record[:_HEAD] = 0.0
            self.touched[key] = record
        return self.touched[key]

    def _drop(self) -> None:
        """Drop the quarter of the keys whose last row is longest ago."""
        known = self.updated().to_dict()
        n = max(1, len(known) // 4)
        last = {key: np.frombuffer(record, np.float64, 1, 8)[0] for key, record in known.items()}
        oldest = set(sorted(known, key=last.__getitem__)[:n])
        self.records = Records({k: v for k, v in known.items() if k not in oldest})
        self.touched = {}
        self.n_keys, self.dropped = len(self.records), self.dropped + n
