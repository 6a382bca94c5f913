"""A classifier for streams that drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin

from kalstream._arrays import Array
from kalstream.core import checks as check
from kalstream.core.experts import Expert, GaussianClasses, LabelChain, Linear, Neighbours
from kalstream.core.experts.expert import check_experts
from kalstream.core.guard import Health
from kalstream.core.likelihoods import LIKELIHOODS
from kalstream.core.policy import Policy
from kalstream.errors import InvalidInput
from kalstream.estimators._asking import AskingEstimator
from kalstream.estimators._chunk import Ahead
from kalstream.estimators._classification import Classification, declared, without_class
from kalstream.estimators._model import Model
from kalstream.estimators._row import predict_row
from kalstream.estimators._settings import policy_of, store
from kalstream.estimators._sharing import interruptible
from kalstream.estimators._time import gaps_ahead
from kalstream.estimators.inputs import read_weights
from kalstream.estimators.labels import read_labels
from kalstream.estimators.trees import Trees

_USUAL: Final = Neighbours(), LabelChain(), Linear()
# For each preset whether a stack combines the filters, and the experts that it also hears.
PRESETS: Final[Mapping[str, tuple[bool, tuple[Expert, ...]]]] = {
    "fast": (False, ()),
    "default": (True, _USUAL),
    "accurate": (True, (*_USUAL, GaussianClasses(), Trees())),
}


class KalmanClassifier(ClassifierMixin, AskingEstimator[Array]):
    """Online classifier: a Kalman filter over the weights of a linear readout.

    It learns row by row or in chunks, forgets as fast as the stream drifts, is calibrated, and
    accepts new classes at any time. Nothing has to be tuned.

    Parameters
    ----------
    forgetting : "mixture", "learned", float or policy
        "mixture" runs filters with several half-lives and weights them by how well they predict.
        "learned" is the paper's online SGD on gamma. A float is a fixed gamma; 1 forgets
        nothing. A policy is a `kalstream.core.Mixture`, `Learned`, `Fixed`, or one of your own:
        see `kalstream.core.Policy`.
    features : "raw", "scaled", "fourier" or transformer
        "fourier" scales columns online and adds random Fourier features of them. "scaled" only
        scales. Scaling forgets with a half-life of 2,000 rows. "raw" only divides columns by
        sqrt(d); their size should be about 1. A transformer needs ``partial_fit`` and
        ``transform``.
    n_components : int
        Number of Fourier features.
    transition : "example" or "chunk"
        Forget before every row, or once per chunk: the rows of one call of `partial_fit`.
    likelihood : "auto", "softmax", "softmax-label" or "onehot"
        How filters observe a label: through the softmax, or as a one-hot vector with Gaussian
        noise, as in the paper. "softmax-label" is a softmax with another curvature. "auto" is the
        mixture that predicts best on real streams (benchmarks/README.md); for a single filter it
        is the softmax.
    order : 1, 2, 3 or several of these
        Order of the motion of weights: from 2 on they have a velocity, at 3 an acceleration, so
        that predictions follow a relation that turns smoothly. Of a mixture every half-life has
        each of the orders, such as (1, 2). The cost of a filter grows with the square of its order.
    noise_var : "auto" or float
        Variance of the noise of a target, as a one-hot vector.
    prior_var : "auto" or float
        Variance of a weight before any data.
    predictive : "auto", "exact", "probit", "monte-carlo" or "plug-in"
        How logits become probabilities; see `kalstream.core.class_probabilities`. "auto" is
        "probit" where filters observe through the softmax, since they learn from these
        probabilities, and "exact" for one-hot filters. With a mixture, "exact" uses the probit
        approximation for the components with the smallest weights, together a tenth of the weight.
    calibration : "auto", float, Calibration or sequence of floats
        Factor that multiplies logits: learned ("auto"), one number, or a grid for a mixture.
    class_weight : dict, "balanced" or None
        Weights of classes; "balanced" uses the class frequencies so far.
    stacking : bool
        Whether an online logistic regression combines the filters of a mixture; see
        `kalstream.core.Stack`. Other policies have nothing to combine.
    recent_labels : bool
        Whether the stack uses recent labels in `predict_then_learn`, where the labels before a
        row are known. `predict_proba` predicts any row, not only the next, and ignores them.
    experts : list of Expert, optional
        Further voices of the stack, beside the filters: see `kalstream.core.Expert`. None: those
        of the preset, where there is a stack. []: the filters alone.
    preset : "fast", "default" or "accurate"
        Who predicts. "fast": the filters of the mixture alone, without a stack. "default": the
        stack combines them with `kalstream.core.Neighbours`, `kalstream.core.LabelChain` and
        `kalstream.core.Linear`. "accurate": it also hears `kalstream.core.GaussianClasses` and
        `kalstream.estimators.Trees`, which see curved boundaries and thresholds, and cost more.
    intercept : bool
        Whether a constant is one of the features.
    time_unit : float or timedelta
        Unit of ``time``. Half-lives, 30 to 100,000 by default, are counted in it. With dates a
        number means seconds; for daily rows give ``timedelta(days=1)``.
    dtype : float64 or float32
        float32 needs half the memory. If rounding errors become too large, it raises
        `NumericalError`. With collinear features, such as Fourier features of few columns, this
        can happen after a few thousand rows.
    random_state : int, RandomState, Generator or None
        Seed of the Fourier features and of sampled predictions.
    max_waiting : int
        Rows of `ask` that wait for their labels at most; the oldest expire.
    max_age : float, optional
        How long a row may wait: so many rows that came after it or, with times, units of time.

    Attributes
    ----------
    waiting_ : Waiting
        How many rows wait for their labels, and what became of the others.
    waiting_ids_ : list of ids
        Those of the rows that wait, in the order in which they were asked for.
    classes_ : (K,)
        Labels seen or declared so far, sorted; it grows.
    coef_, intercept_, cov_ : (K, m), (K,), (m, m)
        Weights of the filter with the largest weight, for the columns that `features` makes.
    filters_, half_life_weights_
        All filters, and the posterior over half-lives.
    gamma_, half_life_, calibration_ : float
    n_seen_, n_rows_ : int
        Number of rows seen, and of those that came: rows of `ask` are seen when their labels come.
    health_ : Health
        Of the heaviest filter. For a one-hot filter ``nis`` is usually above 1, since noise_var is
        small; calibration corrects for it. A softmax filter that is sure of its labels learns
        little from a row, so its ``effective_memory`` can exceed the rows seen.
    nbytes_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Rows are learned in their order, and the last ones count most. Shuffle data that are sorted
    by class, unless the stream itself comes in that order.

    Parameters can be changed on a fitted estimator. Those that the model was built from
    (features, n_components, intercept, dtype, random_state) take effect with the next `fit` or
    `reset`. A change of forgetting, likelihood, order or a mixture's calibration needs `reset`.

    In `partial_fit` a label of None or NaN lets time pass without learning. A NaN in X is replaced
    by the column's mean so far ("raw": by 0) and does not change the column's scale.

    Other threads may call `predict`, `predict_proba` and the like while one thread learns.

    Memory is constant: see `nbytes_` for the formula.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = KalmanClassifier(random_state=0)
    >>> for step in range(200):  # the rule is reversed half way
    ...     X = rng.standard_normal((1, 2))
    ...     flip = step >= 100
    ...     model = model.partial_fit(X, ["up" if (X[0, 0] > 0) != flip else "down"])
    >>> model.predict([[2.0, 0.0]])
    array(['down'], dtype='<U4')
    >>> model.partial_fit([[0.0, 5.0]], ["sideways"]).classes_
    array(['down', 'sideways', 'up'], dtype='<U8')
    """

    _SETTINGS = (
        *AskingEstimator._SETTINGS,
        *("likelihood", "predictive", "class_weight", "stacking", "recent_labels", "experts"),
        "preset",
    )
    # The paper's 1/K depends on a K that is not known at the start. This does as well, for 2
    # classes and for 100 (benchmarks/README.md): calibration makes up for the size of the logits.
    _NOISE_VAR = 0.03
    # benchmarks/choose.py chose it: columns that begin to move after a long time are followed.
    _SCALE_HALF_LIFE = 2000.0
    _read_targets = staticmethod(read_labels)
    _NO_TARGETS = ()

    def __init__(
        self,
        forgetting: Any = "mixture",
        features: Any = "fourier",
        *,
        n_components: int = 200,
        transition: str = "example",
        likelihood: str = "auto",
        order: Any = 1,
        noise_var: float | str = "auto",
        prior_var: float | str = "auto",
        predictive: str = "auto",
        calibration: Any = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        stacking: bool = True,
        recent_labels: bool = True,
        experts: Sequence[Expert] | None = None,
        preset: str = "default",
        intercept: bool = True,
        time_unit: Any = 1.0,
        dtype: Any = np.float64,
        random_state: Any = None,
        max_waiting: int = 100_000,
        max_age: float | None = None,
    ) -> None:
        store(locals())

    def _policy(self) -> Policy:
        return policy_of(self.forgetting, self.calibration, self.likelihood, self.order)

    def _task(self) -> Classification:
        predictive = self.predictive
        if isinstance(predictive, str) and predictive == "auto":
            softmax = any(LIKELIHOODS[word].is_softmax for word in self._policy().likelihoods)
            predictive = "probit" if softmax else "exact"
        stacking, usual = PRESETS[check.choice("preset", self.preset, tuple(PRESETS))]
        stacks = check.flag("stacking", self.stacking) and stacking and self._policy().combines
        experts = usual if stacks else ()
        if self.experts is not None:
            experts = check_experts(self.experts)
        if experts and not stacks:
            raise InvalidInput(
                "experts need a stack that weighs them beside several filters; "
                f"{self._alone()} has no stack, so leave experts out"
            )
        if self.recent_labels is False:
            experts = tuple(expert for expert in experts if not expert.reads_labels)
        stacking = self.stacking and stacking
        return Classification(predictive, self.class_weight, stacking, self.recent_labels, experts)

    def _alone(self) -> str:
        """The setting that leaves no stack."""
        if not self._policy().combines:
            return f"forgetting={self.forgetting!r}"
        return f"preset={self.preset!r}" if self.stacking else "stacking=False"

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, time: Any = None
    ) -> Self:
        """Forget everything, then learn the rows in their order, once.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels, none missing.
        sample_weight, time
            As in `partial_fit`.

        Examples
        --------
        >>> KalmanClassifier(features="raw").fit([[1.0], [-1.0]], ["up", "down"]).predict([[2.0]])
        array(['up'], dtype='<U4')
        """
        labels = read_labels(y, warn=True)
        if None in labels:
            raise InvalidInput(
                f"y contains NaN or None at row {labels.index(None)}; fit needs all labels; use "
                "partial_fit if some are missing"
            )
        self._learn(X, labels, sample_weight, time, restart=True)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> Self:
        """Learn a chunk of rows, in their order.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels of any type, also new ones; None or NaN where unknown.
        classes : (K,), optional
            Labels that may come. Not needed: a class that appears late gives the same model.
        sample_weight : (b,), optional
            The noise of a row is divided by its weight; 0 is the same as no label.
        time : (b,) numbers or dates, optional
            Time of each row, not decreasing. Forgetting then depends on time instead of rows.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.partial_fit([[0.0]], [None]).n_seen_  # time passes, nothing is learned
        3
        >>> model.partial_fit([[5.0]], ["new"]).classes_.tolist()
        ['down', 'new', 'up']
        """
        declare = None
        if classes is not None:
            declare = partial(declared, names=read_labels(classes, name="classes"))
        self._learn(X, read_labels(y), sample_weight, time, prepared=declare)
        return self

    # ---- predicting -----------------------------------------------------------------------

    def predict_proba(self, X: ArrayLike, time: Any = None) -> Array:
        """Probabilities (b, K) of `classes_`, one step ahead.

        Parameters
        ----------
        X : (b, d)
        time : number or (b,), optional
            Time of the rows; one unit after the last row learned if not given.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_proba([[1.0]]).round(2)
        array([[0.27, 0.73]])
        """
        return self.probabilities_and_classes(X, time)[0]

    def probabilities_and_classes(
        self, X: ArrayLike, time: Any = None, *, is_next: bool = False
    ) -> tuple[Array, Array]:
        """Probabilities (b, K), and the classes (K,) they are of, from one and the same model.

        For programs in which another thread may learn new classes between two calls. With
        ``is_next``, X is the next row alone, and its probabilities are those that
        `predict_then_learn` would give: they see recent labels.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> probabilities, classes = model.probabilities_and_classes([[1.0]])
        >>> str(classes[probabilities.argmax()])
        'up'
        """
        model = self._model
        made = self._predicted_row(model, X, is_next) if time is None else None
        if made is not None:
            return made
        if is_next:
            copied = self.snapshot()
            return copied.predict_then_learn(X, np.array([None]), time=time), copied.classes_
        probabilities = self._predicted(model, self._ahead(model, X, time))
        labels = model.targets.labels
        return probabilities[:, labels.order], labels.classes

    @interruptible
    def _predicted_row(self, model: Model, X: Any, is_next: bool) -> tuple[Array, Array] | None:
        return predict_row(model, X, self._settings, is_next)

    @interruptible
    def _predicted(self, model: Model, ahead: Ahead) -> Array:
        """Probabilities (b, K) in the order of the filter's outputs."""
        settings = self._settings
        return settings.task.predict(model, ahead, settings)

    def predict_log_proba(self, X: ArrayLike, time: Any = None) -> Array:
        """Logarithms of `predict_proba` (b, K).

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_log_proba([[1.0]]).round(2)
        array([[-1.31, -0.32]])
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, time))

    def decision_function(self, X: ArrayLike, time: Any = None) -> Array:
        """Log-odds (b,) of the second class if there are two, else log-probabilities (b, K).

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> bool(model.decision_function([[1.0]])[0] > 0.0)  # towards "up", the second class
        True
        """
        logs = np.maximum(self.predict_log_proba(X, time), -1e4)
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict(
        self, X: ArrayLike, *, abstain_below: float | None = None, time: Any = None
    ) -> Array:
        """Most probable label of each row (b,).

        Parameters
        ----------
        X : (b, d)
        abstain_below : float in [0, 1], optional
            Rows whose most probable label is less probable than this get None. The array then
            holds objects. Where `expects_new_classes`, the class may also be a new one.
        time
            As in `predict_proba`.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict([[2.0], [0.0]], abstain_below=0.7)
        array(['up', None], dtype=object)
        """
        probabilities, classes = self.probabilities_and_classes(X, time)
        labels = classes[probabilities.argmax(axis=1)]
        if abstain_below is None:
            return labels
        threshold = check.unit_interval("abstain_below", abstain_below)
        labels = labels.astype(object)
        known = 1.0 - self.new_class_proba(X, time) if self.expects_new_classes else 1.0
        labels[probabilities.max(axis=1) * known < threshold] = None
        return labels

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy: the share of rows whose most probable label is the one in y.

        Parameters
        ----------
        X : (b, d)
        y : (b,)
            Labels, none missing.
        sample_weight : (b,), optional

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.score([[2.0], [-2.0]], ["up", "up"])
        0.5
        """
        names, predicted = read_labels(y), self.predict(X).tolist()
        if None in names or len(names) != len(predicted):
            raise InvalidInput(
                f"y has {sum(name is not None for name in names)} labels for the "
                f"{len(predicted)} rows of X; a score needs one for each"
            )
        hits = [one == other for one, other in zip(names, predicted, strict=True)]
        weight = read_weights(sample_weight, len(hits))
        if weight is not None and not weight.any():
            raise InvalidInput(
                "sample_weight is zero in every row; give at least one row a weight above 0"
            )
        return float(np.average(hits, weights=weight))

    # ---- classes never seen ---------------------------------------------------------------

    @property
    def _classification(self) -> Classification:
        return cast(Classification, self._settings.task)

    @property
    def expects_new_classes(self) -> bool:
        """Whether an expert says how probable a class never seen is: `new_class_proba`."""
        return any(expert.expects_new_classes for expert in self._classification.experts)

    @interruptible
    def new_class_proba(self, X: ArrayLike, time: Any = None) -> Array:
        """Probability (b,) that the class of each row was never seen.

        It is what the expert `kalstream.core.GaussianClasses` says, which needs to be one of
        ``experts``.

        Parameters
        ----------
        X, time
            As in `predict_proba`.

        Examples
        --------
        >>> from kalstream.core import GaussianClasses
        >>> rng = np.random.default_rng(0)
        >>> y = np.minimum(rng.integers(9, size=300), 2 + np.arange(300) // 30)
        >>> X = 20.0 * rng.standard_normal((9, 2))[y] + rng.standard_normal((300, 2))
        >>> model = KalmanClassifier(features="raw", experts=[GaussianClasses()])
        >>> near, far = model.partial_fit(X, y).new_class_proba([X[0], [90.0, 90.0]])
        >>> bool(near < 0.01), bool(far > 0.9)
        (True, True)
        """
        model, settings = self._model, self._settings
        self._state(model)
        rows, _ = self._columns(X, model)
        gap = gaps_ahead(model, time, len(rows), settings.unit)
        return self._classification.new_class_ahead(model, rows, gap)

    def predict_open_then_learn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> tuple[Array, Array]:
        """As `predict_then_learn`, and the probability (b,) that each row is of a new class.

        Examples
        --------
        >>> from kalstream.core import GaussianClasses
        >>> model = KalmanClassifier(features="raw", experts=[GaussianClasses()])
        >>> model.predict_open_then_learn([[1.0], [-1.0]], ["up", "down"])[1].round(1).tolist()
        [1.0, 0.6]
        """
        new = partial(self._classification.new_class_before, settings=self._settings)
        given = X, read_labels(y), sample_weight, time
        return self._learn(*given, predict=True, beside=new)

    # ---- classes --------------------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """Labels seen or declared so far (K,), sorted."""
        model = self._model
        self._state(model)
        return model.targets.labels.classes

    @property
    def coef_(self) -> Array:
        """Coefficients (K, m) of the filter with the largest weight, without the intercepts."""
        model = self._model
        return self._weights(model)[0].T[model.targets.labels.order]

    @property
    def intercept_(self) -> Array:
        """Intercepts (K,) of the filter with the largest weight."""
        model = self._model
        return self._weights(model)[1][model.targets.labels.order]

    def retire_class(self, label: Any) -> Self:
        """Drop a class. If its label comes again, it is a new class.

        The coefficients of the other classes stay as they are.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.partial_fit([[0.0]], ["flat"]).retire_class("flat").classes_.tolist()
        ['down', 'up']
        """
        self._state(self._model)
        settings = self._settings
        self._published.update(lambda model: (without_class(model, label, settings), None))
        return self

    def _health(self, model: Model) -> Health:
        report, state = super()._health(model), self._state(model)
        if LIKELIHOODS[self._settings.policy.likelihoods[state.heaviest]].is_softmax:
            return report
        # Outputs without a class have no error, and do not count.
        n_classes = len(model.targets.labels.names)
        return replace(report, nis=report.nis * state.n_outputs / n_classes)
