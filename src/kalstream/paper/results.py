"""The result file of an experiment on images, and checks that its numbers are consistent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kalstream._files import write_whole
from kalstream.errors import InvalidInput
from kalstream.paper.plan import Method, Plan, Setup

FORMAT: Final = 2
_MOST_CANDIDATES: Final = 40  # of one search


class ResultsFile:
    """Searches and runs so far, in a file that is replaced as a whole after every step.

    Parameters
    ----------
    path : Path
        ``EXPERIMENT.json``, or ``EXPERIMENT.GROUP.STREAM.json`` for a part.

    Attributes
    ----------
    searches : list of {method, stream, seed, how, begin, chosen, log_prob, stages}
        Hyper-parameters of each cell. "how" holds the settings of the search, "begin" the
        hyper-parameters it started from.
    runs : list of {method, stream, seed, chunk, options, accuracy, log_prob, pass}
    content : mapping
        The whole file: these lists, the data and machine they come from, and the seconds spent.
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

    # ---- searches -------------------------------------------------------------------------

    def chosen(self, plan: Plan, method: Method, stream: str) -> dict[str, Any] | None:
        """Hyper-parameters of a cell; None if they must be searched for as the plan is now."""
        if not method.search:
            return {}
        settings, begin = plan.search_settings(method, stream), self._best_of(method, stream)
        search = self._search_of(method.key, stream)
        if search is None or search.get("how") != settings:
            return None
        return search["chosen"] if begin is None or search["begin"] == begin else None

    def chosen_for(self, key: str, stream: str) -> dict[str, Any] | None:
        """Hyper-parameters that a search chose, by the key of its method."""
        search = self._search_of(key, stream)
        return None if search is None else search["chosen"]

    def inherited(self, method: Method, stream: str) -> dict[str, Any]:
        """Hyper-parameters with which the search of a cell starts: those of other methods."""
        best = self._best_of(method, stream)
        if best is None:
            raise InvalidInput(
                f"{method.key} on {stream} starts from the hyper-parameters of "
                f"{' and '.join(method.begin_with)}, which are missing; run these too, with a "
                "wider --only"
            )
        return best

    def replace_search(self, search: dict[str, Any]) -> None:
        """Keep a search in place of an earlier one of the same cell."""
        others = (each for each in self.searches if _cell(each) != _cell(search))
        self.searches[:] = [*others, search]

    def _search_of(self, key: str, stream: str) -> dict[str, Any] | None:
        cell = key, stream
        return next((each for each in self.searches if _cell(each) == cell), None)

    def _best_of(self, method: Method, stream: str) -> dict[str, Any] | None:
        """What the best of the methods in ``begin_with`` chose; None if one was not searched."""
        wanted = {(f"{method.group}: {name}", stream) for name in method.begin_with}
        searches = [each for each in self.searches if _cell(each) in wanted]
        if len(searches) < len(wanted):
            return None
        return max(searches, key=lambda each: each["log_prob"])["chosen"] if searches else {}

    # ---- runs -----------------------------------------------------------------------------

    def runs_of(self, method: Method, stream: str) -> list[dict[str, Any]]:
        """The runs of a cell."""
        return [run for run in self.runs if _cell(run) == (method.key, stream)]

    def has(self, setup: Setup) -> bool:
        """Whether a pass has been run with exactly these options."""
        return any(
            _key(each) == (setup.method, setup.stream, setup.seed)
            and each["options"] == stored_options(setup.options)
            for each in self.runs
        )

    def replace_run(self, run: dict[str, Any]) -> None:
        """Keep a run in place of an earlier one of the same cell and seed."""
        self.runs[:] = [each for each in self.runs if _key(each) != _key(run)] + [run]

    def outdated(self, plan: Plan) -> list[str]:
        """Cells that were run with other options than the plan has now."""
        return [
            f"{method.key}, {stream}"
            for method, stream in plan.cells()
            if not all(self._as_planned(plan, method, run) for run in self.runs_of(method, stream))
        ]

    def _as_planned(self, plan: Plan, method: Method, run: dict[str, Any]) -> bool:
        chosen = self.chosen(plan, method, run["stream"])
        if chosen is None:
            return False
        expected = plan.setup(method, run["stream"], run["seed"]).having(**chosen).options
        had = _comparable(run["options"])
        if "use" in expected:  # the run also has hyper-parameters of another experiment
            return all(had.get(name) == value for name, value in _comparable(expected).items())
        return had == _comparable(expected)

    # ---- files ----------------------------------------------------------------------------

    def write_part(self, group: str, stream: str, path: Path) -> None:
        """Write the entries of one group and stream to a file of their own."""
        part, prefix = ResultsFile(path), f"{group}: " if group else ""
        part.content |= {name: value for name, value in self.content.items() if name != "seconds"}
        for name in ("searches", "runs"):
            of_stream = (each for each in self.content[name] if each["stream"] == stream)
            part.content[name] = [each for each in of_stream if each["method"].startswith(prefix)]
        part.save()

    def merge(self, other: ResultsFile) -> None:
        """Take over the cells of another file, in place of the same cells here."""
        cells = {_cell(each) for each in (*other.searches, *other.runs)}
        for mine, theirs in ((self.searches, other.searches), (self.runs, other.runs)):
            mine[:] = [each for each in mine if _cell(each) not in cells] + theirs
        own = {"searches": self.searches, "runs": self.runs, "seconds": self.seconds}
        self.content |= {**other.content, **own}

    def save(self, **about: Any) -> None:
        """Write the file; ``about`` are further entries."""
        spent = time.perf_counter() - self.begun
        self.content |= {**about, "seconds": round(self.seconds + spent, 1)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content, indent=1, allow_nan=False)
        write_whole(self.path, _compact(text) + "\n")


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a result file stores them: of a weight file only the name."""
    weights = options.get("weights")
    return {**options, "weights": Path(weights).name} if weights else dict(options)


def check(plan: Plan, results: ResultsFile) -> None:
    """Recompute the numbers of a result file; an error names the first that does not follow."""
    keys = [_key(run) for run in results.runs]
    if len(set(keys)) < len(keys):
        raise InvalidInput(f"{results.path} holds a run twice")
    for run in results.runs:
        _check_run(plan, results, run)
    for search in results.searches:
        _check_search(plan, search)
    for method, stream in plan.cells():
        seeds = plan.seeds[:1] if results.content.get("quick") else plan.seeds_of(method)
        runs = results.runs_of(method, stream)
        if runs and sorted(run["seed"] for run in runs) != sorted(seeds):
            raise InvalidInput(f"{method.key}, {stream}: not the seeds {seeds}; run it again")
        chosen = results.chosen_for(method.key, stream) or {}
        for run in runs:
            if not chosen.items() <= run["options"].items():
                raise InvalidInput(f"{method.key}, {stream}: was not run with {chosen}")


def _check_run(plan: Plan, results: ResultsFile, run: dict[str, Any]) -> None:
    counts, name = run["pass"], f"{run['method']}, {run['stream']}, seed {run['seed']}"
    accuracy = 100.0 * sum(counts["right"]) / max(counts["rows"], 1)
    # some images of CLOC may be missing
    complete = counts["rows"] == results.content["rows"] or plan.source == "cloc"
    if counts["failed"] is None and not complete:
        raise InvalidInput(f"{name}: {counts['rows']} rows of {results.content['rows']}")
    if abs(accuracy - run["accuracy"]) > 1e-3:
        raise InvalidInput(f"{name}: accuracy is {run['accuracy']}, but {accuracy:.3f} was counted")
    if run["log_prob"] is not None:
        mean = sum(counts["log_prob"]) / counts["rows"]
        if abs(mean - run["log_prob"]) > 1e-4:
            raise InvalidInput(
                f"{name}: log_prob is {run['log_prob']}, but the sum gives {mean:.5f}"
            )
    if run["seed"] == plan.search.get("seed"):
        raise InvalidInput(f"{name}: this is the seed of the search")


def _check_search(plan: Plan, search: dict[str, Any]) -> None:
    name = f"{search['method']}, {search['stream']}"
    if sum(len(stage["candidates"]) for stage in search["stages"]) > _MOST_CANDIDATES:
        raise InvalidInput(f"{name}: more than {_MOST_CANDIDATES} candidates")
    if search["chosen"] != search["stages"][-1]["chosen"]:
        raise InvalidInput(f"{name}: the best candidate was not chosen")
    grid = {**plan.grid, **search["how"]["grid"]}
    for stage in search["stages"]:
        chosen, candidates = stage["chosen"], stage["candidates"]
        if not all(each[key] in grid[key] for each in candidates for key in chosen):
            raise InvalidInput(f"{name}: a candidate is not a point of the grid")
        sound = [each for each in candidates if each["log_prob"] is not None]
        best = max(sound, key=lambda each: (each["rows"], each["log_prob"]))
        same = [each for each in sound if chosen.items() <= each.items()]
        finals = [each["log_prob"] for each in same if each["rows"] == best["rows"]]
        if not finals or max(finals) < best["log_prob"] - 1e-4:
            raise InvalidInput(f"{name}: the best candidate was not chosen")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} is damaged ({error}); move it away") from error
    if not isinstance(content, dict) or not {"format", "experiment", "runs"} <= content.keys():
        raise InvalidInput(f"{path} is not a result file of this version; move it away")
    return content


def _cell(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["method"], entry["stream"]


def _key(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["method"], run["stream"], run["seed"]


def _comparable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without the weight file, whose path is the user's, and the source of others."""
    return {name: value for name, value in options.items() if name not in ("weights", "use")}


def _compact(text: str) -> str:
    """Put arrays of numbers on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda array: re.sub(r"\s+", " ", array[0]), text)
