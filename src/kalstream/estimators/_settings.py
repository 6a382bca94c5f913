"""From the parameters of an estimator to the settings that learning and predicting go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.calibration import Calibration
from kalstream.core.fixed import Fixed
from kalstream.core.learned import Learned
from kalstream.core.mixture import Mixture
from kalstream.core.policy import Policy
from kalstream.errors import InvalidInput

if TYPE_CHECKING:
    from kalstream.estimators._chunk import Chunk
    from kalstream.estimators._model import Model

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What learning and predicting go by.

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


class Task(Protocol):
    """The steps in which classification and regression differ. Holds settings only."""

    def start(self) -> Any:
        """What is known about targets before any: `Model.targets`."""
        ...

    def check(self, chunk: Chunk) -> None:
        """Raise an error unless the targets of a chunk can be learned."""
        ...

    def end_of_piece(self, model: Model, chunk: Chunk, start: int, settings: Settings) -> int:
        """Where the rows end that can be predicted and learned together, from ``start`` on."""
        ...

    def read(self, model: Model, chunk: Chunk) -> tuple[Model, Chunk]:
        """The model with room for the targets, and the chunk with targets as policies take them."""
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

    def predict(self, model: Model, step: Any, settings: Settings) -> Any:
        """Prediction of rows from their step, each as if it were the next one."""
        ...

    def nothing_known(self, n: int) -> Any:
        """Prediction of n rows while no target is known."""
        ...

    def joined(self, model: Model, chunk: Chunk, parts: list[Any]) -> Any:
        """One prediction of a chunk, from those of its consecutive pieces."""
        ...


def policy_of(forgetting: Any, calibration: Any) -> Policy:
    """The policy that the parameters ``forgetting`` and ``calibration`` ask for."""
    if isinstance(forgetting, Policy):
        for cls in (type(forgetting), forgetting.state_type):
            if not hasattr(cls, "tag"):
                raise InvalidInput(
                    f"{cls.__name__} has no tag, so no checkpoint could hold it; give the class "
                    f'one: tag = "{cls.__name__}"'
                )
        if not (isinstance(calibration, str) and calibration == "auto"):
            raise InvalidInput(
                f"calibration={calibration!r} cannot be combined with a policy object; give the "
                f'calibration to {type(forgetting).__name__}(...), and leave calibration="auto"'
            )
        return forgetting
    if isinstance(calibration, str) and calibration != "auto":
        raise InvalidInput(
            f"calibration must be 'auto', a number, a Calibration, or for a mixture a sequence "
            f"of numbers; got {calibration!r}"
        )
    if isinstance(forgetting, str) and forgetting == "mixture":
        return _mixture(calibration)
    alpha = Calibration() if isinstance(calibration, str) else calibration
    if isinstance(forgetting, str) and forgetting == "learned":
        # Through calibrated logits the gradient overshoots at any useful rate.
        return Learned(calibration=alpha, calibrated=False)
    if isinstance(forgetting, float | int | np.number) and not isinstance(forgetting, bool):
        return Fixed(float(forgetting), calibration=alpha)
    raise InvalidInput(
        f'forgetting must be "mixture", "learned", a gamma in [0, 1] or a policy object, '
        f"got {forgetting!r}"
    )


def _mixture(calibration: Any) -> Mixture:
    if isinstance(calibration, Calibration):
        raise InvalidInput(
            "calibration=Calibration(...) works with one filter only; for a mixture give a list "
            "of numbers, or one number to fix it"
        )
    if isinstance(calibration, str):
        return Mixture(predictive="probit")
    one = isinstance(calibration, float | int | np.number)
    one = one or (isinstance(calibration, np.ndarray) and calibration.ndim == 0)
    return Mixture(calibrations=[calibration] if one else calibration, predictive="probit")


def variance_of(name: str, value: Any, auto: float) -> float:
    """A parameter that is a number above 0, or "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInput(f"{name} must be 'auto' or a number above 0, got {value!r}")
        return auto
    return check.positive(name, value)
