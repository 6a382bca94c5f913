"""Motion: filters of order 1, 2 and 3 on weights that turn smoothly, and on streams without that.

The paper names "higher order Markov terms" as an open end. The experiment has four parts: how much
of the way to the true weights each order goes, what intervals several steps ahead cover, what mixed
orders cost where nothing turns, and on which real series they pay.

    python benchmarks/motion.py [--out FOLDER] [--quick] [--check]

It takes about ten minutes and writes motion.json, motion.md and motion.png. Results that are in
motion.json are kept: after a stop, repeat the command. `--check` compares motion.md with them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream import _markdown, streams
from kalstream._files import write_whole
from kalstream.core import Fixed, Mixture, class_probabilities, gamma_of, gaussian_log_density
from kalstream.core.motion_reference import process_noise, rate_of, transition_matrix
from kalstream.core.motion_reference import stationary_cov as stationary
from kalstream.estimators import KalmanClassifier, KalmanRegressor
from kalstream.paper.figures import new_figure, save

Array = NDArray[Any]

SHAPES: Final = ("rotation", "sinusoids", "chirp")
TASKS: Final = ("regression", "classification")
# Order, and half-life, of weights that are drawn from the model itself.
DRAWN: Final = ((2, 1000.0), (3, 2000.0))
MIXED: Final = {"1": 1, "1, 2": (1, 2), "1, 2, 3": (1, 2, 3)}
_COLUMNS, _NOISE, _SIZE = 5, 0.5, 3.0  # of a row; of a target; of a logit
_CHUNK: Final = 100
_EVERY: Final = 20  # rows between two forecasts
_SHORT: Final = (3.0, 10.0, 30.0, 100.0, 1000.0)  # half-lives, for series without columns
_SMALL_SHARE: Final = 1e-5  # of switching between filters; the default is 1e-3
_TWO_SIDED: Final = 1.6448536269514722  # standard deviations of a 90% interval


TITLE: Final = "Motion: weights that turn smoothly, and weights that do not"
FOLDER: Final = Path(__file__).parents[1] / "docs" / "benchmarks"
GRID: Final = {
    "half_life": [10, 30, 100, 300, 1000, 3000, 10000, 30000],
    "prior_var": [1, 10],
    "period": [500, 2000, 8000],
    "ahead": [1, 5, 10, 20, 50, 200],
}
# Predicted with all defaults, and column by column as series. The other columns of elec2 do not
# change in the first 17,000 rows, and feat_3 of weather has gaps.
STREAMS: Final = {"elec2": (1, 2, 3), "weather": (1, 2, 4, 5, 6, 7, 8)}


@dataclass(frozen=True)
class Plan:
    """How many rows, over which seeds; real streams have all their rows unless it is quick."""

    rows: int = 16_000
    seeds: tuple[int, ...] = (0, 1, 2)
    is_quick: bool = False


def turning(shape: str, n: int, rng: np.random.Generator, period: float) -> Array:
    """Weights (n, d) that turn once in about ``period`` rows; their variance is about one half.

    "rotation" is a hyperplane that turns in a plane, "sinusoids" have periods of their own, and a
    "chirp" turns faster and faster, from a quarter of the speed to twice.
    """
    d, rows = _COLUMNS, np.arange(n)
    if shape == "rotation":
        plane, _ = np.linalg.qr(rng.standard_normal((d, d)))
        angle = 2.0 * np.pi * rows[:, None] / period
        return math.sqrt(d / 2) * (np.cos(angle) * plane[0] + np.sin(angle) * plane[1])
    phase = rng.uniform(0.0, 2.0 * np.pi, d)
    if shape == "sinusoids":
        return np.sin(2.0 * np.pi * np.outer(rows, rng.uniform(0.5, 1.5, d) / period) + phase)
    speed = np.geomspace(0.25 / period, 2.0 / period, n)
    return np.sin(2.0 * np.pi * np.cumsum(speed)[:, None] + phase)


def drawn(order: int, half_life: float, n: int, rng: np.random.Generator) -> Array:
    """Weights (n, d) of variance one half that move as in the model of this order."""
    tau = rate_of(order, half_life)
    F, noise = transition_matrix(order, tau), np.linalg.cholesky(process_noise(order, tau))
    state = np.linalg.cholesky(stationary(order)) @ rng.standard_normal((order, _COLUMNS))
    weights = np.empty((n, _COLUMNS))
    for i in range(n):
        state = F @ state + noise @ rng.standard_normal((order, _COLUMNS))
        weights[i] = math.sqrt(0.5) * state[0]
    return weights


def still(shape: str, n: int, rng: np.random.Generator) -> Array:
    """Weights (n, d) that stay ("static"), or are drawn again every 2,000 rows ("abrupt")."""
    each = rng.standard_normal((1 if shape == "static" else -(-n // 2000), _COLUMNS))
    return math.sqrt(0.5) * np.repeat(each, n if shape == "static" else 2000, axis=0)[:n]


def data_of(weights: Array, task: str, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Rows (n, d), targets (n,) and the loss of each row (n,) for who knows the weights."""
    X = rng.standard_normal(weights.shape)
    signal = (weights * X).sum(axis=1)
    if task == "regression":
        y = signal + _NOISE * rng.standard_normal(len(X))
        return X, y, -gaussian_log_density(y, signal, _NOISE**2)
    p = 1.0 / (1.0 + np.exp(-_SIZE * signal / math.sqrt(_COLUMNS)))
    labels = (rng.random(len(X)) < p).astype(np.int64)
    return X, labels, -np.log(np.where(labels == 1, p, 1.0 - p))


# ---- the parts ------------------------------------------------------------------------------


def run(plan: Plan, path: Path) -> None:
    """Fill the result file with what is missing; it is written after each entry."""
    about = {"format": 1, "experiment": "motion", "rows": plan.rows, "seeds": list(plan.seeds)}
    content: dict[str, Any] = {**about, "grid": GRID, "parts": {}}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if any(before.get(name) != content[name] for name in (*about, "grid")):
            raise SystemExit(f"{path} was made with other settings; give --out another folder")
        content = before
    for part, name, compute in _jobs(plan):
        entries = content["parts"].setdefault(part, {})
        if name not in entries:
            entries[name] = compute()
            write_whole(path, json.dumps(content, indent=1) + "\n")
            print(f"{part}: {name}")


def _jobs(plan: Plan) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Part, name and function of each entry of the result file."""
    for task in TASKS:
        for shape in SHAPES:
            for period in GRID["period"]:
                job = partial(_following, plan, task, shape, period)
                yield "following", f"{task}, {shape}, {period}", job
    for shape in SHAPES:
        yield "ahead", shape, partial(_ahead, plan, partial(turning, shape, period=2000.0))
    for order, life in DRAWN:
        job = partial(_ahead, plan, partial(drawn, order, life), (order, life))
        yield "ahead", f"drawn, order {order}, half-life {life:g}", job
    for task in TASKS:
        for shape in ("static", "abrupt"):
            yield "still", f"{task}, {shape}", partial(_still, plan, task, shape)
    for name, columns in STREAMS.items():
        yield "still", name, partial(_real, plan, name)
        for column in (f"feat_{k}" for k in columns):
            for how in ("from others", "alone"):
                job = partial(_series, plan, name, column, how)
                yield "series", f"{name}, {column}, {how}", job


def _following(plan: Plan, task: str, shape: str, period: float) -> dict[str, Any]:
    """Loss of the true weights, of the best filter of each order, and of the estimators."""
    true: list[float] = []
    single: dict[int, list[Array]] = {1: [], 2: [], 3: []}
    mixed: dict[str, list[float]] = {name: [] for name in MIXED}
    for seed in plan.seeds:
        rng = np.random.default_rng(seed)
        X, y, loss = data_of(turning(shape, plan.rows, rng, period), task, rng)
        true.append(_scored(loss))
        for order, losses in single.items():
            losses.append(_of_filters(plan, order, task, X, y))
        for name, orders in MIXED.items():
            mixed[name].append(_scored(_of_estimator(task, X, y, features="raw", order=orders)))
    best = {}
    for order, losses in single.items():
        mean = np.mean(losses, axis=0)  # (prior variances, half-lives)
        i, j = np.unravel_index(mean.argmin(), mean.shape)
        best[str(order)] = {
            "loss": round(float(mean[i, j]), 5),
            "half_life": GRID["half_life"][j],
            "prior_var": GRID["prior_var"][i],
        }
    averages = {name: round(float(np.mean(values)), 5) for name, values in mixed.items()}
    return {"true": round(float(np.mean(true)), 5), "best": best, "mixed": averages}


def _of_filters(plan: Plan, order: int, task: str, X: Array, y: Array) -> Array:
    """Loss (P, J) for each prior variance and half-life of one order."""
    lives, losses = tuple(map(float, GRID["half_life"])), []
    regresses = task == "regression"
    options: dict[str, Any] = {"likelihood": "softmax", "order": order}
    policy = Mixture(lives, calibrations=(1.0,), predictive="probit", **options)
    # As "raw" features: rows of length about 1.
    X = X / math.sqrt(_COLUMNS)
    for prior_var in GRID["prior_var"]:
        scaled = float(prior_var) * _COLUMNS
        state = policy.start(_COLUMNS, 1 if regresses else 2, prior_var=scaled)
        _, step = policy.step_chunk(state, X, y, noise_var=_NOISE**2, prior_var=scaled)
        each = []
        for mean, var in zip(step.logit_mean, step.logit_var, strict=True):
            if regresses:
                loss = -gaussian_log_density(y, mean[:, 0], var + _NOISE**2)
            else:
                loss = -np.log(
                    class_probabilities(mean, np.maximum(var, 0.0))[np.arange(len(y)), y]
                )
            each.append(_scored(loss))
        losses.append(each)
    return np.array(losses)


def _of_estimator(task: str, X: Array, y: Array, **options: Any) -> Array:
    """Loss of each row (n,), predicted before it was learned; 0 before a target is known."""
    if task == "regression":
        model: Any = KalmanRegressor(random_state=0, **options)
    else:
        model = KalmanClassifier(random_state=0, **options)
    losses = []
    for start in range(0, len(y), _CHUNK):
        rows, targets = X[start : start + _CHUNK], y[start : start + _CHUNK]
        answer = model.predict_then_learn(rows, targets)
        if task == "regression":
            mean, std = answer
            known = np.isfinite(std) & (std > 0.0)
            loss = np.zeros(len(targets))
            loss[known] = -gaussian_log_density(targets[known], mean[known], std[known] ** 2)
        else:
            columns = np.searchsorted(model.classes_, targets)
            p = answer[np.arange(len(targets)), columns]
            loss = np.where(p > 0.0, -np.log(np.maximum(p, 1e-300)), 0.0)
        losses.append(loss)
    return np.concatenate(losses)


def _scored(losses: Array) -> float:
    """Mean loss over all rows but the first fifth."""
    return float(losses[len(losses) // 5 :].mean())


def _ahead(
    plan: Plan, weights: Callable[..., Array], moved: tuple[int, float] | None = None
) -> dict[str, list[float]]:
    """How often 90% intervals cover the target, by steps ahead.

    ``moved`` is the order and the half-life of weights that were drawn from the model.
    """
    makers: dict[str, Callable[[], Any]] = {
        f"orders {name}": partial(KalmanRegressor, features="raw", order=orders)
        for name, orders in MIXED.items()
    }
    *lives, _ = Mixture().half_lives  # the last is infinite, and has no order
    every = [order for order in (1, 2, 3) for _ in lives]
    rarely = Mixture((*lives * 3, math.inf), _SMALL_SHARE, predictive="probit", order=[*every, 1])
    makers["orders 1, 2, 3, share 1e-5"] = partial(KalmanRegressor, rarely, features="raw")
    if moved is not None:
        makers["the filter of the weights"] = partial(_Known, *moved)
    covers = {}
    for name, make in makers.items():
        hits = []
        for seed in range(2 * len(plan.seeds)):
            rng = np.random.default_rng(seed)
            n = plan.rows + max(GRID["ahead"])
            X, y, _ = data_of(weights(n=n, rng=rng), "regression", rng)
            hits.append(_covered(plan, make(), X, y))
        covers[name] = [round(float(value), 4) for value in np.mean(hits, axis=0)]
    return covers


class _Known:
    """The filter that weights were drawn from, with two calls of `KalmanRegressor`."""

    def __init__(self, order: int, half_life: float) -> None:
        self.policy, self.time = Fixed(gamma_of(half_life), order=order), 0.0
        self.state = self.policy.start(_COLUMNS, 1, prior_var=0.5)

    def partial_fit(self, X: Array, y: Array, time: Array) -> None:
        self.state, _ = self.policy.step_chunk(self.state, X, y, noise_var=_NOISE**2, prior_var=0.5)
        self.time = float(time[-1])

    def predict(self, X: Array, return_std: bool, time: Array) -> tuple[Array, Array]:
        step = self.policy.predict(self.state, X, prior_var=0.5, time_gap=time - self.time)
        return step.logit_mean[:, 0], np.sqrt(step.logit_var + _NOISE**2)


def _covered(plan: Plan, model: Any, X: Array, y: Array) -> Array:
    """Part of the targets inside their 90% intervals (A,), for each number of steps ahead."""
    steps, hits = np.array(GRID["ahead"]), []
    for stop in range(_EVERY, len(y) - int(steps.max()), _EVERY):
        part = slice(stop - _EVERY, stop)
        model.partial_fit(X[part], y[part], time=np.arange(part.start, part.stop))
        if stop > len(y) // 5:
            rows = stop - 1 + steps
            mean, std = model.predict(X[rows], return_std=True, time=rows)
            hits.append(np.abs(y[rows] - mean) <= _TWO_SIDED * std)
    return np.mean(hits, axis=0)


def _still(plan: Plan, task: str, shape: str) -> dict[str, float]:
    """Loss of the estimators on weights that do not turn."""
    losses: dict[str, list[float]] = {name: [] for name in MIXED}
    for seed in plan.seeds:
        rng = np.random.default_rng(seed)
        X, y, _ = data_of(still(shape, plan.rows, rng), task, rng)
        for name, orders in MIXED.items():
            losses[name].append(_of_estimator(task, X, y, features="raw", order=orders).mean())
    return {name: round(float(np.mean(each)), 5) for name, each in losses.items()}


def _real(plan: Plan, name: str) -> dict[str, float]:
    """Log-loss of the classifier with all defaults on a real stream."""
    X, y, _ = _table(plan, name)
    return {
        label: round(float(_of_estimator("classification", X, y, order=orders).mean()), 5)
        for label, orders in MIXED.items()
    }


def _series(plan: Plan, name: str, column: str, how: str) -> dict[str, float]:
    """Loss of the regressor on one column, in units of its standard deviation."""
    X, _, names = _table(plan, name)
    at = names.index(column)
    y, others = X[:, at], np.delete(X, at, axis=1)
    y = (y - y.mean()) / y.std()
    losses = {}
    for label, orders in MIXED.items():
        options: dict[str, Any] = {"features": "scaled", "order": orders}
        if how == "alone":
            each = orders if isinstance(orders, tuple) else (orders,)
            order = [order for order in each for _ in _SHORT]
            policy = Mixture(_SHORT * len(each), predictive="probit", order=order)
            options = {"forgetting": policy, "features": "raw", "intercept": False}
            others = np.ones((len(y), 1))
        losses[label] = round(float(_of_estimator("regression", others, y, **options).mean()), 5)
    return losses


def _table(plan: Plan, name: str) -> tuple[Array, Array, list[str]]:
    """Rows, labels and names of columns of a packaged stream; of few rows if the plan is quick."""
    stream = streams.open(name)
    batches = list(stream.batches())
    n = plan.rows if plan.is_quick else None
    rows = np.concatenate([batch.rows for batch in batches])[:n]
    labels = np.concatenate([np.asarray(batch.targets) for batch in batches])[:n]
    return rows, labels, [column["name"] for column in stream.describe()["columns"]]


# ---- table and figure -----------------------------------------------------------------------


def table(content: dict[str, Any]) -> str:
    """The four parts, in Markdown."""
    parts = content["parts"]
    rows = []
    for name, entry in parts["following"].items():
        best, mixed = entry["best"], entry["mixed"]
        true, first = entry["true"], best["1"]["loss"]
        closed = [_closed(true, first, best[order]["loss"]) for order in ("2", "3")]
        closed.append(_closed(true, mixed["1"], mixed["1, 2, 3"]))
        losses = [best[order]["loss"] for order in ("1", "2", "3")]
        losses = [true, *losses, mixed["1"], mixed["1, 2, 3"]]
        rows.append([name, *(f"{x:.4f}" for x in losses), *(f"{part:.0%}" for part in closed)])
    head = ["task, weights, rows of a turn", "true weights", "order 1", "order 2", "order 3"]
    head += ["default", "default, orders 1, 2, 3", "closed by order 2", "by order 3"]
    following = _markdown.table([*head, "by orders 1, 2, 3 in the default"], rows)
    steps = [f"{n} ahead" for n in content["grid"]["ahead"]]
    rows = [
        [f"{name}; {learner}", *(f"{value:.3f}" for value in cover)]
        for name, entry in parts["ahead"].items()
        for learner, cover in entry.items()
    ]
    ahead = _markdown.table(["weights; learner", *steps], rows)
    return "\n\n".join(
        (
            following,
            ahead,
            _losses("stream without motion", parts["still"]),
            _losses("series", parts["series"]),
            f"{content['rows']:,} rows, seeds {', '.join(map(str, content['seeds']))}.\n",
        )
    )


def _losses(title: str, entries: dict[str, dict[str, float]]) -> str:
    """Losses with order 1, and how much more or less mixed orders have."""
    rows = []
    for name, loss in entries.items():
        more = [f"{loss[orders] - loss['1']:+.4f}" for orders in ("1, 2", "1, 2, 3")]
        rows.append([name, f"{loss['1']:.4f}", *more])
    return _markdown.table([title, "order 1", "orders 1, 2", "orders 1, 2, 3"], rows)


def _closed(true: float, before: float, after: float) -> float:
    """Part of the gap between a loss and that of the true weights, which another loss closes."""
    return (before - after) / (before - true)


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw the part of the gap that is closed against the period, and what intervals cover."""
    figure, axes = new_figure(1, 3)
    colours = {"2": "tab:orange", "3": "tab:green", "mixed": "tab:blue"}
    styles = dict(zip(SHAPES, ("-", "--", ":"), strict=True))
    periods = content["grid"]["period"]
    for task, axis in zip(TASKS, axes, strict=False):
        for shape in SHAPES:
            entries = [content["parts"]["following"][f"{task}, {shape}, {p}"] for p in periods]
            for what, colour in colours.items():
                closed = []
                for entry in entries:
                    pair = entry["mixed"]["1"], entry["mixed"]["1, 2, 3"]
                    if what in entry["best"]:
                        pair = entry["best"]["1"]["loss"], entry["best"][what]["loss"]
                    closed.append(100.0 * _closed(entry["true"], *pair))
                label = f"order {what}, {shape}" if what in ("2", "3") else f"default, {shape}"
                axis.plot(periods, closed, styles[shape], color=colour, marker=".", label=label)
        axis.axhline(0.0, color="black", linewidth=0.5)
        axis.set_title(task, fontsize=9)
        axis.set_xscale("log")
        axis.set_xticks(periods, [f"{period:,}" for period in periods])
        axis.minorticks_off()
        axis.set_xlabel("rows of a turn")
        axis.set_ylabel("part of the gap that is closed (%)")
    axes[0].legend(fontsize=5)
    steps = content["grid"]["ahead"]
    for name, entry in content["parts"]["ahead"].items():
        axes[2].plot(steps, entry["orders 1, 2, 3"], marker=".", label=name)
    axes[2].axhspan(0.88, 0.92, color="black", alpha=0.1)
    axes[2].set_xscale("log")
    axes[2].set_xlabel("steps ahead")
    axes[2].set_ylabel("covered by 90% intervals")
    axes[2].legend(fontsize=5)
    save(figure, path)


def page(folder: Path) -> tuple[str, dict[str, Any]]:
    """The page of a result file, and its content."""
    content = json.loads((folder / "motion.json").read_text(encoding="utf-8"))
    return f"# {TITLE}\n\n{table(content)}", content


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="few rows and one seed")
    parser.add_argument("--check", action="store_true", help="only compare motion.md and .json")
    options = parser.parse_args(arguments)
    if not options.check:
        run(Plan(600, (0,), True) if options.quick else Plan(), options.out / "motion.json")
    text, content = page(options.out)
    file = options.out / "motion.md"
    if options.check:
        if file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file} does not match motion.json; run benchmarks/motion.py")
        return
    write_whole(file, text)
    draw(content, options.out / "motion.png")


if __name__ == "__main__":
    main()
