"""Run folders as `kalstream run` would write them, made up from a seed, with numbers that agree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

HALF_LIVES: list[float | str] = [100.0, 1000.0, 10000.0, 100000.0, "inf"]


def config(task: str, rows: int, window: int, **stream: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "version": "0.1.0",
        "command": "kalstream run elec2.csv.gz --target class --seed 0",
        "options": {"source": "elec2.csv.gz", "target": "class"},
        "stream": {
            "name": "elec2",
            "task": task,
            "n_rows": rows,
            "fingerprint": "sha256:5f2c9a",
            "source": "elec2.csv.gz",
            "target": "class",
            "columns": [{"name": f"feat_{i}", "kind": "number"} for i in range(8)],
            **stream,
        },
        "learner": {
            "name": "KalmanClassifier" if task == "classification" else "KalmanRegressor",
            "params": {"forgetting": "mixture", "features": "fourier", "n_features": 500},
        },
        "protocol": {
            "chunk": 1,
            "delay": 0,
            "window": window,
            "limit": None,
            "seed": 0,
            "cost": 1,
        },
        "machine": {"python": "3.11.2", "platform": "Linux", "cores": 2, "numpy": "2.3"},
    }


def write(folder: Path, settings: dict[str, Any], lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def clock(row: int, random: np.random.Generator) -> dict[str, Any]:
    return {
        "seconds": row / 5000,
        "rows_per_second": 5000.0 + 300 * random.normal(),
        "memory_mb": 180 + 40 * (1 - math.exp(-row / 8000)),
        "at": "2026-11-15T14:00:00",
    }


def posterior(row: int, drifts: list[int], random: np.random.Generator) -> dict[str, Any]:
    """Short half-lives after a drift, longer ones as the rows go by."""
    since = row - max([0, *(d for d in drifts if d < row)])
    centre = np.clip(math.log10(1 + since / 60) * 1.6, 0, 3.4)
    weights = np.exp(-0.9 * (np.arange(5) - centre - 0.2 * random.normal()) ** 2)
    weights /= weights.sum()
    median = HALF_LIVES[int(np.searchsorted(np.cumsum(weights), 0.5))]
    return {"half_lives": HALF_LIVES, "weights": weights.round(4).tolist(), "median": median}


def end_line(lines: list[dict[str, Any]], labels: list[Any], **more: Any) -> dict[str, Any]:
    last = lines[-1]
    return {
        "kind": "end",
        "row": last["row"],
        "reason": "end",
        "message": None,
        "total": last["total"],
        "baselines": {name: both["total"] for name, both in last["baselines"].items()},
        "classes": labels,
        "n": sum(line["n"] for line in lines),
        "skipped": 0,
        "infinite": 0,
        "clock": {
            "seconds": last["row"] / 5000,
            "wall_seconds": last["row"] / 4000,
            "rows_per_second": 5000.0,
            "memory_mb": 231.0,
            "at": "2026-11-15T14:00:00",
        },
        **more,
    }


class Sums:
    """Scores of the rows so far, per window and in total."""

    def __init__(self, probabilities: bool) -> None:
        self.probabilities = probabilities
        self.rows: dict[str, list[np.ndarray]] = {}

    def scores(self, name: str, right: np.ndarray, loss: np.ndarray, full: bool) -> dict[str, Any]:
        kept = self.rows.setdefault(name, [])
        kept.append(np.stack([right, loss]))
        return {
            "window": self._of(kept[-1], full, False),
            "total": self._of(np.concatenate(kept, axis=1), full, True),
        }

    def _of(self, rows: np.ndarray, full: bool, total: bool) -> dict[str, Any]:
        right, loss = rows
        found: dict[str, Any] = {"accuracy": right.mean(), "log_loss": loss.mean()}
        if total:
            found["code_length"] = loss.sum() / math.log(2)
        if full:
            found |= {"brier": 0.11, "ece": 0.021, "macro_f1": right.mean() * 0.98}
            found["kappa_no_change"] = 0.3
        if full and not self.probabilities:
            found |= {"log_loss": None, "brier": None, "ece": None}
            found |= {"code_length": None} if total else {}
        return found


def classification(
    folder: Path,
    *,
    rows: int = 20_000,
    window: int = 200,
    labels: list[Any] | None = None,
    new_at: dict[int, int] | None = None,
    drifts: tuple[int, ...] = (6000, 13_000),
    stay: float = 0.85,
    skill: float = 0.88,
    probabilities: bool = True,
    half_life: str | None = "mixture",
    missing: int = 0,
    seed: int = 0,
    **stream: Any,
) -> Path:
    """Labels that repeat with probability `stay`, predicted right with about `skill`."""
    random = np.random.default_rng(seed)
    labels = ["DOWN", "UP"] if labels is None else labels
    new_at = new_at or {}
    first = [code for code in range(len(labels)) if code not in new_at]
    y = np.zeros(rows, dtype=int)
    known = list(first)
    popular = 1 / (1 + np.arange(len(labels))) ** 0.7
    opening = {row: code for code, row in new_at.items()}
    for t in range(rows):
        if t in opening:
            known.append(opening[t])
            y[t] = opening[t]
        elif t and random.random() < stay:
            y[t] = y[t - 1]
        else:
            chance = popular[known] / popular[known].sum()
            y[t] = known[int(random.choice(len(known), p=chance))]
    # codes count from 0 in the order of appearance
    order = list(dict.fromkeys(y.tolist()))
    y = np.array([order.index(code) for code in y])
    shown = [labels[code] for code in order]
    lines = _classified(y, shown, window, drifts, skill, probabilities, half_life, missing, random)
    settings = config("classification", rows, window, **stream)
    return write(folder, settings, [*lines, end_line(lines, shown)])


def _classified(
    y: np.ndarray,
    labels: list[Any],
    window: int,
    drifts: tuple[int, ...],
    skill: float,
    probabilities: bool,
    half_life: str | None,
    missing: int,
    random: np.random.Generator,
) -> list[dict[str, Any]]:
    rows, sums, seen, lines = len(y), Sums(probabilities), set(), []
    since = np.arange(rows) - np.max(
        [np.where(np.arange(rows) >= d, d, 0) for d in (0, *drifts)], 0
    )
    chance = skill - (skill - 0.45) * np.exp(-since / 700)
    right = random.random(rows) < chance
    confidence = np.clip(chance + 0.1 * random.normal(size=rows) + 0.06 * right, 0.2, 0.995)
    wrong = (y + 1 + random.integers(0, max(1, min(len(labels), 5) - 1), rows)) % len(labels)
    guess = np.where(right, y, wrong)
    loss = -np.log(np.where(right, confidence, np.maximum(1 - confidence, 1e-3) / 2))
    again = np.concatenate([[False], y[1:] == y[:-1]])
    most = np.array([y[i] == np.bincount(y[: i + 1]).argmax() for i in range(0, rows, 50)]).repeat(
        50
    )
    most = most[:rows]
    if len(most) < rows:
        most = np.pad(most, (0, rows - len(most)))
    for start in range(0, rows, window):
        part = slice(start, min(start + window, rows))
        stop = part.stop
        scored = np.arange(part.start, part.stop)[missing:]
        line: dict[str, Any] = {"kind": "window", "row": stop, "n": len(scored)}
        line |= sums.scores("ours", right[scored], loss[scored], True)
        line["baselines"] = {
            "no_change": sums.scores(
                "no_change", again[scored], np.where(again[scored], 0.16, 1.9), False
            ),
            "majority": sums.scores(
                "majority", most[scored], np.where(most[scored], 0.55, 0.85), False
            ),
        }
        line["half_life"] = None
        if half_life == "mixture":
            line["half_life"] = posterior(stop, list(drifts), random)
        elif half_life == "learned":
            life = 100 * (1 + since[stop - 1]) ** 0.5
            line["half_life"] = {"half_lives": [life], "weights": [1.0], "median": life}
        elif half_life == "fixed":
            line["half_life"] = {"half_lives": ["inf"], "weights": [1.0], "median": "inf"}
        line["drift"] = [
            {"row": d + 40, "confidence": 0.93} for d in drifts if start <= d + 40 < stop
        ]
        line["new_classes"] = []
        for t in range(start, stop):
            if int(y[t]) not in seen:
                seen.add(int(y[t]))
                new = {"code": int(y[t]), "label": labels[y[t]], "row": t}
                line["new_classes"].append(new)
        pairs, times = np.unique(np.stack([y[scored], guess[scored]]), axis=1, return_counts=True)
        line["confusion"] = np.vstack([pairs, times]).T.tolist()
        bins = np.minimum((15 * confidence[scored]).astype(int), 14)
        line["reliability"] = {
            "count": np.bincount(bins, minlength=15).tolist(),
            "confidence": np.bincount(bins, confidence[scored], minlength=15).tolist(),
            "right": np.bincount(bins, right[scored], minlength=15).astype(int).tolist(),
        }
        if not probabilities:
            line["reliability"] = None
        line |= {"missing": missing, "clock": clock(stop, random)}
        lines.append(line)
    return lines


def regression(
    folder: Path, *, rows: int = 12_000, window: int = 100, density: bool = True, seed: int = 0
) -> Path:
    random = np.random.default_rng(seed)
    time = np.arange(rows)
    y = np.cumsum(random.normal(size=rows)) * 0.1 + np.sin(time / 300)
    noise = np.where(time > rows // 2, 0.4, 0.25)
    error = noise * random.normal(size=rows)
    repeat = np.diff(y, prepend=0.0) + 0.3 * random.normal(size=rows)
    mean = y - np.cumsum(y) / (1 + time)
    pit = np.array([0.5 * (1 + math.erf(e / 0.3 / math.sqrt(2))) for e in error])
    lines = []

    def errors(values: np.ndarray, full: bool, total: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"rmse": float(np.sqrt((values**2).mean()))}
        found["mae"] = float(np.abs(values).mean())
        if full:
            inside = float((np.abs(values) < 1.645 * 0.3).mean())
            nlpd = float(0.5 * (values**2).mean() / 0.09 + math.log(0.3) + 0.919)
            found |= (
                {"nlpd": nlpd, "coverage": inside}
                if density
                else dict.fromkeys(("nlpd", "coverage"))
            )
        return found | ({"code_length": None} if total and full else {})

    for start in range(0, rows, window):
        stop = min(start + window, rows)
        lines.append(
            {
                "kind": "window",
                "row": stop,
                "n": stop - start,
                "window": errors(error[start:stop], True, False),
                "total": errors(error[:stop], True, True),
                "baselines": {
                    name: {
                        "window": errors(values[start:stop], False, False),
                        "total": errors(values[:stop], False, True),
                    }
                    for name, values in (("no_change", repeat), ("mean", mean))
                },
                "half_life": posterior(stop, [rows // 2], random),
                "drift": [{"row": rows // 2 + 30, "confidence": 0.8}]
                if start <= rows // 2 + 30 < stop
                else [],
                "new_classes": [],
                "confusion": [],
                "pit": {"count": np.histogram(pit[start:stop], 20, (0, 1))[0].tolist()}
                if density
                else None,
                "missing": 0,
                "clock": clock(stop, random),
            }
        )
    settings = config("regression", rows, window, name="tides", target="height")
    return write(folder, settings, [*lines, end_line(lines, [])])


def change_lines(folder: Path, change: Any) -> Path:
    """Pass the parsed lines through a function, for damage of all kinds."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
    return folder


def many_classes(folder: Path, number: int = 40, rows: int = 20_000, **more: Any) -> Path:
    late = {code: 1500 + 600 * (code - 10) for code in range(10, min(number, 40))}
    late = {code: row for code, row in late.items() if row < rows}
    names = [f"species {i:02d}" for i in range(number)]
    return classification(folder, rows=rows, labels=names, new_at=late, stay=0.4, **more)
