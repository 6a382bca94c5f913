"""Classes never seen: the probability of a new class, and what it is worth, on several streams."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np
from sklearn.datasets import load_digits

from kalstream import _markdown
from kalstream._arrays import Array
from kalstream.core import GaussianClasses, Linear, Neighbours
from kalstream.errors import InvalidInput
from kalstream.estimators import CRPClassifier, KalmanClassifier
from kalstream.evaluate import Evaluation
from kalstream.evaluate.metrics import LEAST_PROBABILITY
from kalstream.paper.figures import new_figure, save
from kalstream.paper.plan import Plan
from kalstream.streams import ArrayStream
from kalstream.streams.embeddings import EmbeddingStream

_CALL: Final = 10  # rows that `is_novel` is asked for at once, before they are learned
_NOTE: Final = (
    "Columns: new classes in rows. Each row is scored before it is learned; `is_novel` is asked "
    f"{_CALL} rows at once. The first row of a stream does not count. Seed {{seed}}."
)
_N_CLASSES, _N_COLUMNS, _N_TASKS = 30, 10, 10


def run(plan: Plan, data: Path | None = None) -> dict[str, Any]:
    """Run each method over each stream; ``data`` is a file of embeddings, whose stream needs it."""
    streams: dict[str, Any] = {}
    for name, about in plan.streams.items():
        options = dict(about["options"])
        if options.get("table") == "embeddings" and data is None:
            continue
        X, y = _rows(options, plan.rows, plan.seeds[0], data)
        first = np.zeros(len(y), bool)
        first[np.unique(y, return_index=True)[1]] = True
        methods = {m.name: _measured(m.options, X, y, first, plan.seeds[0]) for m in plan.methods}
        streams[name] = {"rows": len(y), "new": int(first[1:].sum()), "methods": methods}
    return {"format": 1, "experiment": plan.name, "seed": plan.seeds[0], "streams": streams}


def _measured(
    options: Mapping[str, Any], X: Array, y: Array, first: Array, seed: int
) -> dict[str, Any]:
    """What a method is worth on a stream, whose first row does not count.

    ``above`` has, for the first row of each class, the share of the other rows with a larger score.
    """
    new, total = _scores(options, X, y, seed)
    new, first = new[1:], first[1:]
    others = new[~first]
    above = [(others > q).mean() + 0.5 * (others == q).mean() for q in new[first]]
    p = np.clip(np.where(first, new, 1.0 - new), LEAST_PROBABILITY, 1.0)
    event = -float(np.log(p).mean()) if options["score"] != "novel" else None
    return {
        "above": [round(float(share), 5) for share in sorted(above)],
        "event": None if event is None else round(event, 5),
        "open": None if total is None else round(total, 5),
    }


def _scores(
    options: Mapping[str, Any], X: Array, y: Array, seed: int
) -> tuple[Array, float | None]:
    """Score of each row (n,) before it is learned, and log-loss of the labels, new ones too."""
    learner, score = _learner(options, seed), options["score"]
    if score == "novel":
        return _novel(learner, X, y), None
    evaluation = Evaluation(learner, ArrayStream(X, y), together=64)
    records = list(evaluation.records())
    evaluation.finish()
    total = evaluation.tracker.values()
    if score == "own":
        return np.concatenate([r.answer.new for r in records]), total["open_log_loss"]
    if score == "frequency":
        return 1.0 / (1.0 + np.arange(len(y))), total["log_loss"]
    each = [p for r in records if (p := r.answer.probabilities) is not None]
    return 1.0 - np.concatenate([p.max(axis=1, initial=0.0) for p in each]), None


def _novel(learner: KalmanClassifier, X: Array, y: Array) -> Array:
    out = np.ones(len(y))
    for start in range(0, len(y), _CALL):
        part = slice(start, start + _CALL)
        if start:
            out[part] = learner.is_novel(X[part])
        learner.partial_fit(X[part], y[part])
    return out


def _learner(options: Mapping[str, Any], seed: int) -> Any:
    if options["learner"] == "crp":
        return CRPClassifier()
    experts = [Neighbours(), Linear()] + [GaussianClasses()] * options.get("gaussian", False)
    return KalmanClassifier(features="scaled", experts=experts, random_state=seed)


# ---- streams ----------------------------------------------------------------------------------


def _rows(options: dict[str, Any], n: int, seed: int, data: Path | None) -> tuple[Array, Array]:
    """Rows (n, d) and labels (n,) of a stream."""
    rng = np.random.default_rng(seed)
    table = options.pop("table", "")
    if table == "digits":
        X, y = load_digits(return_X_y=True)
        return _coming_late(X, y, n, rng)
    if table == "embeddings":
        return _embeddings(data, n, seed)
    return _made(n, rng, **options)


def _made(n: int, rng: Any, apart: float, curved: bool = False) -> tuple[Array, Array]:
    """Gaussian classes, of which one more can come at equal distances of rows."""
    k, d = _N_CLASSES, _N_COLUMNS
    y = np.minimum(rng.integers(k, size=n), 1 + np.arange(n) // max(n // (2 * k), 1))
    noise = rng.standard_normal((n, d))
    if curved:
        noise = np.einsum("bij,bj->bi", rng.standard_normal((k, d, d))[y], noise) / np.sqrt(d)
    return apart * rng.standard_normal((k, d))[y] + noise, y


def _coming_late(X: Array, y: Array, n: int, rng: Any) -> tuple[Array, Array]:
    """Rows of a table in an order in which its classes come one after the other, and stay."""
    kept = rng.permutation(len(y))[:n]
    X, y = X[kept], y[kept]
    begin = rng.permutation(y.max() + 1)[y] / (y.max() + 1.0)
    order = np.argsort(begin + (1.0 - begin) * rng.random(len(y)))
    return X[order], y[order]


def _embeddings(data: Path | None, n: int, seed: int) -> tuple[Array, Array]:
    """Rows of a file, drawn at random, in ten tasks."""
    if data is None or not data.is_file():
        raise InvalidInput(f"{data} is not a file; give --data a file that kalstream embed wrote")
    stream = EmbeddingStream(data, order="tasks", n_tasks=_N_TASKS, seed=seed)
    parts = [(batch.rows, batch.targets) for batch in stream.batches(0)]
    X, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    kept = np.sort(np.random.default_rng(seed).permutation(len(y))[:n])
    return X[kept], y[kept].astype(str)


# ---- table and figure -------------------------------------------------------------------------


def table(content: dict[str, Any]) -> str:
    """Three tables in Markdown: AUC, log-loss of the event, and log-loss of the labels."""
    streams = content["streams"]
    for name, stream in streams.items():
        for method, made in stream["methods"].items():
            if len(made["above"]) != stream["new"]:
                raise InvalidInput(
                    f"{method}, {name}: {len(made['above'])} of {stream['new']} new classes"
                )
    head = ["method", *(f"{name} ({s['new']} in {s['rows']:,})" for name, s in streams.items())]

    def shown(value: Any) -> str:
        rows = []
        for method in next(iter(streams.values()))["methods"]:
            cells = [value(stream["methods"][method]) for stream in streams.values()]
            rows.append([method, *("" if cell is None else f"{cell:.3f}" for cell in cells)])
        return _markdown.table(head, rows)

    parts = [
        "AUC of the score: the first row of each class against all other rows.",
        shown(lambda made: 1.0 - float(np.mean(made["above"])) if made["above"] else None),
        "Log-loss of the event that a row is of a class never seen.",
        shown(lambda made: made["event"]),
        "Log-loss of the labels, new ones too (`open_log_loss`).",
        shown(lambda made: made["open"]),
        fill(_NOTE.format(seed=content["seed"]), 100) + "\n",
    ]
    return "\n\n".join(parts)


def draw(plan: Plan, content: dict[str, Any], path: Path) -> None:
    """Draw the share of the new classes found, against the share of other rows reported.

    A method that only says yes or no has no curve.
    """
    streams = content["streams"]
    figure, axes = new_figure(1, len(streams))
    for axis, (name, stream) in zip(axes, streams.items(), strict=True):
        axis.set_title(name, fontsize=9)
        curves = {m: made for m, made in stream["methods"].items() if made["event"] is not None}
        for style, (method, made) in zip(cycle(("-", "--")), curves.items(), strict=False):
            found = np.arange(1, len(made["above"]) + 1) / max(len(made["above"]), 1)
            points = [0.0, *made["above"], 1.0], [0.0, *found, 1.0]
            axis.step(*points, style, where="post", label=method)
        axis.set_xlabel("share of other rows reported")
    axes[0].set_ylabel("share of new classes found")
    axes[0].legend(fontsize=7, loc="lower right")
    save(figure, path)
