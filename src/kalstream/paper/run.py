"""An experiment on images: hyper-parameters are searched for, then seeds are run."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from kalstream import __version__
from kalstream._files import write_whole
from kalstream.errors import InvalidInput
from kalstream.paper.images import Images, Photographs
from kalstream.paper.passes import Pass, Race
from kalstream.paper.plan import Method, Plan, Setup

FORMAT: Final = 2


class Results:
    """What has been found so far, in a file that is replaced as a whole after every step.

    Parameters
    ----------
    path : Path
        ``EXPERIMENT.json``, or ``EXPERIMENT.GROUP.STREAM.json`` for a part.

    Attributes
    ----------
    searches : list of {method, stream, seed, chosen, log_prob, stages}
    runs : list of {method, stream, seed, options, accuracy, log_prob, pass}
    content : mapping
        The file: these, and what they are of; seconds is the time that all took.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.begun = path, time.perf_counter()
        name = path.name.split(".")[0]
        self.content: dict[str, Any] = {"format": FORMAT, "experiment": name}
        self.content |= {"searches": [], "runs": [], "seconds": 0.0}
        if path.exists():
            self.content |= _read(path)
            if (self.content["format"], self.content["experiment"]) != (FORMAT, name):
                raise InvalidInput(f"{path} is not a result file of {name}; move it away")
        self.seconds: float = self.content["seconds"]
        self.searches: list[dict[str, Any]] = self.content["searches"]
        self.runs: list[dict[str, Any]] = self.content["runs"]

    def chosen(self, plan: Plan, method: Method, stream: str) -> dict[str, Any] | None:
        """The hyper-parameters of a cell, if they have been found as the plan has it."""
        if not method.search:
            return {}
        how, begin = plan.how(method, stream), self._best_of(method, stream)
        for each in self.searches:
            if (each["method"], each["stream"]) == (method.key, stream):
                same = each.get("how") == how and (begin is None or each["begin"] == begin)
                return each["chosen"] if same else None
        return None

    def differ(self, plan: Plan) -> list[str]:
        """Cells that were run, but not with the options that the plan has."""
        return [
            f"{method.key}, {stream}"
            for method, stream in plan.cells()
            if not all(self._as_planned(plan, method, run) for run in self.of(method, stream))
        ]

    def _as_planned(self, plan: Plan, method: Method, run: dict[str, Any]) -> bool:
        chosen = self.chosen(plan, method, run["stream"])
        if chosen is None:
            return False
        expected = plan.setup(method, run["stream"], run["seed"]).having(**chosen).options
        had = _unnamed(run["options"])
        if "use" in expected:  # with what another experiment has found beside its own
            return all(had.get(name) == value for name, value in _unnamed(expected).items())
        return had == _unnamed(expected)

    def begun_with(self, method: Method, stream: str) -> dict[str, Any]:
        """Those that a cell takes over from another method."""
        found = self._best_of(method, stream)
        if found is None:
            raise InvalidInput(
                f"{method.key} on {stream} begins with what was chosen for "
                f"{' and '.join(method.begin_with)}, which is not there: run these too, with a "
                "wider --only"
            )
        return found

    def _best_of(self, method: Method, stream: str) -> dict[str, Any] | None:
        wanted = [f"{method.group}: {name}" for name in method.begin_with]
        found = [f for f in self.searches if f["method"] in wanted and f["stream"] == stream]
        if len(found) < len(wanted):
            return None
        return max(found, key=lambda each: each["log_prob"])["chosen"] if found else {}

    def chosen_for(self, key: str, stream: str) -> dict[str, Any] | None:
        """What a search has found, by the key of its method."""
        for each in self.searches:
            if (each["method"], each["stream"]) == (key, stream):
                return each["chosen"]
        return None

    def forget(self, method: Method, stream: str) -> None:
        """Drop the search of a cell."""
        cell = method.key, stream
        self.searches[:] = [e for e in self.searches if (e["method"], e["stream"]) != cell]

    def of(self, method: Method, stream: str) -> list[dict[str, Any]]:
        """The runs of a cell."""
        return [run for run in self.runs if (run["method"], run["stream"]) == (method.key, stream)]

    def has(self, setup: Setup) -> bool:
        """Whether a pass has been run, with these very options."""
        return any(
            _key(each) == (setup.method, setup.stream, setup.seed)
            and each["options"] == _kept(setup.options)
            for each in self.runs
        )

    def add(self, run: dict[str, Any]) -> None:
        """Keep a run, instead of one with other options."""
        self.runs[:] = [each for each in self.runs if _key(each) != _key(run)] + [run]

    def part(self, group: str, stream: str, path: Path) -> None:
        """Begin another file with what this one has of a group and a stream."""
        part, own = Results(path), f"{group}: " if group else ""
        part.content |= {name: value for name, value in self.content.items() if name != "seconds"}
        for name in ("searches", "runs"):
            of_stream = (each for each in self.content[name] if each["stream"] == stream)
            part.content[name] = [each for each in of_stream if each["method"].startswith(own)]
        part.save()

    def take(self, other: Results) -> None:
        """What another file has of its cells instead of what this one has of them."""
        cells = {(e["method"], e["stream"]) for e in (*other.searches, *other.runs)}
        for mine, theirs in ((self.searches, other.searches), (self.runs, other.runs)):
            kept = [each for each in mine if (each["method"], each["stream"]) not in cells]
            mine[:] = kept + theirs
        own = {"searches": self.searches, "runs": self.runs, "seconds": self.seconds}
        self.content |= {**other.content, **own}

    def save(self, **about: Any) -> None:
        """Write the file."""
        spent = time.perf_counter() - self.begun
        self.content |= {**about, "seconds": round(self.seconds + spent, 1)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = json.dumps(self.content, indent=1, allow_nan=False)
        write_whole(self.path, _compact(lines) + "\n")


def run(
    plan: Plan,
    images: Images | Photographs,
    results: Results,
    device: str,
    say: Callable[[str], None],
    only: set[tuple[str, str]],
    others: Mapping[str, Results] | None = None,
) -> None:
    """Search where hyper-parameters are missing, then run the seeds that are missing.

    Parameters
    ----------
    plan : Plan
    images : Images
    results : Results
        Is filled.
    device : str
    say : function
        Told what has been done.
    only : set of (key of a method, stream)
        Cells to be run.
    others : {experiment: Results}
        Whose hyper-parameters methods may use.
    """
    if device.startswith("cuda"):
        torch.backends.cudnn.benchmark = True
    n_rows = min(plan.rows or images.n_rows, images.n_rows)
    about = {"data": images.fingerprint, "rows": n_rows}
    for name, value in about.items():
        if results.content.get(name, value) != value:
            raise InvalidInput(
                f"{results.path} is of other {name} ({results.content[name]}, now {value}); "
                "give --out another folder"
            )
    about |= {"data_name": images.name, "quick": plan.is_quick, "machine": _machine(device)}
    for other in (others or {}).values():
        if any(other.content.get(name) != about[name] for name in ("data", "quick")):
            raise InvalidInput(
                f"{other.path} is of other pictures, or only one of it and this is quick; "
                "give --out another folder"
            )
    cells = [(method, stream) for method, stream in plan.cells() if (method.key, stream) in only]
    for group in dict.fromkeys(method.group for method, _ in cells):  # a session may be cut short
        these = [(method, stream) for method, stream in cells if method.group == group]
        for method, stream in these:
            if results.chosen(plan, method, stream) is None:
                begin = results.begun_with(method, stream)
                found = _search(plan, method, stream, begin, images, device)
                results.forget(method, stream)
                results.searches.append(found)
                results.save(**about)
                seconds = sum(stage["seconds"] for stage in found["stages"])
                say(f"{method.key}, {stream}: {found['chosen']} ({seconds:.0f} s)")
        todo = []
        for method, stream in these:
            for seed in plan.seeds:
                setup = plan.setup(method, stream, seed)
                setup = setup.having(**results.chosen(plan, method, stream) or {})
                setup = _with_used(setup, others or {})
                if not results.has(setup):
                    todo.append(setup)
        for together in _groups(todo, plan.together):
            race = Race(together, images, device)
            race.advance(n_rows)
            race.end()
            for setup, made in zip(together, race.passes, strict=True):
                results.add(_run_of(setup, made))
                say(
                    f"{setup.method}, {setup.stream}, seed {setup.seed}: {made.accuracy:.1f} %, "
                    f"log-probability {made.mean_log_prob:.3f} ({made.seconds:.0f} s)"
                )
            results.save(**about)


def _search(
    plan: Plan,
    method: Method,
    stream: str,
    begin: dict[str, Any],
    images: Images | Photographs,
    device: str,
) -> dict[str, Any]:
    """What has the highest cumulative log-probability, one tuple of names after the other."""
    stages, chosen = [], begin
    for searched in method.search:
        points = [{**chosen, **point} for point in plan.candidates(searched)]
        stages.append(_raced(plan, method, stream, points, images, device))
        chosen = stages[-1]["chosen"]
    return {
        "method": method.key,
        "stream": stream,
        "seed": plan.search["seed"],
        "how": plan.how(method, stream),
        "begin": begin,
        "chosen": chosen,
        "log_prob": stages[-1]["log_prob"],
        "stages": stages,
    }


def _raced(
    plan: Plan,
    method: Method,
    stream: str,
    points: list[dict[str, Any]],
    images: Images | Photographs,
    device: str,
) -> dict[str, Any]:
    """The best of some points; only so many go on at a rung, and if it is one the race is over."""
    about, first = plan.search, plan.setup(method, stream, plan.search["seed"])
    race = Race([first.having(**point) for point in points], images, device)
    made = race.passes
    n_rows = min(about["rows"] or images.n_rows, images.n_rows)
    for rows, n_kept in (*(method.rungs or about["rungs"]), (n_rows, 1)):
        race.advance(min(rows, n_rows))
        if n_kept == 1:
            break
        best = sorted(race.active, key=lambda n: made[n].mean_log_prob, reverse=True)
        race.keep(sorted(best[:n_kept]))
    race.end()
    sound = [n for n, each in enumerate(made) if each.failed is None]
    if not sound:
        raise InvalidInput(
            f"all {len(points)} candidates of {method.key} on {stream} diverged; put lower rates "
            "into the grid of the experiment"
        )
    chosen = max(sound, key=lambda n: (made[n].rows, made[n].mean_log_prob))
    return {
        "chosen": points[chosen],
        "log_prob": round(made[chosen].mean_log_prob, 4),
        "seconds": round(sum(each.seconds for each in made), 1),
        "candidates": [
            {
                **point,
                "rows": each.rows,
                "log_prob": None if each.failed else round(each.mean_log_prob, 4),
                "accuracy": round(each.accuracy, 2),
            }
            for point, each in zip(points, made, strict=True)
        ],
    }


def _with_used(setup: Setup, others: Mapping[str, Results]) -> Setup:
    """With the hyper-parameters that another experiment has chosen; its own options count more."""
    options = dict(setup.options)
    use = options.pop("use", None)
    if use is None:
        return setup
    stream = use.get("stream", setup.stream)
    found = others[use["experiment"]].chosen_for(use["method"], stream)
    if found is None:
        raise InvalidInput(
            f"{setup.method} uses what {use['experiment']} chose for {use['method']} on "
            f"{stream}; run that first: kalstream paper {use['experiment']}"
        )
    return replace(setup, options={**found, **options})


def _groups(setups: Sequence[Setup], size: int) -> Iterable[list[Setup]]:
    """Setups that are run together: with chunks of one size, and not too many."""
    by_chunk: dict[int, list[Setup]] = {}
    for setup in setups:
        by_chunk.setdefault(setup.chunk, []).append(setup)
    for same in by_chunk.values():
        for first in range(0, len(same), size):
            yield same[first : first + size]


def _run_of(setup: Setup, made: Pass) -> dict[str, Any]:
    return {
        "method": setup.method,
        "stream": setup.stream,
        "seed": setup.seed,
        "chunk": setup.chunk,
        "options": _kept(setup.options),
        "accuracy": round(made.accuracy, 3),
        "log_prob": None if made.failed else round(made.mean_log_prob, 5),
        "pass": made.to_json(),
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} is damaged ({error}); move it away") from error
    if not isinstance(found, dict) or not {"format", "experiment", "runs"} <= found.keys():
        raise InvalidInput(f"{path} is not a result file of this version; move it away")
    return found


def _key(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["method"], run["stream"], run["seed"]


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a result file has them: of files only their names."""
    weights = options.get("weights")
    return {**options, "weights": Path(weights).name} if weights else dict(options)


def _unnamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without the file of weights, which is the user's, and where others come from."""
    return {name: value for name, value in options.items() if name not in ("weights", "use")}


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    return {"kalstream": __version__, "torch": torch.__version__, "device": name or "cpu"}


def _compact(text: str) -> str:
    """Arrays of numbers on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
