"""A classifier for streams that drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin

from kalstream.core import _checks as check
from kalstream.core.guard import Health
from kalstream.core.mixture import MixtureStep, mixture_probabilities
from kalstream.core.predictive import METHODS, class_probabilities
from kalstream.core.stacking import Stack
from kalstream.errors import InvalidInput
from kalstream.estimators._base import KalmanEstimator
from kalstream.estimators._chunk import Chunk
from kalstream.estimators._input import read_weights
from kalstream.estimators._labels import Labels, read_labels
from kalstream.estimators._model import Model
from kalstream.estimators._sharing import interruptible

Array = NDArray[Any]

# The paper's 1/K depends on a K that is not known at the start. This does as well, for 2 classes
# and for 100 (benchmarks/README.md), because calibration makes up for the size of the logits.
_NOISE_VAR: Final = 0.03
# An exact answer takes this much of a mixture, its lightest components, by probit: two thirds of
# them, at a cost of 0.0004 in log-loss where the whole by probit costs 0.004.
_LIGHT: Final = 0.1


class KalmanClassifier(ClassifierMixin, KalmanEstimator):
    """Online classifier: a Kalman filter over the weights of a linear readout.

    It learns row by row or in chunks, forgets as fast as the stream drifts, is calibrated, and
    takes new classes at any time. Nothing has to be tuned.

    Parameters
    ----------
    forgetting : "mixture", "learned", float or policy
        "mixture" runs filters with several half-lives and believes those that predict best.
        "learned" is the paper's online SGD on gamma. A float is a fixed gamma: 1 forgets
        nothing. Or a `kalstream.core.Mixture`, `Learned` or `Fixed`.
    features : "raw", "scaled", "fourier" or transformer
        "fourier" scales columns online and adds random Fourier features of them, "scaled" only
        scales, "raw" takes columns as they are (of size about 1). Or a transformer with
        ``partial_fit`` and ``transform``.
    n_components : int
        Number of Fourier features.
    transition : "example" or "chunk"
        Forget before every row, or once for every call of `partial_fit`.
    noise_var, prior_var : "auto" or float
        Variances of the targets' noise and of the weights before any data.
    predictive : "exact", "probit", "monte-carlo" or "plug-in"
        How logits turn into probabilities; see `kalstream.core.class_probabilities`. Of a mixture,
        "exact" takes the lightest components, a tenth of it together, by probit.
    calibration : "auto", float, Calibration or sequence of floats
        Factor that multiplies logits: learned ("auto"), fixed, or for a mixture a grid.
    class_weight : dict, "balanced" or None
        Weights of classes; "balanced" goes by the frequencies so far.
    stacking : bool
        Whether what the filters of a mixture say is also combined by a logistic regression that
        learns online, see `kalstream.core.Stack`. Without a mixture there is nothing to combine.
    recent_labels : bool
        Whether that also sees the labels before a row in `predict_then_learn`, where they are
        known. `predict_proba` is for any row, not the next one, and makes no use of them.
    intercept : bool
    time_unit : float or timedelta
        What ``time`` is counted in: half-lives, of 100 to 100,000, are in these units. Of dates a
        number means seconds: for rows that come daily give ``timedelta(days=1)``.
    dtype : float64 or float32
        float32 needs half the memory, and refuses rows with a `NumericalError` once its rounding
        can no longer be trusted: within thousands of rows if features are collinear, as the waves
        of a few columns are.
    random_state : int, RandomState, Generator or None
        Of the Fourier features and of sampled predictions.

    Attributes
    ----------
    classes_ : (K,)
        Labels seen or declared so far, sorted; it grows.
    coef_, intercept_, cov_ : (K, m), (K,), (m, m)
        Of the most believed filter, for the columns that `features` makes.
    filters_, half_life_weights_
        All filters, and how much each half-life is believed.
    gamma_, half_life_, calibration_ : float
    n_seen_ : int
        Rows that have passed.
    health_ : Health
        Its ``nis`` is above 1 as a rule: noise_var is small, and calibration makes up for it.
    nbytes_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Rows are learned in their order, and what came last counts most: shuffle data that are sorted
    by class, unless that is how they come.

    Parameters can be changed on a fitted estimator, but those that the model was built from
    (features, n_components, intercept, dtype, random_state) take effect with the next `fit` or
    `reset`.

    A label of None or NaN in `partial_fit` lets time pass and teaches nothing. A NaN in X stands
    for the column's mean so far ("raw": for 0) and teaches nothing about the column's scale.

    `predict`, `predict_proba` and the like may be called by other threads while one learns.

    Memory is constant: see `nbytes_` for the formula.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = KalmanClassifier(random_state=0)
    >>> for step in range(200):  # the rule turns round half way
    ...     X = rng.standard_normal((1, 2))
    ...     flip = step >= 100
    ...     model = model.partial_fit(X, ["up" if (X[0, 0] > 0) != flip else "down"])
    >>> model.predict([[2.0, 0.0]])
    array(['down'], dtype='<U4')
    >>> model.partial_fit([[0.0, 5.0]], ["sideways"]).classes_
    array(['down', 'sideways', 'up'], dtype='<U8')
    """

    def __init__(
        self,
        forgetting: Any = "mixture",
        features: Any = "fourier",
        *,
        n_components: int = 200,
        transition: str = "example",
        noise_var: float | str = "auto",
        prior_var: float | str = "auto",
        predictive: str = "exact",
        calibration: Any = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        stacking: bool = True,
        recent_labels: bool = True,
        intercept: bool = True,
        time_unit: Any = 1.0,
        dtype: Any = np.float64,
        random_state: Any = None,
    ) -> None:
        self.forgetting = forgetting
        self.features = features
        self.n_components = n_components
        self.transition = transition
        self.noise_var = noise_var
        self.prior_var = prior_var
        self.predictive = predictive
        self.calibration = calibration
        self.class_weight = class_weight
        self.stacking = stacking
        self.recent_labels = recent_labels
        self.intercept = intercept
        self.time_unit = time_unit
        self.dtype = dtype
        self.random_state = random_state

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
                f"y contains NaN or None at row {labels.index(None)}; fit needs every label, "
                "partial_fit lets time pass without one"
            )
        self._learn(X, self._targets(labels), sample_weight, time, first=True, whole=True)
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
            Labels that may come. Not needed: a class that comes late gives the same model.
        sample_weight : (b,), optional
            The noise of a row is divided by its weight; 0 is the same as no label.
        time : (b,) numbers or dates, optional
            When each row came, not decreasing; forgetting then goes by time, not by rows.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.partial_fit([[0.0]], [None]).n_seen_  # time passes, nothing is learned
        3
        >>> model.partial_fit([[5.0]], ["new"]).classes_.tolist()
        ['down', 'new', 'up']
        """
        declared = [] if classes is None else read_labels(classes, name="classes")
        self._learn(X, self._targets(read_labels(y), declared), sample_weight, time)
        return self

    def _targets(self, names: list[Any], declared: Sequence[Any] = ()) -> _LabelTargets:
        check.choice("predictive", self.predictive, METHODS)
        check.flag("stacking", self.stacking)
        check.flag("recent_labels", self.recent_labels)
        return _LabelTargets(names, declared, self.class_weight)

    def predict_then_learn(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        time: Any = None,
    ) -> Array:
        """Predict each row before its label is seen, and learn it, row after row in one call.

        As `predict_proba` and `partial_fit` of one row at a time (of the chunk as a whole, if
        transition is "chunk"), several times faster. Since the label of a row is known here before
        the next one is predicted, it also learns how labels follow each other, and predicts with
        that; with ``recent_labels=False``, or transition "chunk", it is the same as the two calls.

        Parameters
        ----------
        X, y, sample_weight, time
            As in `partial_fit`.

        Returns
        -------
        probabilities : (b, K)
            Of `classes_` as they are afterwards: 0 for a class that was not known before the row,
            and a row of zeros if none was.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw")
        >>> model.predict_then_learn([[1.0], [-1.0], [1.0]], ["up", "down", "up"]).round(2)
        array([[0.  , 0.  ],
               [0.  , 1.  ],
               [0.02, 0.98]])
        """
        names = read_labels(y)
        targets = self._targets(names)
        model, predictions = self._learn(X, targets, sample_weight, time, predict=True)
        out, start = np.zeros((len(names), len(model.labels.names))), 0
        for part in predictions:
            out[start : start + len(part), : part.shape[1]] = part
            start += len(part)
        return out[:, model.labels.order]

    def _prediction(self, model: Model, step: Any, n: int) -> Array:
        if step is None or model.state is None:
            return np.zeros((n, 0))
        return self._answer(model, step)

    def _finished(
        self, before: Model, model: Model, chunk: Chunk, step: Any, y: Any, predict: bool
    ) -> tuple[Model, Any]:
        n, codes = len(chunk.rows), y.labels
        if not predict:
            return self._stacked(model, step, codes), None
        if self.transition == "chunk":
            ahead = self._ahead_of(before, chunk)
            known = np.zeros((n, 0)) if ahead is None else self._corrected(before, ahead)
            return self._stacked(model, step, codes), known
        plain = self._prediction(before, step, n)
        if not (self.stacking and isinstance(step, MixtureStep)):
            return self._stacked(model, step, codes), plain
        codes, weight = self._learned(step, codes)
        if not self.recent_labels:
            stack, corrected = _grown(model.stack, step).learn(step, codes, weight, plain=plain)
            return model.but(stack=stack, ordered=None), corrected
        stack, _ = _grown(model.stack, step).learn(step, codes, weight)
        ordered, corrected = _grown(model.ordered, step).learn(
            step, codes, weight, plain=plain, ordered=True
        )
        return model.but(stack=stack, ordered=ordered), corrected

    def _stacked(self, model: Model, step: Any, codes: Array) -> Model:
        """The model after its stacks have learned rows that nobody asked to be predicted."""
        if not (self.stacking and isinstance(step, MixtureStep)):
            return model if model.stack is None else model.but(stack=None, ordered=None)
        codes, weight = self._learned(step, codes)
        stack, ordered = _grown(model.stack, step).learn(step, codes, weight)[0], None
        if self.recent_labels and model.ordered is not None:
            ordered, _ = _grown(model.ordered, step).learn(step, codes, weight)
        return model.but(stack=stack, ordered=ordered)

    def _learned(self, step: MixtureStep, codes: Array) -> tuple[Array, Array]:
        """Labels (b,) of the rows that were learned, -1 for others, and weights (b,)."""
        weight = self._policy_and_settings()[1]["noise_var"] / step.told.noise_var
        return np.where(weight > 0.0, codes, -1), weight

    def _n_outputs(self, model: Model) -> int:
        return len(model.labels.names)

    def _auto_noise_var(self) -> float:
        return _NOISE_VAR

    # ---- predicting -----------------------------------------------------------------------

    def predict_proba(self, X: ArrayLike, time: Any = None) -> Array:
        """Probabilities (b, K) of `classes_`, one step ahead.

        Parameters
        ----------
        X : (b, d)
        time : number or (b,), optional
            When the rows come; one unit after the last row learned if not given.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_proba([[1.0]]).round(2)
        array([[0.02, 0.98]])
        """
        return self._probabilities(X, time)[0]

    def _probabilities(self, X: Any, time: Any) -> tuple[Array, Array]:
        """Probabilities (b, K), and the classes they are of, from one and the same model."""
        model = self._model
        said = self._corrected(model, self._ahead(model, X, time)[0])
        return said[:, model.labels.order], model.labels.classes

    @interruptible
    def _corrected(self, model: Model, ahead: Any) -> Array:
        """Probabilities (b, K) in the order of the filter's outputs, after the stack."""
        said = self._answer(model, ahead)
        if not self.stacking or model.stack is None:
            return said
        return model.stack.predict(ahead, said, ordered=False)

    def _answer(self, model: Model, ahead: Any) -> Array:
        """Probabilities (b, K) in the order of the filter's outputs."""
        how: dict[str, Any] = {"method": self.predictive, "random_state": model.seed}
        ahead = _among(ahead, len(model.labels.names))
        if isinstance(ahead, MixtureStep):
            return mixture_probabilities(ahead, light=_LIGHT, **how)
        moments = ahead.logit_mean, np.maximum(ahead.logit_var, 0.0)
        return class_probabilities(*moments, calibration=ahead.calibration, **how)

    def predict_log_proba(self, X: ArrayLike, time: Any = None) -> Array:
        """Logarithms of `predict_proba` (b, K).

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict_log_proba([[1.0]]).round(2)
        array([[-4.19, -0.02]])
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
            Rows whose best label is less probable than this get None; the array is then one of
            objects.
        time
            As in `predict_proba`.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.predict([[2.0], [0.0]], abstain_below=0.7)
        array(['up', None], dtype=object)
        """
        found, classes = self._probabilities(X, time)
        labels = classes[found.argmax(axis=1)]
        if abstain_below is None:
            return labels
        threshold = check.unit_interval("abstain_below", abstain_below)
        labels = labels.astype(object)
        labels[found.max(axis=1) < threshold] = None
        return labels

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of rows whose most probable label is the one in y, weighted if asked.

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
        names, found = read_labels(y), self.predict(X).tolist()
        if None in names or len(names) != len(found):
            raise InvalidInput(
                f"y has {sum(name is not None for name in names)} labels for the {len(found)} rows "
                "of X; a score needs one for each"
            )
        hits = [one == other for one, other in zip(names, found, strict=True)]
        weight = read_weights(sample_weight, len(hits))
        if weight is not None and not weight.any():
            raise InvalidInput("sample_weight is zero in every row: nothing to score")
        return float(np.average(hits, weights=weight))

    # ---- classes --------------------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """Labels seen or declared so far (K,), sorted."""
        model = self._model
        self._state(model)
        return model.labels.classes

    @property
    def coef_(self) -> Array:
        """Weights (K, m) of the most believed filter, without the intercepts."""
        model = self._model
        return self._weights(model)[0].T[model.labels.order]

    @property
    def intercept_(self) -> Array:
        """Intercepts (K,) of the most believed filter."""
        model = self._model
        return self._weights(model)[1][model.labels.order]

    def retire_class(self, label: Any) -> Self:
        """Drop a class; should its label come again, it is a new class.

        The weights of the others are as if it had never been declared.

        Examples
        --------
        >>> model = KalmanClassifier(features="raw").partial_fit([[1.0], [-1.0]], ["up", "down"])
        >>> model.partial_fit([[0.0]], ["flat"]).retire_class("flat").classes_.tolist()
        ['down', 'up']
        """

        def change(model: Model) -> tuple[Model, None]:
            try:
                column = model.labels.column.get(label)
            except Exception:  # it has no hash, or cannot be compared
                column = None
            if column is None:
                known = ", ".join(map(repr, model.labels.classes[:10].tolist()))
                raise InvalidInput(
                    f"{check.shown(label)} is no class of this model; it knows {known}"
                )
            if len(model.labels.names) == 1:
                raise InvalidInput(f"{label!r} is the only class; call reset() to start anew")
            kept = np.delete(np.arange(len(model.labels.names)), column)
            smaller = replace(
                model,
                labels=model.labels.without(label),
                counts=model.counts[kept],
                stack=_kept(model.stack, kept),
                ordered=_kept(model.ordered, kept),
                state=self._state(model).keep_outputs(kept),
            )
            return smaller, None

        self._state(self._model)
        self._published.update(change)
        return self

    def _health(self, model: Model) -> Health:
        report = super()._health(model)
        # Outputs that no class has yet were foreseen perfectly, and do not count.
        return replace(report, nis=report.nis * len(model.state.seen) / len(model.labels.names))


@dataclass(slots=True)  # not frozen: that triples the time to make one
class _LabelTargets:
    """Labels of a chunk as plain values, None where unknown; those that may come; their weights."""

    names: list[Any]
    declared: Sequence[Any]
    class_weight: Any

    def check(self, n: int) -> None:
        if len(self.names) != n:
            raise InvalidInput(f"y has {len(self.names)} labels for the {n} rows of X")

    def end_of_piece(self, model: Model, start: int) -> int:
        """Behind the next row whose label is new: rows before it have no probability of it."""
        column, names = model.labels.column, self.names
        new = (i for i in range(start, len(names)) if names[i] is not None)
        return next((i + 1 for i in new if names[i] not in column), len(names))

    def read(
        self, model: Model, piece: slice, weight: Array | None
    ) -> tuple[Model, Any, Array | None]:
        names = self.names[piece]
        labels = model.labels.with_new(self.declared).with_new(names)
        codes = labels.codes(names)
        # A row of weight 0 is as one without a label.
        learned = codes if weight is None else np.where(weight > 0.0, codes, -1)
        counts = np.bincount(learned + 1, minlength=len(labels.names) + 1)[1:].astype(np.float64)
        before = model.counts
        if len(before) < len(counts):
            before = np.pad(before, (0, len(counts) - len(before)))
        factor = _class_weights(self.class_weight, labels, learned, before)
        if factor is not None:
            weight = factor if weight is None else weight * factor
        read = check.Targets(codes, None, codes >= 0)
        return model.but(labels=labels, counts=counts + before), read, weight


def _class_weights(class_weight: Any, labels: Labels, codes: Array, counts: Array) -> Array | None:
    """Weights (b,) of rows by their class, given how often each came before."""
    if class_weight is None:
        return None
    if isinstance(class_weight, Mapping):
        each = check.non_negative_rows(
            "class_weight",
            [class_weight.get(name, 1.0) for name in labels.names],
            len(labels.names),
        )
        return np.append(each, 1.0)[codes]  # the last for rows without a label, -1
    if not isinstance(class_weight, str) or class_weight != "balanced":
        raise InvalidInput(
            f'class_weight must be a dict, "balanced" or None, got {check.shown(class_weight)}'
        )
    factor, so_far = np.ones(len(codes)), counts.copy()
    for i, code in enumerate(codes):
        if code >= 0:
            so_far[code] += 1.0
            factor[i] = so_far.sum() / (np.count_nonzero(so_far) * so_far[code])
    return factor


def _grown(stack: Stack | None, step: MixtureStep) -> Stack:
    """A stack, new if there was none, with room for the classes of a step."""
    n_filters, _, n_classes = step.logit_mean.shape
    if stack is None:
        return Stack.start(n_filters, n_classes)
    return stack if len(stack.counts) == n_classes else stack.add_classes(n_classes)


def _kept(stack: Stack | None, columns: Array) -> Stack | None:
    """A stack with these classes only."""
    if stack is None:
        return None
    return stack.add_classes(max(len(columns) + 1, len(stack.counts))).keep_classes(columns)


def _among(step: Any, n_known: int) -> Any:
    """What rows tell of the first outputs only."""
    if step.logit_mean.shape[-1] == n_known:
        return step
    means = np.ascontiguousarray(step.logit_mean[..., :n_known])
    if isinstance(step, MixtureStep):
        told = replace(step.told, logit_mean=means)
        parts = step.weights, step.log_prob, step.scale, step.half_lives, step.calibrations
        return check.trusted(MixtureStep, told, *parts)
    return replace(step, logit_mean=means)
