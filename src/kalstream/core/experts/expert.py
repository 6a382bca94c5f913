"""What an expert must offer. One file is enough for a new one: tests/estimators/test_new_expert.py.

A `Stack` combines the filters of a mixture with experts that see what a linear readout cannot. An
expert predicts each row before it learns from it; the stack learns online how much it is worth.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.tagged import Tagged
from kalstream.errors import InvalidInput

# Experts fall asleep, or wake, at multiples of so many rows. One that sleeps is tried in one
# stretch of 16, and before that in the first one, and in those behind 1, 2, 4 and 8 of them.
STRETCH: Final = 1000
TRIED: Final = 16
# Smaller log-probabilities count as this, as in the stack: a class that was ruled out may come.
_LEAST: Final = math.log(1e-9)


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows that pass an expert, b of them, in their order.

    Attributes
    ----------
    columns : (b, d)
        As they came, NaN where a value is missing. With a transformer of another library, and in
        a model that began without experts, as the features see them.
    labels : (b,) int
        -1 for a row that is only predicted: its label is unknown, comes later, or has weight 0.
    weight : (b,)
        Sample weights, at least 0.
    gap : (b,)
        Time since the last row that was learned; 1 if rows have no times.
    number : (b,) int
        The place of each row among all rows that came. The label of the row before was known in
        time if the last row that was learned has the place before.

    Examples
    --------
    >>> labels, ones = np.array([0, 1, 0]), np.ones(3)
    >>> rows = ExpertRows(np.zeros((3, 2)), labels, weight=ones, gap=ones, number=np.arange(3))
    >>> len(rows)
    3
    """

    columns: Array
    labels: Array
    weight: Array
    gap: Array
    number: Array

    def __len__(self) -> int:
        return len(self.labels)


class ExpertState(Tagged):
    """What an expert has learned. A dataclass of numbers, tuples and arrays, never changed.

    One of your own has ``n_classes``, ``nbytes``, ``add_classes``, ``keep_classes`` and
    ``add_columns``.

    Attributes
    ----------
    tag : str
        Stands for the class in checkpoints.

    Examples
    --------
    >>> from kalstream.core import LabelChain
    >>> state = LabelChain().start(n_columns=2, n_classes=3)
    >>> state.n_classes, state.add_classes(4).n_classes
    (3, 4)
    """

    __slots__ = ()

    if TYPE_CHECKING:  # a field or a property

        @property
        def n_classes(self) -> int:
            """Number of classes, K."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""

    @abstractmethod
    def add_classes(self, n_classes: int) -> Self:
        """The state with ``n_classes`` classes; the new ones have not been seen."""

    @abstractmethod
    def keep_classes(self, columns: Array) -> Self:
        """The state with these classes only (K',), in this order."""

    @abstractmethod
    def add_columns(self, n_columns: int) -> Self:
        """The state with columns that were missing in all rows so far, behind the others."""

    def saved(self) -> Self:
        """An equal state that a file may hold: nothing that other states share is in it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.saved()
        parts = {each.name: getattr(state, each.name) for each in fields(cast(Any, state))}
        return _restored, (type(state), parts)


def _restored(cls: type, parts: Mapping[str, Any]) -> Any:
    """A state from its parts. An array of a file that is mapped into memory cannot be written."""
    state: Any = object.__new__(cls)
    for name, part in parts.items():
        if isinstance(part, np.ndarray) and not part.flags.writeable:
            part = np.array(part)
        object.__setattr__(state, name, part)
    return state


class Expert(Tagged):
    """One voice of the stack. A frozen dataclass of settings.

    Attributes
    ----------
    tag : str
        Stands for the class in checkpoints.
    name : str
        The stack knows its coefficient by this name.
    state_type : type
        Its states: an `ExpertState`.
    reads_labels : bool
        Whether it predicts from the labels just before a row. It is then heard only where the
        stack uses these too.
    expects_new_classes : bool
        Whether `new_class_proba` says how probable a class is that was never seen.
    sleeps : bool
        Whether it may fall silent where it does not pay. It then only watches rows, which should
        cost much less.

    Examples
    --------
    tests/estimators/test_new_expert.py has one whole. `LabelChain` predicts two classes here:

    >>> from kalstream.core import ExpertRows, LabelChain
    >>> labels, ones = np.array([0, 1, 0]), np.ones(3)
    >>> rows = ExpertRows(np.zeros((3, 2)), labels, weight=ones, gap=ones, number=np.arange(3))
    >>> expert = LabelChain()
    >>> state, log_probabilities = expert.advance(expert.start(2, 2), rows)
    >>> expert.name, log_probabilities.shape
    ('label_chain', (3, 2))
    """

    __slots__ = ()

    name: ClassVar[str]
    reads_labels: ClassVar[bool] = False
    sleeps: ClassVar[bool] = False
    expects_new_classes: ClassVar[bool] = False
    if TYPE_CHECKING:

        @property
        def state_type(self) -> type: ...  # noqa: D102

    @abstractmethod
    def start(self, n_columns: int, n_classes: int) -> Any:
        """The state before any row."""

    @abstractmethod
    def advance(self, state: Any, rows: ExpertRows) -> tuple[Any, Array]:
        """Predict each row, then learn its label if it has one; the state given stays as it was.

        Returns
        -------
        state : ExpertState
            After the last row. Rows in one call give the same as rows in calls of their own.
        log_probabilities : (b, K)
            Of each row, made before its label was learned. Those of classes that have not been
            seen are ignored.
        """

    def watch(self, state: Any, rows: ExpertRows) -> Any:
        """The state after rows that it need not predict, while it sleeps."""
        return self.advance(state, rows)[0]

    def new_class_proba(self, state: Any, rows: ExpertRows) -> Array:
        """Probability (b,) of a class never seen, of each row before its label is learned."""
        raise NotImplementedError


States = Mapping[str, ExpertState]


def advance(
    experts: Sequence[Expert], states: States, rows: ExpertRows, n_classes: int
) -> tuple[dict[str, ExpertState], Array]:
    """Let experts predict and learn rows; a state that is missing, or of another class, begins.

    Returns
    -------
    states : {name: ExpertState}
        Of these experts only.
    spoken : (b, X, K)
        Log-probabilities by each.
    """
    after: dict[str, ExpertState] = {}
    spoken, shape = np.empty((len(rows), len(experts), n_classes)), (len(rows), n_classes)
    for x, expert in enumerate(experts):
        state = begun(expert, states, rows, n_classes)
        after[expert.name], made = expert.advance(state, rows)
        if not check.is_block(made, shape):
            made = check.block(f"the log-probabilities of the expert {expert.name!r}", made, shape)
        spoken[:, x] = made
    if not spoken.max(initial=-np.inf) < np.inf:  # NaN, too; once for all experts, since rows
        row, x = np.argwhere(~(spoken.max(axis=2) < np.inf))[0]  # that come alone are many
        raise InvalidInput(
            f"the expert {experts[x].name!r} gave {spoken[row, x].tolist()} for row {row}; return "
            "log-probabilities, at most 0"
        )
    return after, np.maximum(spoken, _LEAST, out=spoken)


def watch(
    experts: Sequence[Expert], states: States, rows: ExpertRows, n_classes: int
) -> dict[str, ExpertState]:
    """States of experts after rows that they do not predict."""
    return {each.name: each.watch(begun(each, states, rows, n_classes), rows) for each in experts}


def begun(expert: Expert, states: States, rows: ExpertRows, n_classes: int) -> Any:
    """The state of an expert with room for the classes; one that has seen nothing, if need be."""
    known = states.get(expert.name)
    if known is None or type(known) is not expert.state_type:
        return expert.start(rows.columns.shape[1], n_classes)
    return known.add_classes(n_classes) if known.n_classes < n_classes else known


def all_speak(came: int, stretch: int) -> bool:
    """Whether every expert speaks in the stretch that begins behind so many rows."""
    k = came // stretch
    return k % TRIED == 0 or k & (k - 1) == 0


def check_experts(experts: Any) -> tuple[Expert, ...]:
    """Experts with names of their own; None stands for no expert."""
    if experts is None:
        return ()
    if not isinstance(experts, Sequence) or not all(isinstance(each, Expert) for each in experts):
        raise InvalidInput(f"experts must be a list of Expert, got {check.shown(experts)}")
    names = [each.name for each in experts]
    if len(set(names)) < len(names):
        raise InvalidInput(f"experts has names {names}; give each expert a name of its own")
    for each in experts:
        for cls in (type(each), each.state_type):
            if not hasattr(cls, "tag"):
                raise InvalidInput(
                    f"{cls.__name__} has no tag, so no checkpoint could hold it; give the class "
                    f'one: tag = "{cls.__name__}"'
                )
    return tuple(experts)
