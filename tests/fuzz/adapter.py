"""The adapter for river: rows as dicts with changing features, good and bad calls."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from fuzz.cases import Case, Twins, equal, expect, shown
from kalstream.compat import river as adapters

NAMES = ("a", "b", "c", 4, ("d", 5))
LABELS: tuple[list[Any], ...] = (["x", "y", "z"], [0, 1, 2], [True, False], ["x", 1])
BAD_VALUES = ("red", float("inf"), -float("inf"), 1e300, 10**400, 1j, [1.0], {}, b"1", object)
BAD_ROWS = (None, 1.0, "ab", ["a"], [("a", 1.0)], {1.0, 2.0}, np.zeros(2))
BAD_LABELS = ([1], {}, {1}, 0.5, float("inf"), np.zeros(2), [1, 2])
BAD_TARGETS = ("x", [1.0], [1.0, 2.0], {}, float("inf"), 1e300, 1j, np.zeros(2), b"1", 10**400)
BAD_WEIGHTS = (-1.0, float("nan"), float("inf"), "heavy", None, [1.0, 2.0], {}, 1j)


def case(case: Case) -> None:
    """Run one case: random calls of a classifier or a regressor."""
    classifies, pick = case.chance(0.6), case.pick
    given: dict[str, Any] = {
        "forgetting": pick(["mixture", "mixture", 0.99, 1.0, 0.0]),
        "features": pick(["raw", "scaled", "fourier"]),
        "n_components": int(case.rng.integers(1, 9)),
        "transition": pick(["example", "example", "chunk"]),
        "intercept": not case.chance(0.2),
        "seed": 3,
    }
    if classifies:
        given |= {"class_weight": pick([None, "balanced"]), "stacking": case.chance(0.7)}
    cls = adapters.KalmanClassifier if classifies else adapters.KalmanRegressor
    case.note(f"{cls.__name__}({', '.join(f'{k}={shown(v)}' for k, v in given.items())})")
    path = case.folder / "twin"

    def bytes_of(model: Any) -> Any:
        if model.estimator.n_seen_ == 0:
            return model.feature_names_, None
        model.estimator.save(path)
        return model.feature_names_, path.read_bytes()

    twins = Twins(
        case, lambda: cls(**given), bytes_of, lambda m: m.estimator.__sklearn_is_fitted__()
    )
    run = _River(case, twins, classifies)
    for _ in range(int(case.rng.integers(4, 20))):
        getattr(run, pick(["learn"] * 4 + ["bad"] * 5 + ["predict"] * 2 + ["other"]))()
        run.check()


class _River:
    """The calls of one case."""

    def __init__(self, case: Case, twins: Twins, classifies: bool) -> None:
        self.case, self.twins, self.classifies = case, twins, classifies
        self.labels = case.pick(LABELS)
        self.n_features = int(case.rng.integers(1, 4))
        self.n_seen = 0

    # ---- arguments ------------------------------------------------------------------------

    def row(self) -> dict[Any, Any]:
        if self.case.chance(0.1):
            self.n_features = min(self.n_features + 1, len(NAMES))
        kinds = [float, float, float, int, bool, np.float32, lambda v: Decimal(repr(float(v)))]
        kinds += [lambda v: None, lambda v: float("nan")]
        names = [n for n in NAMES[: self.n_features] if self.case.chance(0.8)]
        return {name: self.case.pick(kinds)(self.case.rng.normal() * 3.0) for name in names}

    def target(self) -> Any:
        if self.case.chance(0.15):
            return None
        return self.case.pick(self.labels) if self.classifies else float(self.case.rng.normal())

    def rows(self, n: int) -> tuple[pd.DataFrame, pd.Series]:
        names = [name for name in NAMES[: self.n_features] if self.case.chance(0.9)] or ["a"]
        X = self.case.rng.standard_normal((n, len(names)))
        X[self.case.rng.random(X.shape) < 0.2] = np.nan
        y = [self.target() for _ in range(n)]
        kind = object if self.classifies else np.float64
        index = range(10, 10 + n)
        frame = pd.DataFrame(X, index=index)
        frame.columns = pd.Index(names, dtype=object, tupleize_cols=False)
        return frame, pd.Series(y, index=index, dtype=kind)

    # ---- calls ----------------------------------------------------------------------------

    def learn(self) -> None:
        if self.case.chance(0.6):
            weight = {} if self.case.chance(0.7) else {"w": self.case.pick([0.0, 0.5, 3])}
            self.twins.good("learn_one", self.row(), self.target(), **weight)
            self.n_seen += 1
            return
        n = self.case.pick([1, 2, 5, 20])
        X, y = self.rows(n)
        weight = {} if self.case.chance(0.7) else {"w": self.case.rng.choice([0.0, 1.0, 2.0], n)}
        first = copy.deepcopy(self.twins.tested) if n <= 5 else None
        self.twins.good("learn_many", X, y, **weight)
        self.n_seen += n
        if first is not None and self.twins.tested.transition == "example":
            self.check_loop(first, X, y, weight.get("w", np.ones(n)))

    def check_loop(self, first: Any, X: Any, y: Any, w: Any) -> None:
        self.case.note("the same rows one by one, on a copy")
        for i in range(len(X)):
            target = None if pd.isna(y.iloc[i]) else y.iloc[i]
            first.learn_one(dict(zip(X.columns, X.iloc[i], strict=True)), target, w=float(w[i]))
        if first.estimator.__sklearn_is_fitted__():
            x = self.row()
            models = first, self.twins.tested, self.twins.steady
            one, other, _ = (self.predicted(model, x) for model in models)
            same = np.allclose(one, other, rtol=1e-8, atol=1e-8)
            expect(same, f"learn_many gives {shown(other)}, learn_one row by row {shown(one)}")

    def predicted(self, model: Any, x: Any) -> Any:
        if not self.classifies:
            return np.array([model.predict_one(x)])
        return np.array(list(model.predict_proba_one(x).values()))

    def predict(self) -> None:
        X, _ = self.rows(self.case.pick([0, 1, 4]))
        names = ["predict_one", "predict_many"]
        names += ["predict_proba_one", "predict_proba_many"] if self.classifies else []
        name = self.case.pick(names)
        # Of both twins: a row that is learned next after its prediction is learned in one step.
        self.twins.good(name, X if name.endswith("many") else self.row())

    def other(self) -> None:
        kind = self.case.pick(["clone", "deepcopy", "pickle"])
        self.case.note(kind)
        old = self.twins.tested
        expect(not old.clone().feature_names_, "a clone knows features")
        if kind == "deepcopy":
            self.twins.tested = copy.deepcopy(old)
        elif kind == "pickle":
            self.twins.tested = pickle.loads(pickle.dumps(old))
        self.twins.check_equal(kind)
        # A copy does not know which rows were predicted.
        for model in (self.twins.tested, self.twins.steady):
            model._last = model._predicted = None

    def bad(self) -> None:
        case, twins = self.case, self.twins
        what = case.pick(["row", "value", "target", "weight", "many", "many", "predict"])
        x, y = self.row(), self.target()
        x["a feature of a bad row"] = 1.0
        bad_targets = BAD_LABELS if self.classifies else BAD_TARGETS
        if what == "row":
            twins.bad("learn_one", case.pick(BAD_ROWS), y, why="x is not a dict")
        elif what == "value":
            twins.bad("learn_one", x | {case.pick(NAMES): case.pick(BAD_VALUES)}, y, why="value")
        elif what == "target":
            twins.bad("learn_one", x, case.pick(bad_targets), why="target")
        elif what == "weight":
            twins.bad("learn_one", x, y, w=case.pick(BAD_WEIGHTS), why="weight")
        elif what == "predict":
            name = "predict_one"
            if self.classifies:
                name = case.pick(["predict_one", "predict_proba_one"])
            if self.twins.fitted(self.twins.tested):
                twins.bad(name, case.pick(BAD_ROWS), why="x is not a dict")
        else:
            self.bad_frame()

    def bad_frame(self) -> None:
        n = self.case.pick([1, 3])
        X, y = self.rows(n)
        X["a feature of a bad row"] = 1.0
        why = self.case.pick(["array", "list", "texts", "1e300", "twice", "short", "target", "w"])
        given: dict[str, Any] = {}
        if why in ("array", "list"):
            X = X.to_numpy() if why == "array" else X.to_numpy().tolist()
        elif why in ("texts", "1e300"):
            X["a"] = "red" if why == "texts" else 1e300
        elif why == "twice":
            X = pd.concat([X, X], axis=1)
        elif why == "short":
            y = y.iloc[:-1]
        elif why == "w":
            given = {"w": self.case.pick([-1.0, np.full(n, np.nan), np.ones(n + 1), "heavy"])}
        else:
            bad = {"labels": [[1], {}, 0.5], "numbers": ["x", {}, float("inf"), 1e300]}
            value = self.case.pick(bad["labels" if self.classifies else "numbers"])
            y = pd.Series([value] * n, index=X.index, dtype=object)
        self.twins.bad("learn_many", X, y, why=f"frame: {why}", **given)

    # ---- checks after every call ----------------------------------------------------------

    def check(self) -> None:
        model = self.twins.tested
        n_seen = model.estimator.n_seen_
        expect(n_seen == self.n_seen, f"n_seen_ is {n_seen} of {self.n_seen} rows")
        if not self.twins.fitted(model):
            return
        x = self.row()
        prediction = self.predicted(model, x)
        if not model._is_late:  # otherwise the row is kept
            self.twins.check_equal("a prediction of one twin")
        same = equal(prediction, self.predicted(self.twins.steady, x))
        self.twins.check_equal("a prediction of both twins")
        expect(same, "twins predict different bits")
        whole = not self.classifies or abs(prediction.sum() - 1.0) < 1e-6
        expect(np.isfinite(prediction).all() and whole, f"a prediction is {shown(prediction)}")
        total = sum(model.half_life_weights_.values())
        expect(abs(total - 1.0) < 1e-9, f"half_life_weights_ sum to {total}")
        if not self.classifies:
            sigma = model.predict_one(x, with_dist=True).sigma
            expect(sigma >= 0.0, f"a standard deviation is {sigma}")
