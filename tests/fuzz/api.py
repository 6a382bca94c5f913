"""The estimators: random hyper-parameters, good and bad calls, and checks after each call."""

from __future__ import annotations

import copy
import datetime
import pickle
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fuzz import values
from fuzz.cases import Case, Twins, equal, expect, shown
from fuzz.late import Rows
from kalstream import KalmanClassifier, KalmanRegressor
from kalstream.core import Calibration, Fixed, LabelChain, Learned, Linear, Mixture, Neighbours
from kalstream.errors import NumericalError
from kalstream.features import Aggregates, OnlineScaler

LABELS: tuple[list[Any], ...] = (
    ["a", "b", "c", "d"],
    [0, 1, 2, 3],
    [True, False],
    ["one", 2, "three", 4],
    [("a", 1), ("b", 2), ("c", 3)],
    [-1.0, 0.0, 1e6],
)
ATTRIBUTES = (
    *("classes_", "coef_", "intercept_", "cov_", "filters_", "half_life_weights_", "health_"),
    *("gamma_", "half_life_", "calibration_", "nbytes_", "n_seen_", "n_features_in_"),
)
LEARNING = ("fit", "partial_fit", "predict_then_learn")
DAY = np.datetime64("2020-01-01", "s")


def parameters(case: Case, labels: list[Any] | None) -> dict[str, Any]:
    """Random valid hyper-parameters, of a regressor if there are no labels."""
    rng, pick = case.rng, case.pick
    policies = ["mixture"] * 6 + ["learned", 0.0, 1.0, 0.9, 0.999, Fixed(0.95)]
    policies += [Learned(lr=0.001), Mixture(half_lives=(5.0, 50.0, float("inf")), share=0.01)]
    chosen: dict[str, Any] = {
        "forgetting": pick(policies),
        "features": pick(
            [
                *("raw", "scaled", "scaled", "fourier", "fourier", OnlineScaler(20.0)),
                Aggregates(["0:0:mean:3", "0:0:lag:2"], then=pick(["raw", "scaled"]), max_keys=4),
            ]
        ),
        "n_components": int(rng.integers(1, 12)),
        "transition": pick(["example"] * 3 + ["chunk"]),
        "noise_var": pick(["auto", float(10.0 ** rng.uniform(-2, 1))]),
        "prior_var": pick(["auto", float(10.0 ** rng.uniform(-1, 1))]),
        "intercept": not case.chance(0.2),
        "time_unit": pick([1.0, 2.5, datetime.timedelta(days=1), np.timedelta64(6, "h")]),
        "dtype": pick([np.float64] * 5 + ["float32"]),
        "random_state": pick([0, 7, np.random.RandomState(3), np.random.default_rng(4)]),
        "predictive": pick(["exact", "exact", "probit", "monte-carlo", "plug-in"]),
        "calibration": pick(["auto", "auto", 1.0, 0.5]),
        "max_waiting": pick([100_000, 100_000, 30, 5, 1]),
        "max_age": pick([None, None, None, 500.0, 20, 2.5, 1.0]),
    }
    policy = chosen["forgetting"]
    if not isinstance(policy, str | float):
        chosen["calibration"] = "auto"
    elif case.chance(0.3):
        chosen["calibration"] = [0.5, 2.0, 8.0] if policy == "mixture" else Calibration()
    if policy == "mixture":
        chosen["order"] = pick([1, 1, 1, 2, 3, (1, 2), [3, 1]])
    elif isinstance(policy, float) and policy > 0.0:
        chosen["order"] = pick([1, 1, 2, 3])
    if labels is None:
        learned = policy == "learned" or isinstance(policy, Learned)
        if learned and chosen["noise_var"] == "auto":
            chosen["noise_var"] = 0.1
        return chosen
    weights = {label: float(rng.uniform(0.0, 3.0)) for label in labels[:2]}
    chosen["class_weight"] = pick([None, None, "balanced", weights])
    chosen["stacking"], chosen["recent_labels"] = not case.chance(0.3), not case.chance(0.3)
    if policy == "mixture" and chosen["stacking"]:
        chosen["preset"] = pick(["default", "default", "fast", "accurate"])
    if chosen.get("preset", "fast") != "fast":
        chosen["experts"] = pick([*[None] * 4, [], [LabelChain()], [Neighbours(limit=5), Linear()]])
    return chosen


class Stream:
    """Makes the good arguments of the calls of one case, and keeps track of time and labels."""

    def __init__(self, case: Case, labels: list[Any] | None) -> None:
        self.case, self.labels = case, labels
        self.d = int(case.rng.integers(1, 5))
        self.scale = 10.0 ** case.rng.uniform(-2, 2, self.d)
        self.timed = case.chance(0.35)
        self.dates = self.timed and case.chance(0.4)
        self.framed = case.chance(0.15)
        self.flat = case.chance(0.7)
        self.unit = float(10.0 ** case.rng.uniform(-1, 2))
        self.clock = 0.0
        self.known = 2 if labels is None else int(case.rng.integers(1, len(labels) + 1))

    def size(self) -> int:
        return self.case.pick([1, 1, 1, 2, 3, 7, 40, 70])

    def rows(self, n: int) -> Any:
        X = values.rows(self.case, n, self.d, self.scale)
        if self.framed:
            return pd.DataFrame(X, columns=[f"c{k}" for k in range(self.d)])
        if self.case.chance(0.1):
            return X.tolist()
        return X.astype(np.float32) if self.case.chance(0.1) else X

    def targets(self, n: int, *, whole: bool = False) -> Any:
        """Labels or numbers, without missing ones if ``whole``; sometimes a new label comes."""
        rng = self.case.rng
        missing = np.zeros(n, bool) if whole else rng.random(n) < self.case.pick([0.0, 0.0, 0.3])
        if self.labels is None:
            y = self.unit * rng.standard_normal((n, 1 if self.flat else 2))
            if self.case.chance(0.1):
                y[:] = 1.5
            y[missing] = np.nan
            return y[:, 0] if self.flat else y
        if self.case.chance(0.1):
            self.known = min(self.known + 1, len(self.labels))
        each = [self.labels[i] for i in rng.integers(0, self.known, n)]
        return [None if gone else label for label, gone in zip(each, missing, strict=True)]

    def weight(self, n: int) -> Any:
        if self.case.chance(0.75):
            return None
        w = self.case.rng.choice([0.0, 0.3, 1.0, 5.0], n)
        w[0] = 1.0
        return w

    def time(self, n: int) -> Any:
        """Increasing times, or None; `taken` advances the clock after they are learned."""
        if not self.timed:
            return None
        gaps = self.case.rng.choice([0.0, 1.0, 1.0, 2.5, 400.0], n)
        if self.case.chance(0.2):
            gaps[:] = 0.0
        return self.as_times(self.clock + gaps.cumsum())

    def as_times(self, times: Any) -> Any:
        return DAY + (times * 86400).astype("timedelta64[s]") if self.dates else times

    def taken(self, time: Any) -> None:
        if time is not None:
            last = self.numbers(time)[-1]
            self.clock = last / 86400 if self.dates else last

    def numbers(self, time: Any) -> list[float]:
        """Times as numbers, dates as seconds."""
        return ((time - DAY) / np.timedelta64(1, "s") if self.dates else time).tolist()


def classifier(case: Case) -> None:
    _run(case, case.pick(LABELS))


def regressor(case: Case) -> None:
    _run(case, None)


def _run(case: Case, labels: list[Any] | None) -> None:
    cls = KalmanRegressor if labels is None else KalmanClassifier
    given, stream = parameters(case, labels), Stream(case, labels)
    case.note(f"{cls.__name__}({', '.join(f'{k}={shown(v)}' for k, v in given.items())})")
    template, path = cls(**given), case.folder / "twin"

    def bytes_of(model: Any) -> Any:
        names = sorted(name for name in vars(model) if not name.startswith("_"))
        if "_published" not in vars(model):
            return names, repr(model.get_params() | {"random_state": None})
        model.save(path)
        return names, path.read_bytes()

    twins = Twins(case, lambda: clone(template), bytes_of, lambda m: m.__sklearn_is_fitted__())
    run = _Api(case, twins, stream)
    for _ in range(int(case.rng.integers(4, 16))):
        kinds = ["learn"] * 4 + ["bad"] * 5 + ["late"] * 3 + ["bad_late"] + ["predict"] * 2
        kind = case.pick([*kinds, "other"])
        getattr(run, kind)()
        run.check()
    run.check_copied()


class _Api:
    """The calls of one case."""

    def __init__(self, case: Case, twins: Twins, stream: Stream) -> None:
        self.case, self.twins, self.stream = case, twins, stream
        self.n_seen, self.n_came = 0, 0
        model = twins.tested
        self.rows = Rows(model.max_waiting, model.max_age, model._settings.unit)
        self.copied: list[tuple[Any, Any]] = []  # a model that was copied, and its bytes
        self.classifies = stream.labels is not None
        self.is_float32 = twins.tested.get_params()["dtype"] == "float32"
        self.probe = stream.rows(3)

    @property
    def started(self) -> bool:
        """Whether rows were learned or asked for: then the columns are known."""
        return self.n_came > 0

    @property
    def fitted(self) -> bool:
        return self.twins.fitted(self.twins.tested)

    @property
    def may(self) -> Any:
        """Errors that a good call may raise: float32 raises when rounding errors are too large."""
        return NumericalError if self.is_float32 else ()

    def ahead(self, n: int) -> dict[str, Any]:
        """The time argument of a prediction."""
        time = self.stream.time(n)
        return {} if time is None or self.n_seen == 0 else {"time": time}

    # ---- good calls -----------------------------------------------------------------------

    def learn(self) -> None:
        stream, n = self.stream, self.stream.size()
        method = self.case.pick(["partial_fit"] * 3 + ["predict_then_learn"] * 3 + ["fit"])
        clock = stream.clock
        if method == "fit":
            stream.clock = 0.0
        X, y, may = stream.rows(n), stream.targets(n, whole=method == "fit"), self.may
        given = {"sample_weight": stream.weight(n), "time": stream.time(n)}
        if self.classifies and method == "partial_fit" and self.case.chance(0.1):
            given["classes"] = stream.labels
        if not self.classifies and self.fitted and self.case.chance(0.1):
            y = np.array(y)
            y[0] = stream.unit * self.case.pick([1e5, 1e7, -1e9, 1e12])
            may = NumericalError
        loop = self.n_seen and may == () and method != "fit" and self.case.chance(0.3)
        first = self.twins.tested.snapshot() if loop else None
        value, error = self.twins.good(method, X, y, may=may, **given)
        if error is not None:
            stream.clock = clock
            return
        if method == "fit":
            self.forget()
        self.n_seen, self.n_came = self.n_seen + n, self.n_came + n
        stream.taken(given["time"])
        if method == "predict_then_learn":
            self.check_predictions(value, n)
        if first is not None:
            self.check_loop(first, method, X, y, given)

    def forget(self) -> None:
        """The model forgot everything."""
        self.n_seen, self.n_came = 0, 0
        self.rows.clear()

    def late(self) -> None:
        """Ask for rows, then tell targets of rows that were asked for; or both in one call."""
        case, stream, n = self.case, self.stream, self.stream.size()
        ids, X, time = self.rows.new_ids(case, n), stream.rows(n), stream.time(n)
        given, counts = {"ids": ids, "time": time}, self.twins.tested.waiting_
        names = list(range(self.rows.n_asked, self.rows.n_asked + n) if ids is None else ids)
        keys = self.rows.some(case)
        places = np.sort(case.rng.integers(0, n + 1, len(keys))).tolist()
        together = case.chance(0.3)
        if together:
            keys, places = keys + names[::2], places + [n] * len(names[::2])
            given |= {"sample_weight": stream.weight(len(keys))} if keys else {}
            args = X, keys, stream.targets(len(keys)), case.pick([list, np.array])(places)
            value, error = self.twins.good("ask_and_tell", *args, may=self.may, **given)
        else:
            ahead = not self.is_float32 and case.chance(0.5)
            expected = self.twins.alone("ask", X, keep=False, **given) if ahead else None
            value, error = self.twins.good("ask", X, may=self.may, **given)
            same = expected is None or error is not None or equal(value, expected)
            expect(same, f"ask: {shown(value)}, but {shown(expected)} with keep=False")
        if error is not None:
            return
        stream.taken(time)
        self.n_came += n
        self.check_predictions(value, n)
        self.enter(names, time, *((keys, places) if together else ([], [])))
        if not together and keys:
            weight = stream.weight(len(keys))
            y, may = stream.targets(len(keys)), self.may
            _, error = self.twins.good("tell", keys, y, sample_weight=weight, may=may)
            if error is None:
                self.enter([], None, keys, [0] * len(keys))
        after = self.twins.tested.waiting_
        self.n_seen += after.told + after.corrected - counts.told - counts.corrected

    def enter(self, names: list[Any], time: Any, keys: list[Any], places: list[int]) -> None:
        """Rows were asked for, and targets told, each behind so many of the rows."""
        times = [None] * len(names) if time is None else self.stream.numbers(time)
        targets = list(zip(places, keys, strict=True))
        for k, name in enumerate([*names, None]):
            while targets and targets[0][0] <= k:
                self.rows.learn(targets.pop(0)[1])
            if k < len(names):
                self.rows.ask(name, times[k])

    def bad_late(self) -> None:
        """Calls of `ask`, `tell` and `ask_and_tell` with one bad argument."""
        case, stream, rows = self.case, self.stream, self.rows
        known = list(rows.moments)[: stream.size()]
        what = case.pick(
            ["ask", "ask", "nobody", *["tell", "drop", "y", "weight", "before"] * bool(known)]
        )
        n = len(known) if known else 2
        y, X, times = stream.targets(n), stream.rows(2), {"time": stream.time(2)}
        if what == "nobody":
            self.twins.bad("tell", [*known[1:], "nobody"], y[-max(n - (not known), 1) :], why=what)
        elif what == "y":
            table = values.LABELS if self.classifies else values.TARGETS
            why = case.pick(table)
            self.twins.bad("tell", known, table[why](y), why=f"y: {why}")
        elif what == "weight":
            why = case.pick(values.WEIGHTS)
            weight = values.WEIGHTS[why](np.ones(n))
            self.twins.bad("tell", known, y, sample_weight=weight, why=f"weight: {why}")
        elif what == "before":
            why = case.pick(values.BEFORE)
            places = values.BEFORE[why]([0] * n)
            self.twins.bad("ask_and_tell", X, known, y, places, why=f"before: {why}", **times)
        elif what == "tell":
            why = case.pick(values.IDS)
            self.twins.bad("tell", values.IDS[why](known), y, why=f"ids: {why}")
        elif what == "drop":
            self.twins.bad("drop_waiting", [*known, case.pick(["nobody", known[0]])], why=what)
        else:
            table = values.IDS | {"twice": lambda ids: ids[:1] * 2}
            table |= {"waits": lambda ids: [known[0], ids[0]]} if known else {}
            why = case.pick(table)
            self.twins.bad("ask", X, ids=table[why]([-1, -2]), why=f"ids: {why}", **times)

    def check_predictions(self, value: Any, n: int) -> None:
        """Check results of predict_then_learn: before the first target, 0, or NaN and infinity."""
        if self.classifies:
            total, name = value.sum(axis=1), "predict_then_learn"
            expect((value >= 0.0).all() and (value <= 1.0 + 1e-9).all(), f"{name}: {shown(value)}")
            sums = (np.abs(total - 1.0) < 1e-6) | (total == 0.0)
            expect(sums.all() and len(value) == n, f"{name}: rows sum to {shown(total)}")
        else:
            mean, std = value
            known = np.isfinite(mean) | (np.isnan(mean) & (std == np.inf))
            expect(known.all() and (std >= 0.0).all(), f"{shown(mean)}, deviations {shown(std)}")

    def check_loop(self, first: Any, method: str, X: Any, y: Any, given: dict[str, Any]) -> None:
        """Check that a chunk equals its single rows, in float64."""
        if first.transition != "example" or self.is_float32 or len(y) > 10:
            return
        self.case.note("the same rows one by one, on a copy")
        for i in range(len(y)):
            cut = slice(i, i + 1)
            part = {k: v if v is None or k == "classes" else v[cut] for k, v in given.items()}
            getattr(first, method)(X[cut], y[cut], **part)
        expect(first.n_seen_ == self.n_seen, f"{method}: n_seen_ is {first.n_seen_} row by row")
        if self.fitted:
            where = self.ahead(3)
            one, other = (self.predicted(m, where) for m in (first, self.twins.tested))
            near = np.abs(one - other).max() <= 1e-8 * max(1.0, np.abs(other).max())
            expect(near, f"{method}: a chunk gives {shown(other)}, its rows {shown(one)}")

    def predicted(self, model: Any, where: dict[str, Any]) -> Any:
        if self.classifies:
            return model.predict_proba(self.probe, **where)
        return model.predict(self.probe, **where)

    def predict(self) -> None:
        names = ["predict", "uncertainty", "is_novel"]
        if self.classifies:
            names += ["predict_proba", "predict_log_proba", "decision_function"]
        n = self.stream.size()
        call = self.twins.alone if self.case.chance(0.5) else self.twins.good
        may = {"may": NotFittedError} if call == self.twins.good else {}
        call(self.case.pick(names), self.stream.rows(n), **self.ahead(n), **may)
        if not isinstance(self.twins.tested._settings.policy, Fixed):
            call("drift", **may)

    def other(self) -> None:
        """Copies, files and parameters; a copy must equal the model."""
        kind = self.case.pick(["snapshot", "copy", "deepcopy", "pickle", "load", "reset", "clone"])
        kind = self.case.pick([kind, kind, kind, "retire", "set", "drop"])
        twins, cls = self.twins, type(self.twins.tested)
        self.case.note(kind)
        if kind == "reset":
            twins.good("reset")
            self.forget()
            self.stream.clock = 0.0
        elif kind == "drop" and self.started:
            keys = [key for key in self.rows.some(self.case) if key in self.rows.moments]
            if keys:
                twins.good("drop_waiting", keys)
                self.rows.drop(keys)
            else:
                twins.good("drop_waiting")
                self.rows.clear()
        elif kind == "clone":
            expect(clone(twins.tested).n_seen_ == 0, "a clone has learned something")
        elif kind == "retire" and self.classifies and self.fitted:
            label = self.case.pick(twins.tested.classes_.tolist())
            if len(twins.tested.classes_) > 1:
                twins.good("retire_class", label)
        elif kind == "set":
            changes: dict[str, Any] = {"predictive": self.case.pick(["exact", "probit"])}
            if self.classifies:
                changes["stacking"] = self.case.chance(0.7) or bool(twins.tested.experts)
            self.rows.most = changes["max_waiting"] = self.case.pick([1, 10, 100_000])
            twins.good("set_params", **changes)
        elif kind == "load" and self.started:
            path = self.case.folder / "other"
            twins.tested.save(path)
            twins.tested = cls.load(path)
            # load gives seconds for a timedelta
            changed = {k: getattr(twins.tested, k) for k in ("time_unit", "dtype")}
            twins.steady.set_params(**changed)
        elif kind in ("snapshot", "copy", "deepcopy", "pickle"):
            make = {"snapshot": cls.snapshot, "copy": copy.copy, "deepcopy": copy.deepcopy}
            make["pickle"] = lambda model: pickle.loads(pickle.dumps(model))
            self.copied = [(twins.tested, twins.bytes_of(twins.tested))]
            twins.tested = make[kind](twins.tested)
        twins.check_equal(kind)

    # ---- bad calls ------------------------------------------------------------------------

    def bad(self) -> None:
        case, stream, twins, n = self.case, self.stream, self.twins, self.stream.size()
        learns = case.chance(0.7)
        what = case.pick(["X", "y", "weight", "time", "parameter", "label", "classes"])
        if what == "parameter":
            return self.bad_parameter()
        if what == "label" and self.classifies and self.n_seen:
            label = case.pick(["nobody", [], {}, None, 1.5, np.zeros(2)])
            twins.bad("retire_class", label, why="unknown label")
            return None
        if learns or what in ("y", "weight", "label", "classes"):
            method = case.pick(LEARNING)
        else:
            names = ["predict", "uncertainty", "is_novel"]
            names += ["predict_proba", "decision_function"] if self.classifies else []
            method = case.pick([*names, "ask"])
            if not self.fitted and method != "ask":
                return None
        first = not self.started or method == "fit"
        X, y = stream.rows(n), stream.targets(n, whole=method == "fit")
        if self.classifies and case.chance(0.3):
            y = [*y[:-1], "a class of a bad call"]
        given = {"time": stream.time(n)}
        if what == "X":
            table = values.ROWS if first else values.ROWS | values.KNOWN_COLUMNS
            why = case.pick(table)
            X = table[why](X)
            if why == "100,000 columns":  # they are allocated when the first target comes
                if method == "ask":
                    return None
                y = stream.targets(n, whole=True)
        elif what == "time":
            why, given["time"] = self.bad_time(n, first, method in (*LEARNING, "ask"))
        elif what == "weight":
            why = case.pick(values.WEIGHTS)
            given["sample_weight"] = values.WEIGHTS[why](np.ones(n))
        elif what == "classes" and self.classifies:
            method, why = "partial_fit", case.pick(["dicts", "continuous", "table", "scalar"])
            given["classes"] = values.LABELS[why](y)
        else:
            table = values.LABELS if self.classifies else values.TARGETS
            why = case.pick(table)
            y = table[why](y)
        must = why not in values.MAY
        if method in LEARNING:
            if twins.bad(method, X, y, why=f"{what}: {why}", must=must, **given):
                if method == "fit":
                    self.forget()
                self.n_seen, self.n_came = self.n_seen + n, self.n_came + n
                stream.taken(given["time"])
            return None
        if method == "ask":
            names = list(range(self.rows.n_asked, self.rows.n_asked + n))
            if twins.bad("ask", X, why=f"{what}: {why}", must=must, **given):
                self.n_came += n
                self.enter(names, given["time"], [], [])
                stream.taken(given["time"])
            return None
        if given["time"] is None:
            given = {}
        twins.bad(method, X, why=f"{what}: {why}", must=must, **given)
        return None

    def bad_time(self, n: int, first: bool, learns: bool) -> tuple[str, Any]:
        """A reason and bad times; any times are bad if earlier rows had none."""
        options = dict(values.TIMES)
        if n == 1:
            options.pop("dates and numbers")
        good = np.arange(1.0, n + 1.0) + self.stream.clock
        if not first and self.stream.timed:
            options["going back"] = lambda t: self.stream.as_times(t - self.stream.clock - 9e9)
        elif not first:
            options["times only now"] = lambda t: t
        if n > 1 and learns:
            options["going back between rows"] = lambda t: t[::-1]
        why = self.case.pick(options)
        return why, options[why](good)

    def bad_parameter(self) -> None:
        """Set a parameter to a bad value, make a call, and restore the parameter."""
        case, twins = self.case, self.twins
        table = dict(values.PARAMETERS)
        table |= values.CLASSIFIER_PARAMETERS if self.classifies else {}
        method = case.pick(LEARNING)
        first = not self.started or method == "fit"
        table |= values.LATE_PARAMETERS | (values.FRESH_PARAMETERS if first else {})
        if not self.fitted:
            table["dtype"] = values.FRESH_PARAMETERS["dtype"]
        name = case.pick(table)
        value, before, n = case.pick(table[name]), twins.tested.get_params()[name], 2
        timeless = name == "time_unit" and not self.stream.timed and not first
        if timeless or (name == "n_components" and twins.tested.features != "fourier"):
            return
        if isinstance(value, str) and value == "negative":
            value = dict.fromkeys(self.stream.labels, -1.0)
        given = {"time": self.stream.time(n)}
        args: Any = self.stream.rows(n), self.stream.targets(n, whole=True)
        if name in values.LATE_PARAMETERS:
            method, args = "ask", args[:1]
        twins.tested.set_params(**{name: value})
        try:
            text = f"bad ({name}={shown(value)}) {method}"
            call = getattr(twins.tested, method)
            _, error = case.attempt(text, lambda: call(*args, **given))
        finally:
            twins.tested.set_params(**{name: before})
        refused = error is not None or (type(value) is float and value == 1e300)
        expect(refused, f"{name}={shown(value)} is bad, and {method} accepted it")
        if error is None:  # whether a number is too large depends on other parameters
            twins.steady.reset(), twins.tested.reset()
            self.forget()
            self.stream.clock = 0.0
        twins.check_equal(f"{method} with {name}={shown(value)}")

    # ---- checks after every call ----------------------------------------------------------

    def check_copied(self) -> None:
        for model, before in self.copied:
            expect(self.twins.bytes_of(model) == before, "a model changed when its copy learned")

    def check(self) -> None:
        model = self.twins.tested
        found, n_rows = (model.n_seen_, model.n_rows_), (self.n_seen, self.n_came)
        expect(found == n_rows, f"n_seen_ and n_rows_ are {found}, not {n_rows}")
        self.rows.check(model)
        if not self.fitted:
            return self.twins.check_equal("nothing")
        where = self.ahead(3)
        prediction, u = self.predicted(model, where), model.uncertainty(self.probe, **where)
        expect(np.isfinite(prediction).all(), f"a prediction is {shown(prediction)}")
        expect(((u >= 0.0) & (u <= 1.0 + 1e-3)).all(), f"uncertainty is {shown(u)}")
        self.twins.check_equal("a prediction of one twin")
        same = prediction.tobytes() == self.predicted(self.twins.steady, where).tobytes()
        expect(same, "twins predict different bits")
        if self.classifies:
            total, shape = prediction.sum(axis=1), (len(model.classes_), len(model.coef_))
            inside = (prediction >= 0.0).all() and (prediction <= 1.0 + 1e-9).all()
            sums = (np.abs(total - 1.0) < 1e-6).all()
            expect(
                inside and sums, f"probabilities are {shown(prediction)}, with sums {shown(total)}"
            )
            expect(
                set(shape) == {prediction.shape[1]},
                f"{prediction.shape}, of {shape} classes and weights",
            )
        else:
            _, std = model.predict(self.probe, return_std=True, **where)
            expect((std >= 0.0).all(), f"standard deviations are {shown(std)}")
        weights = np.array(list(model.half_life_weights_.values()))
        whole = abs(weights.sum() - 1.0) < 1e-9 and (weights >= 0.0).all()
        expect(whole, f"half_life_weights_ are {weights}, with sum {weights.sum()}")
        for each in model.filters_:
            mean, cov = each.posterior.mean, each.posterior.cov
            finite = np.isfinite(mean).all() and np.isfinite(cov).all()
            expect(finite and (cov.diagonal() > 0.0).all(), f"a filter: {shown(cov)}")
        names = [n for n in ATTRIBUTES if self.classifies or n not in ("classes_", "calibration_")]
        _, error = self.case.attempt("attributes", lambda: [getattr(model, n) for n in names])
        expect(error is None, f"an attribute cannot be read: {error}")
        return self.twins.check_equal("attributes of one twin")
