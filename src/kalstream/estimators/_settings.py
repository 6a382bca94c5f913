"""Settings of an estimator, made from its parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.calibration import Calibration
from kalstream.core.checks import Targets
from kalstream.core.fixed import Fixed
from kalstream.core.judging import Index, LateRows
from kalstream.core.learned import Learned
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.mixture import Mixture
from kalstream.core.motion_reference import check_order
from kalstream.core.policy import JudgingPolicy, Policy
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.estimators._chunk import Ahead, Chunk, LateSteps
    from kalstream.estimators._model import Model


# The filters of a regression with forgetting="mixture". Columns differ in how much they say, so
# prior variances do too; benchmarks/regression.py compares them with one prior variance.
VALUES: Final = Mixture(
    half_lives=(15.0, 1e2, 1e3, 1e4, 1e5, math.inf),
    prior_scale=(0.5, 1.0, 1.0, 0.1, 10.0, 1.0),
    predictive="probit",
)
# The filters of a classification; benchmarks/choose.py chose them. A likelihood without entry has
# those of the softmax if it is one, else those of "onehot".
_BANKS: Final = {
    "onehot": Mixture(predictive="probit"),
    "softmax": Mixture(
        half_lives=(30.0, 1e3, 1e4, 1e5, math.inf, math.inf),
        likelihood=("softmax", "softmax-label", "softmax", "softmax-label", "softmax", "softmax"),
        prior_scale=(3e3, 3e3, 30.0, 3e4, 3.0, 3e3),
        calibrations=(1.0,),
        predictive="probit",
    ),
    "auto": Mixture(
        half_lives=(30.0, 1e3, 1e4, 1e5, math.inf, math.inf, 300.0),
        likelihood=(
            *("softmax", "softmax-label", "softmax", "softmax-label", "softmax", "softmax"),
            "onehot",
        ),
        prior_scale=(3e3, 3e3, 30.0, 3e4, 3.0, 3e3, 1.0),
        calibrations=((1.0,),) * 6 + ((15.0,),),
        predictive="probit",
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for learning and predicting.

    Attributes
    ----------
    forgetting : object
        The parameter that the policy was made from, for messages.
    policy : Policy
    noise_var, prior_var : float
    transition : "example" or "chunk"
    dtype : float64 or float32
    unit : float
        Of time.
    task : Task
        Classification or regression.
    """

    forgetting: Any
    policy: Policy
    noise_var: float
    prior_var: float
    transition: str
    dtype: Any
    unit: float
    task: Task

    @property
    def judging(self) -> JudgingPolicy | None:
        """The policy, if it judges filters by their earlier predictions where targets are late."""
        return self.policy if isinstance(self.policy, JudgingPolicy) else None


class Task(Protocol):
    """The steps in which classification and regression differ. Holds settings only."""

    def start(self) -> Any:
        """What is known about targets before any: `Model.targets`."""
        ...

    def check(self, chunk: Chunk) -> None:
        """Raise an error unless the targets of a chunk can be learned."""
        ...

    @property
    def sees_columns(self) -> bool:
        """Whether chunks need their columns, since experts read them."""
        ...

    @property
    def stretch(self) -> int:
        """Rows are learned in pieces that end at multiples of so many, if it is not 0."""
        ...

    def end_of_piece(self, model: Model, chunk: Chunk, start: int, settings: Settings) -> int:
        """Where the rows end that can be predicted and learned together, from ``start`` on."""
        ...

    def read(self, model: Model, chunk: Chunk) -> tuple[Model, Chunk]:
        """The model with room for the targets, and the chunk with targets as policies take them."""
        ...

    def first_outlier(
        self, model: Model, chunk: Chunk, step: Any, settings: Settings
    ) -> tuple[int, float] | None:
        """The first row of a chunk that needs a smaller weight, and the factor; None if none."""
        ...

    def n_outputs(self, model: Model) -> int:
        """How many outputs the filters need; 0 while no target is known."""
        ...

    def learn(self, model: Model, chunk: Chunk, step: Any, settings: Settings) -> Model:
        """The model after what stands above the filters has learned from their step too.

        The chunk is one that `read` returned.
        """
        ...

    def learn_and_predict(
        self, before: Model, model: Model, chunk: Chunk, step: Any, settings: Settings
    ) -> tuple[Model, Any]:
        """As `learn`, and the prediction of each row, made by the model before it."""
        ...

    def predict(self, model: Model, ahead: Ahead, settings: Settings) -> Any:
        """Prediction of rows, each as if it were the next one."""
        ...

    def with_columns(self, targets: Any, n_columns: int) -> Any:
        """What is known about targets, after so many columns that were missing in all rows."""
        ...

    def nothing_known(self, n: int) -> Any:
        """Prediction of n rows while no target is known."""
        ...

    def joined(self, model: Model, chunk: Chunk, parts: list[Any]) -> Any:
        """One prediction of a chunk, from those of its consecutive pieces."""
        ...

    # ---- late targets: see `_late` --------------------------------------------------------

    def n_known(self, chunk: Chunk) -> int:
        """How many rows of a chunk that `read` returned have a target to learn."""
        ...

    def keeps(self, settings: Settings) -> tuple[bool, int]:
        """Whether rows are kept as a stack sees them, and how many experts are beside filters."""
        ...

    def spread_out(
        self, chunk: Chunk, tells: Index, n: int, n_outputs: int
    ) -> tuple[Targets, Array]:
        """Targets of n events, and their weights (n,); of the events ``tells`` in a chunk."""
        ...

    def keep(self, before: Model, rows: LateRows, seen: Array) -> Any:
        """Write what is kept of the rows asked for beside the moments of the filters.

        Returns what `judge` needs of it.
        """
        ...

    def judge(
        self, before: Model, model: Model, rows: LateRows, steps: LateSteps, settings: Settings
    ) -> tuple[Model, Any]:
        """The model after what stands above the filters has learned, and predictions of rows."""
        ...

    def together(self, parts: list[Any]) -> Any:
        """Predictions of consecutive rows as one."""
        ...

    def answers(self, model: Model, parts: list[Any]) -> Any:
        """One prediction of all rows asked for, as a caller gets it."""
        ...


def policy_of(
    forgetting: Any,
    calibration: Any,
    likelihood: Any = "auto",
    order: Any = 1,
    usual: Mixture | None = None,
) -> Policy:
    """The policy that the parameters of these names ask for.

    ``usual`` are the filters of a mixture; by default those of the likelihood.
    """
    check.choice("likelihood", likelihood, ("auto", *LIKELIHOODS))
    orders = _orders(order)
    if isinstance(calibration, str) and calibration != "auto":
        raise InvalidInput(
            f"calibration must be 'auto', a number, a Calibration, or for a mixture a sequence "
            f"of numbers; got {calibration!r}"
        )
    if isinstance(forgetting, Policy):
        for name, value, default, is_default in (
            ("order", order, "1", orders == (1,)),
            ("likelihood", likelihood, '"auto"', likelihood == "auto"),
            ("calibration", calibration, '"auto"', isinstance(calibration, str)),
        ):
            if not is_default:
                raise InvalidInput(
                    f"{name}={value!r} cannot be combined with a policy object; give the {name} to "
                    f"{type(forgetting).__name__}(...), and leave {name}={default}"
                )
        for cls in (type(forgetting), forgetting.state_type):
            if not hasattr(cls, "tag"):
                raise InvalidInput(
                    f"{cls.__name__} has no tag, so no checkpoint could hold it; give the class "
                    f'one: tag = "{cls.__name__}"'
                )
        return forgetting
    if isinstance(forgetting, str) and forgetting == "mixture":
        bank = _bank_of(likelihood) if usual is None else usual
        return _with_orders(_mixture(calibration, bank), orders)
    if len(orders) > 1:
        raise InvalidInput(
            f"order={order!r} with forgetting={forgetting!r}: one filter has one order; give one, "
            'or forgetting="mixture"'
        )
    one = LIKELIHOODS["softmax" if likelihood == "auto" else likelihood]
    alpha = calibration
    if isinstance(calibration, str):  # logits of the softmax have the right size by themselves
        alpha = 1.0 if one.is_softmax else Calibration()
    if isinstance(forgetting, str) and forgetting == "learned":
        if orders != (1,):
            raise InvalidInput(
                f'order={order!r} with forgetting="learned": gamma is learned by a gradient that '
                'only order 1 has; use forgetting="mixture" or a gamma, or order=1'
            )
        # Through calibrated logits the gradient overshoots at any useful rate.
        return Learned(calibration=alpha, calibrated=False, likelihood=one.word)
    if isinstance(forgetting, float | int | np.number) and not isinstance(forgetting, bool):
        return Fixed(float(forgetting), alpha, one.word, orders[0])
    raise InvalidInput(
        f'forgetting must be "mixture", "learned", a gamma in [0, 1] or a policy object, '
        f"got {forgetting!r}"
    )


def _mixture(calibration: Any, bank: Mixture) -> Mixture:
    if isinstance(calibration, Calibration):
        raise InvalidInput(
            "calibration=Calibration(...) works with one filter only; for a mixture give a list "
            "of numbers, or one number to fix it"
        )
    if isinstance(calibration, str):
        return bank
    one = isinstance(calibration, float | int | np.number)
    one = one or (isinstance(calibration, np.ndarray) and calibration.ndim == 0)
    return replace(bank, calibrations=[calibration] if one else calibration)


def _bank_of(likelihood: str) -> Mixture:
    if likelihood in _BANKS:
        return _BANKS[likelihood]
    usual = "softmax" if LIKELIHOODS[likelihood].is_softmax else "onehot"
    return replace(_BANKS[usual], likelihood=likelihood)


def _orders(order: Any) -> tuple[int, ...]:
    """The orders of motion that the parameter asks for, each once."""
    if not isinstance(order, Sequence) or isinstance(order, str):
        return (check_order(order),)
    orders = tuple(check_order(each) for each in order)
    if not orders or len(set(orders)) < len(orders):
        raise InvalidInput(f"order={order!r}: give 1, 2 or 3, or several of these, each once")
    return orders


def _with_orders(bank: Mixture, orders: tuple[int, ...]) -> Mixture:
    """A mixture that has every half-life with each order.

    An infinite half-life comes once, with order 1: there weights do not move, whatever the order.
    """
    if orders == (1,):
        return bank
    moving = [j for j, value in enumerate(bank.half_lives) if value < math.inf]
    still = [j for j in range(bank.n_filters) if j not in moving]
    filters = [(j, order) for order in orders for j in moving] + [(j, 1) for j in still]
    calibrations: Any = bank.calibrations
    if isinstance(calibrations[0], Sequence):
        calibrations = [calibrations[j] for j, _ in filters]
    return replace(
        bank,
        half_lives=[bank.half_lives[j] for j, _ in filters],
        calibrations=calibrations,
        likelihood=[bank.likelihoods[j] for j, _ in filters],
        prior_scale=[bank.prior_scales[j] for j, _ in filters],
        order=[order for _, order in filters],
    )


def variance_of(name: str, value: Any, auto: float) -> float:
    """A parameter that is a number above 0, or "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInput(f"{name} must be 'auto' or a number above 0, got {value!r}")
        return auto
    return check.positive(name, value)


def store(arguments: dict[str, Any]) -> None:
    """Keep the arguments of a constructor, its ``locals()``, as attributes of the estimator."""
    vars(arguments.pop("self")).update(arguments)
