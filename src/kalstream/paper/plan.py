"""The file of an experiment, read into methods, streams and hyper-parameters."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Final, Self

import numpy as np

from kalstream.errors import InvalidInput

QUICK_ROWS: Final = 600

_FOLDER = files("kalstream.paper") / "experiments"


@dataclass(frozen=True)
class Setup:
    """One pass of one method over one stream.

    Attributes
    ----------
    method, stream : str
        Names.
    order : str
        Order of the rows: "stationary", "tasks", "drift" or "time".
    seed : int
        Seed of the order, the initial weights and all random draws.
    chunk : int
        Rows of a chunk.
    options : mapping
        Options of `kalstream.paper.learners.make`.
    """

    method: str
    stream: str
    order: str
    seed: int
    chunk: int
    options: Mapping[str, Any]

    def having(self, **options: Any) -> Setup:
        """The same pass with these options changed or added."""
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True)
class Method:
    """A row of a table, or a curve of a figure.

    Attributes
    ----------
    name, group : str
    options : mapping
    search : tuples of hyper-parameter names
        Each tuple is one stage of the search. A stage keeps the values that earlier stages chose.
    paper : {stream: number}
        Numbers that the paper reports.
    streams : names
        Streams to run on; empty for all.
    begin_with : names
        Methods of the same group. The search starts from the hyper-parameters of the best of them.
    rungs : pairs (rows, number of candidates)
        After so many rows of the search only so many candidates continue. Empty for the rungs of
        the experiment.
    seeds : tuple of int
        Seeds to run; empty for those of the experiment.
    grid : {hyper-parameter: values}
        Replaces these entries of the experiment's grid.
    """

    name: str
    group: str
    options: Mapping[str, Any]
    search: tuple[tuple[str, ...], ...]
    paper: Mapping[str, float]
    streams: tuple[str, ...] = ()
    begin_with: tuple[str, ...] = ()
    rungs: tuple[tuple[int, int], ...] = ()
    seeds: tuple[int, ...] = ()
    grid: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Unique name: that of the group, then its own."""
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True)
class Plan:
    """An experiment, as its file describes it.

    Attributes
    ----------
    name, title : str
    kind : "images", "series", "open" or "view"
        A view has no runs of its own: it shows results of the experiment ``of``.
    chunk, rows : int
        Rows of a chunk, and of a pass (0 for all).
    seeds : tuple of int
    search : mapping
        Seed, rows, rungs and number of candidates of the hyper-parameter search.
    grid : {hyper-parameter: values}
    streams, groups : {name: mapping}
    methods : tuple of Method
    figure : mapping
        Description of the figure; empty if there is none.
    of : str
        Experiment whose results are shown.
    source : "cifar100" or "cloc"
    together : int
        Passes that run at once.
    is_quick : bool

    Examples
    --------
    >>> plan = Plan.read("table1")
    >>> plan.kind, plan.seeds, plan.quick().is_quick
    ('images', (0, 1, 2), True)
    """

    name: str
    title: str
    kind: str
    chunk: int = 10
    rows: int = 0
    seeds: tuple[int, ...] = (0,)
    search: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    streams: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    figure: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""
    source: str = "cifar100"
    together: int = 12
    is_quick: bool = False

    @classmethod
    def read(cls, name: str) -> Self:
        """Read the experiment with this name."""
        if name not in names():
            raise InvalidInput(f"no experiment {name!r}; use one of {', '.join(names())}")
        content = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        shared, groups = content.pop("options", {}), content.get("groups", {})
        methods = []
        for entry in content.pop("methods", []):
            group = groups.get(entry.get("group", ""), {})
            options = {**shared, **group.get("options", {}), **entry.get("options", {})}
            search = tuple(map(tuple, entry.get("search", group.get("search", ()))))
            methods.append(
                Method(
                    entry["name"],
                    entry.get("group", ""),
                    options,
                    search,
                    entry.get("paper", {}),
                    tuple(entry.get("streams", ())),
                    tuple(entry.get("begin_with", ())),
                    tuple(map(tuple, entry.get("rungs", group.get("rungs", ())))),
                    tuple(entry.get("seeds", ())),
                    entry.get("grid", {}),
                )
            )
        content["seeds"] = tuple(content.get("seeds", (0,)))
        return cls(name=name, methods=tuple(methods), **content)

    def quick(self) -> Plan:
        """A small version for a laptop: thin network, few rows, one seed, two candidates."""
        small = {
            "backbone": "resnet18",
            "stem": "imagenet",
            "width": 8,
            "weights": None,
            "size": None,
            "last": None,
        }
        draws = {"memory": [100, 10]}  # in place of more
        methods = tuple(
            replace(
                method,
                options={
                    **method.options,
                    **small,
                    **(draws if "memory" in method.options else {}),
                },
                rungs=(),
                seeds=(),
            )
            for method in self.methods
        )
        search = {**self.search, "rows": 0, "rungs": [(30, 1)], "candidates": 2}
        return replace(
            self,
            methods=methods if self.kind == "images" else self.methods,
            seeds=self.seeds[:1],
            rows=QUICK_ROWS,
            search=search if self.search else {},
            is_quick=True,
        )

    def needs(self) -> set[str]:
        """Experiments whose result files this one reads."""
        used = (method.options.get("use") for method in self.methods)
        return {use["experiment"] for use in used if use} | ({self.of} if self.of else set())

    def cells(self) -> Iterator[tuple[Method, str]]:
        """All cells: methods, each with the streams it runs on."""
        for method in self.methods:
            for stream in method.streams or self.streams:
                yield method, stream

    def seeds_of(self, method: Method) -> tuple[int, ...]:
        """Seeds of the runs of a method."""
        return method.seeds or self.seeds

    def grid_of(self, method: Method) -> dict[str, list[Any]]:
        """Values of the hyper-parameters that the search of a method may choose."""
        return {**self.grid, **method.grid}

    def setup(self, method: Method, stream: str, seed: int) -> Setup:
        """One pass of a cell, without the hyper-parameters that the search chooses."""
        about = self.streams[stream]
        options = {**about.get("options", {}), **method.options}
        chunk = options.pop("chunk", self.chunk)
        return Setup(method.key, stream, about["order"], seed, chunk, options)

    def search_settings(self, method: Method, stream: str) -> dict[str, Any]:
        """Everything that the search of a cell depends on, as plain JSON for the result file."""
        names = {name for searched in method.search for name in searched}
        grid = self.grid_of(method)
        settings: dict[str, Any] = {
            "options": {**self.streams[stream].get("options", {}), **method.options},
            "search": method.search,
            "begin_with": method.begin_with,
            "rungs": method.rungs or self.search["rungs"],
            "rows": self.search["rows"],
            "grid": {name: values for name, values in grid.items() if name in names},
        }
        settings["options"].pop("weights", None)
        return json.loads(json.dumps(settings))

    def candidates(self, method: Method, searched: tuple[str, ...]) -> list[dict[str, Any]]:
        """Points of the grid over these hyper-parameters; a random subset if there are too many."""
        grid = self.grid_of(method)
        values = [grid[name] for name in searched]
        n, total = self.search.get("candidates", 1), math.prod(map(len, values))
        points = list(itertools.product(*values))
        if total > n:
            rng = np.random.default_rng(self.search["seed"])
            points = [points[k] for k in sorted(rng.choice(total, n, replace=False).tolist())]
        return [dict(zip(searched, point, strict=True)) for point in points]


def names() -> list[str]:
    """Names of all experiments.

    Examples
    --------
    >>> "table1" in names(), "openclass" in names()
    (True, True)
    """
    file_names = (path.name for path in _FOLDER.iterdir())
    return sorted(name.removesuffix(".toml") for name in file_names if name.endswith(".toml"))
