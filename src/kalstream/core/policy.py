"""What a forgetting policy is: the interface that estimators, checkpoints and adapters rely on.

A policy is one file with three classes: settings (a frozen dataclass that extends `Policy`), a
state (a dataclass that extends `PolicyState`), and the report of a step (`PolicyStep`). `Mixture`
is such a file; `Fixed` and `Learned` share the state and the step of `single`. To add a policy,
write the file and pass an instance as ``KalmanClassifier(forgetting=...)``; nothing else changes.
If it extends `JudgingPolicy`, its filters are judged by their predictions where labels come late.
A single filter is a bank of one. tests/estimators/test_new_policy.py has a complete policy.

A checkpoint holds settings and state by their fields, under their ``tag``. A new field needs a
default, so that older files load; a renamed field needs a new tag. Import the module of your policy
before you load such a file. Names such as "mixture" are resolved in estimators/_settings.py.

A policy holds settings only. `start` makes a state, `step_chunk` learns a chunk, `predict` predicts
the next row. A chunk learned at once gives the same as its rows learned one by one. Only classes
that have been seen take part in what is learned from a softmax, so that a class declared at the
start equals a class that comes late.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.chunk import Rows
from kalstream.core.judging import Events, Judged, LateJudge, LateRows, Sizes
from kalstream.core.state import BankStep, Posterior
from kalstream.core.tagged import Tagged
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.core.bank import Filters
    from kalstream.core.predictive import Method


class PolicyState(Tagged):
    """What a policy has learned: J filters, and the weight of each. Never changed.

    A dataclass. Its fields are numbers, tuples, arrays, a `Posterior`, a `Bank` or other tagged
    dataclasses, so that a checkpoint can hold them.

    Attributes
    ----------
    tag : str
        Stands for the class in checkpoints.
    seen : (K,) bool
        Classes that have been learned at least once.
    half_lives : J numbers
        Half-life of each filter, in rows.

    Examples
    --------
    >>> from kalstream.core import Mixture, PolicyState
    >>> state = Mixture((10.0, 1000.0)).start(3, 2, prior_var=1.0)
    >>> isinstance(state, PolicyState), state.half_lives, state.half_life_weights
    (True, (10.0, 1000.0), array([0.5, 0.5]))
    """

    __slots__ = ()

    seen: Array
    if TYPE_CHECKING:  # a field or a property

        @property
        def half_lives(self) -> tuple[float, ...]: ...  # noqa: D102

    @property
    @abstractmethod
    def gammas(self) -> tuple[float, ...]:
        """Forgetting coefficient of each filter (J,)."""

    @property
    @abstractmethod
    def half_life_weights(self) -> Array:
        """Probability of each filter (J,)."""

    @property
    @abstractmethod
    def half_life(self) -> float:
        """Half-life, in rows; of several filters the median."""

    @property
    @abstractmethod
    def gamma(self) -> float:
        """Forgetting coefficient of `half_life`."""

    @property
    @abstractmethod
    def calibration(self) -> float:
        """Factor that multiplies logits; of several the median."""

    @property
    @abstractmethod
    def posteriors(self) -> tuple[Posterior, ...]:
        """Posterior of each filter (J,)."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features, m."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the features: float64, or float32 by choice."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""

    @property
    def n_outputs(self) -> int:
        """Number of outputs, K."""
        return len(self.seen)

    @property
    def heaviest(self) -> int:
        """Index of the filter with the largest weight."""
        return int(self.half_life_weights.argmax())

    @abstractmethod
    def add_outputs(self, n_outputs: int) -> Self:
        """Add classes that were never seen, as if they had been declared at the start."""

    @abstractmethod
    def keep_outputs(self, columns: Array) -> Self:
        """Keep only these outputs (K',), in this order; they do not change."""

    @abstractmethod
    def add_features(self, n_features: int, prior_var: float) -> Self:
        """Add features that were 0 in all rows so far, as if they had been there from the start."""


class BankState(PolicyState):
    """A state whose filters are in a bank."""

    __slots__ = ()

    bank: Filters

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return self.bank.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return self.bank.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept from row to row."""
        return self.bank.nbytes

    def add_outputs(self, n_outputs: int) -> Self:
        """Add classes that were never seen, as if they had been declared at the start."""
        n_outputs = check.count("n_outputs", n_outputs)
        state: Any = self  # a dataclass
        bank, seen = self.bank.add_outputs(n_outputs), np.pad(self.seen, (0, n_outputs))
        return replace(state, bank=bank, seen=seen)

    def keep_outputs(self, columns: Array) -> Self:
        """Keep only these outputs. They do not change, because outputs are independent."""
        columns = check.columns("columns", columns, len(self.seen))
        state: Any = self
        bank, seen = self.bank.keep_outputs(columns), self.seen[columns]
        return replace(state, bank=bank, seen=seen)


class PolicyStep(Protocol):
    """Report of every row of a chunk, made before its target was seen.

    `state.Step` is the one of a single filter, `mixture.MixtureStep` that of several.

    Examples
    --------
    The step of a `Fixed` policy is one:

    >>> from kalstream.core import init, step_chunk
    >>> given = {"gamma": 1.0, "noise_var": 1.0, "prior_var": 1.0}
    >>> _, step = step_chunk(init(1, 2, prior_var=1.0), [[1.0], [1.0]], [0, 1], **given)
    >>> step.mean.shape, step.weight_variance.shape, step.class_probabilities().shape
    ((2, 2), (2,), (2, 2))
    """

    @property
    def bank(self) -> BankStep:
        """Moments under each filter."""
        ...

    @property
    def nis(self) -> Array:
        """Normalised innovation squared (b,), averaged over outputs; NaN if nothing was learned."""
        ...

    @property
    def mean(self) -> Array:
        """Predicted mean of the outputs (b, K)."""
        ...

    @property
    def weight_variance(self) -> Array:
        """Variance of the outputs (b,) that comes from not knowing the weights.

        If filters have priors of their own, it is in units of those.
        """
        ...

    def target_variance(self, noise_var: float, scale: float) -> Array:
        """Variance of the targets (b, K), noise included.

        Variances are multiples of ``scale``, unless the policy learns scales itself.
        """
        ...

    def keep_outputs(self, n_outputs: int) -> PolicyStep:
        """The same step, restricted to the first n_outputs outputs."""
        ...

    def class_probabilities(
        self,
        *,
        method: Method = "exact",
        light: float = 0.0,
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K); see `core.class_probabilities`.

        With several filters and method "exact", filters with small weights, whose sum is at most
        ``light``, are computed by the faster probit approximation.
        """
        ...


class Policy(Tagged):
    """How a learner forgets. A frozen dataclass of settings.

    Attributes
    ----------
    tag : str
        Stands for the class in checkpoints.
    state_type : type
        Its states: a `PolicyState`.
    adapts : bool
        Whether forgetting follows the data, so that the drift alarm has something to watch.
    combines : bool
        Whether steps are `MixtureStep`, whose filters a `Stack` can combine. It uses their moments,
        weights and calibrations; ``log_prob`` may be NaN and ``scale`` 1.
    compares : bool
        Whether `evidence` says how well each watched half-life predicts. If not, the drift alarm
        watches the belief alone.
    learns_scale : bool
        Whether each filter of a regression learns the scale of the noise; see `scale`.

    Examples
    --------
    tests/estimators/test_new_policy.py adds one. Those of the core:

    >>> from kalstream.core import Fixed, Learned, Mixture, Policy
    >>> [isinstance(policy, Policy) for policy in (Fixed(0.99), Learned(), Mixture())]
    [True, True, True]
    >>> Mixture((10.0, 1000.0)).n_filters, Fixed(0.99).adapts
    (2, False)
    """

    __slots__ = ()

    if TYPE_CHECKING:  # a class variable or a property

        @property
        def state_type(self) -> type: ...  # noqa: D102

    adapts: ClassVar[bool] = True
    combines: ClassVar[bool] = False
    compares: ClassVar[bool] = False

    @property
    @abstractmethod
    def n_filters(self) -> int:
        """Number of filters, J."""

    @property
    def likelihoods(self) -> tuple[str, ...]:
        """How each filter (J,) observes labels: words of `step_chunk`."""
        return ("onehot",) * self.n_filters

    @property
    def orders(self) -> tuple[int, ...]:
        """Order of the motion of each filter's weights (J,); see `Fixed`."""
        return (1,) * self.n_filters

    @property
    def usual_prior_var(self) -> float:
        """A prior variance that suits features of norm about 1."""
        return 1.0

    @property
    def learns_scale(self) -> bool:
        """Whether each filter of a regression learns the scale of the noise."""
        return False

    def with_noise(self, known: bool) -> Policy:
        """The policy for a regression whose noise variance is known, or has to be learned."""
        return self

    @abstractmethod
    def start(
        self, n_features: int, n_outputs: int, *, prior_var: float, dtype: Any = np.float64
    ) -> Any:
        """State before any data."""

    def step_chunk(
        self,
        state: Any,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        donate: bool = False,
        **settings: Any,
    ) -> tuple[Any, Any]:
        """Advance over the rows of a chunk; returns the state after it, and a `PolicyStep`.

        The settings are those of `kalstream.core.step_chunk`: noise_var, prior_var, transition,
        keep_mean, sample_weight and time_gap. The state that was given stays as it was, unless
        ``donate`` gives it away.
        """
        self.check_state(state)
        return self.step_rows(state, Rows.read(state, features, targets, **settings), donate)

    @abstractmethod
    def step_rows(self, state: Any, rows: Rows, donate: bool) -> tuple[Any, Any]:
        """As `step_chunk`, for a state and rows that have been checked.

        A row forgets with ``gamma ** rows.gap[i]``, and is learned where ``rows.noise_var[i]`` is
        finite. ``rows.targets`` has labels or dense targets.
        """

    @abstractmethod
    def predict(
        self,
        state: Any,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
    ) -> Any:
        """`PolicyStep` of rows (b, m), each predicted as if it were the next one.

        ``time_gap`` is the time since the last row that was learned, one number or (b,).
        """

    def class_probabilities(
        self,
        state: Any,
        features: ArrayLike,
        *,
        prior_var: float,
        time_gap: ArrayLike = 1.0,
        keep_mean: bool = False,
        method: Method = "exact",
        n_samples: int = 100,
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """Class probabilities (b, K) one step ahead; see `predict` and `class_probabilities`."""
        ahead = self.predict(
            state, features, prior_var=prior_var, time_gap=time_gap, keep_mean=keep_mean
        )
        return ahead.class_probabilities(
            method=method, n_samples=n_samples, random_state=random_state
        )

    def scale(self, state: Any) -> Array:
        """What the variances of each filter are multiples of (J,)."""
        return np.ones(self.n_filters)

    def freedom(self, state: Any) -> float:
        """How many targets the scale is known from, if the policy learns it."""
        return 0.0

    @property
    @abstractmethod
    def watched(self) -> Array:
        """Half-lives (W,) over which the drift alarm watches belief, shortest first.

        A half-life that several filters have may occur several times.
        """

    @abstractmethod
    def first_belief(self) -> Array:
        """Belief in the watched half-lives (W,) before any data."""

    @abstractmethod
    def belief(
        self, step: Any, time_gap: Array | None, transition: str, before: Array
    ) -> tuple[Array, Array]:
        """Belief in the watched half-lives (b, W), and the variance of the outputs at each (b, W).

        ``before`` (W,) is the belief before the chunk. Rows that carry no information keep it.
        It is zero if nothing is known, and has another length if another policy was set then.
        """

    def evidence(self, step: Any) -> Array | None:
        """Log predictive of each row's target under each watched half-life (b, W).

        Rows from which nothing was learned are NaN. Only a policy that `compares` needs it.
        """
        if self.compares:
            name = type(self).__name__
            raise NotImplementedError(f"{name} compares, and needs the method evidence")
        return None

    def check_state(self, state: Any) -> None:
        """Raise an error unless the state is one of this policy."""
        check.instance("state", state, self.state_type)


class JudgingPolicy(Policy):
    """A policy that judges filters by what they predicted when a row came, if targets are late.

    Its steps also have ``take(rows)``: the step of some of the rows. With any other policy, late
    rows are learned and judged one step ahead. tests/estimators/test_new_policy.py has a complete
    one.

    Examples
    --------
    >>> from kalstream.core import Fixed, JudgingPolicy, Mixture
    >>> isinstance(Mixture(), JudgingPolicy), isinstance(Fixed(0.99), JudgingPolicy)
    (True, False)
    """

    __slots__ = ()

    @abstractmethod
    def step_events(
        self,
        state: Any,
        features: Array,
        targets: Any,
        weight: Array,
        events: Events,
        *,
        noise_var: float,
        prior_var: float,
    ) -> tuple[Any, Any, BankStep]:
        """Predict the rows that are asked for (n, m), and learn those whose targets come.

        Returns the state, and the step of every row in the order of targets: rows are predicted
        one step ahead. Then the moments of the same rows, predicted as far ahead as they are.
        `judging.in_turn` is a plain way.
        """

    def late_judge(self, state: Any, sizes: Sizes) -> LateJudge:
        """A judge by the predictions that are made from now on; it begins with the weights now."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(state.half_life_weights)[:, None]
        return LateJudge.start(log_weights, np.zeros((self.n_filters, 2)), sizes)

    @abstractmethod
    def judge(
        self,
        judge: LateJudge,
        rows: LateRows,
        step: Any,
        far: BankStep,
        *,
        noise_var: float,
        n_targets: int,
    ) -> tuple[LateJudge, Any, Judged]:
        """Weigh the filters by what they predicted of the rows whose targets come.

        ``step`` and ``far`` are those of `step_events`; ``n_targets`` were learned before. Rows
        that are asked for are written into ``rows.kept``. The step that is returned is of all
        events: the weights are those at the time of the event, evidence is by earlier predictions.
        """

    @abstractmethod
    def judged_late(self, state: Any, judge: LateJudge) -> Any:
        """The state with the weights of a late judge."""


def check_seen(seen: Any, n_outputs: int) -> None:
    """Raise an error unless ``seen`` is one bool for each output."""
    if not check.is_block(seen, (n_outputs,), np.dtype(bool)):
        raise InvalidInput(
            f"the seen of the state must be one bool for each of {n_outputs} outputs, got "
            f"{check.kind_of(seen)}; take a state from start or step_chunk"
        )
