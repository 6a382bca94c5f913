"""Every option of a run changes its result."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier
from kalstream.cli.run import options_of
from kalstream.errors import InvalidOption
from kalstream.runs import Run
from kalstream.runs.options import OF_CLASSIFIERS, OF_ESTIMATORS, Options
from kalstream.runs.setup import make_learner, open_stream

COLUMNS = ("when", "came", "order", "x", "code", "mixed", "amount", "day", "y", "n", "late")
PLAIN = [
    "when",
    "came",
    "order",
    "mixed",
    "amount",
    "day",
    "n",
    "late",
]  # left out unless a test is on one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and embeddings, and a run on one of them."""
    folder = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(0)
    x, code = rng.standard_normal(160).round(3), rng.integers(0, 4, 160)
    y = np.where(x + (code % 2) + 0.3 * rng.standard_normal(160) > 0.5, "up", "down")
    rows: list[list[Any]] = []
    for i in range(160):
        when, first = i + 3 * (i // 5), i % 2 == 0
        mixed = "n/v" if i % 15 == 7 else f"{x[i] / 2:.2f}"
        amount = f"{i % 9 + 1},{i % 7 + 100}"
        day = f"{i % 12 + 1:02}/{i % 7 + 1:02}/2024"
        late = "" if first else y[i - 1]
        cells = (when, when + 6, i // 2, x[i], code[i], mixed, amount, day, y[i], code[i], late)
        rows.append(list(cells))
    for name, table in (("a.csv", rows), ("b.csv", rows[::-1])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *table])
    rows[100][3] = "broken"
    with (folder / "bad.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    lines = [f"{a};{b};0,{b}" for a, b in zip(x, y, strict=True)]
    (folder / "odd.csv").write_text("\n".join(["x;y;n,y", *lines, ""]))
    latin = [f"{a},{'bar' if a < 0 else 'café'},{b}" for a, b in zip(x, y, strict=True)]
    (folder / "latin.csv").write_text("\n".join(["x,where,y", *latin, ""]), encoding="latin-1")
    np.savez(folder / "e.npz", features=np.c_[x, code], labels=(y == "up").astype(int))
    Run(folder / "old", Options(source=str(folder / "a.csv"), target="y", ignore=PLAIN)).go()
    return folder


def without(*names: str) -> list[str]:
    return [name for name in PLAIN if name not in names]


TIMED = {"time": "when", "ignore": without("when")}
WITH_IDS = {"target": "late", "id": "order", "ignore": [*without("order", "late"), "y"]}
CLASSIFICATION = {"task": "classification"}
# Option -> the value that is tried, and the other options of both runs.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "source": ("b.csv", {}),
    "origin": ("old", {}),
    "target": ("n", {}),
    "task": ("regression", {"target": "n", "ignore": without("n")}),
    "time": ("when", {"ignore": without("when")}),
    "time_unit": ("7", TIMED),
    "label_time": ("came", {**TIMED, "ignore": without("when", "came")}),
    "id": ("order", WITH_IDS | CLASSIFICATION),
    "key": ("order", {"ignore": without("order")}),
    "aggregate": (["code:x:mean:5"], {}),
    "ignore": ([*PLAIN, "x"], {}),
    "categorical": (["code"], {}),
    "missing": (["n/v"], {"ignore": without("mixed")}),
    "decimal": (",", {"ignore": without("amount")}),
    "date_format": ("month-first", {"features": "scaled", "ignore": without("day")}),
    "delimiter": (",", {"source": "odd.csv", "ignore": []}),
    "encoding": ("latin-1", {"source": "latin.csv", "ignore": [], "bad_rows": "skip"}),
    "bad_rows": ("skip", {"source": "bad.csv"}),
    "order": ("shuffled", {"source": "e.npz", "target": None, "ignore": []}),
    "forgetting": ("0.9", {}),
    "likelihood": ("onehot", {}),
    "motion": ("2", {}),
    "features": ("scaled", {}),
    "n_components": (20, {"features": "fourier"}),
    "class_weight": (["up=3"], {}),
    "noise_var": ("0.5", {"likelihood": "onehot"}),
    "prior_var": ("0.01", {}),
    "transition": ("chunk", {"chunk": 10}),
    "predictive": ("plug-in", {}),
    "calibration": ("0.5,2", {"likelihood": "onehot"}),
    "stacking": (False, {}),
    "recent_labels": (False, {}),
    "preset": ("accurate", {}),
    "intercept": (False, {}),
    "dtype": ("float32", {}),
    "learner": ("sklearn.naive_bayes:GaussianNB", {}),
    "chunk": (10, {}),
    "delay": ("5", {}),
    "max_waiting": (1, {**TIMED, "delay": "9s"}),
    "max_age": (2.0, {**TIMED, "delay": "9s"}),
    "cost": (2.0, {}),
    "window": (77, {}),
    "limit": (100, {}),
    "seed": (1, {"features": "fourier"}),
    "predictions": (True, {}),
}


def result(folder: Path, out: Path, **options: Any) -> list[Any]:
    """The lines of a run without what depends on the clock, and the names of its files."""
    base: dict[str, Any] = {"source": "a.csv", "target": "y", "ignore": PLAIN, "features": "raw"}
    options = {name: value for name, value in (base | options).items() if value is not None}
    if "origin" in options:
        del options["features"]
        options["origin"] = str(folder / options["origin"])
    Run(out, Options.of(**options | {"source": str(folder / options["source"])})).go()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("clock", None)
    return [lines, sorted(path.name for path in out.iterdir())]


@pytest.mark.parametrize("name", CASES)
def test_an_option_changes_the_result(name: str, folder: Path, tmp_path: Path) -> None:
    value, others = CASES[name]
    before = {k: v for k, v in others.items() if k != name}
    assert result(folder, tmp_path / "a", **before) != result(
        folder, tmp_path / "b", **(others | {name: value})
    )


def test_every_option_is_tried() -> None:
    assert set(CASES) == set(Options.model_fields)


def test_the_help_is_that_of_the_estimator() -> None:
    about = " ".join((KalmanClassifier.__doc__ or "").split())
    for name in (*OF_ESTIMATORS, *OF_CLASSIFIERS):
        said = str(Options.model_fields[name].description)
        said = said.removeprefix("Without this, ").removeprefix("Numbers of the filter: ")
        first = said.split(":")[0].split(";")[0].split(",")[0].rstrip(".")
        assert first in about, name


def test_options_that_were_not_given_are_not_in_the_files() -> None:
    written = Options(n_components=50).model_dump()
    assert written["n_components"] == 50
    assert not {"class_weight", "stacking", "missing"} & set(written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": ["up"]}, "LABEL=WEIGHT"),
        ({"class_weight": ["up=-1"]}, "LABEL=WEIGHT"),
        ({"class_weight": ["balanced", "up=2"]}, "balanced alone"),
        ({"noise_var": "0"}, "a number above 0"),
        ({"noise_var": "1,2"}, "a number above 0"),
        ({"calibration": "1,x"}, "such as 0.5,1,2"),
        ({"n_components": 0}, "--n-components"),
        ({"target": "x", "stacking": False}, "leave --no-stacking out"),
        ({"target": "n", "class_weight": ["up=2"]}, "'up' is no label of the target"),
        ({"learner": "a.b:c", "n_components": 9}, "does not apply to --learner a.b:c"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, folder: Path) -> None:
    def make() -> None:
        given = Options.of(**{"source": str(folder / "a.csv"), "target": "y"} | options)
        make_learner(given, open_stream(given))

    with pytest.raises(InvalidOption, match=message):
        make()


def test_weights_of_classes_have_the_labels_of_the_target(folder: Path) -> None:
    for target, given, weights in (
        ("y", ["up=2", "down=0.5"], {"up": 2.0, "down": 0.5}),
        ("n", ["1=2"], {1: 2.0}),
        ("n", ["balanced"], "balanced"),
    ):
        options = Options(source=str(folder / "a.csv"), target=target, class_weight=given)
        learner = make_learner(options, open_stream(options))
        assert isinstance(learner, KalmanClassifier)
        assert learner.class_weight == weights


def test_options_of_serve_and_send_are_those_that_were_given() -> None:
    """Lists are cut at commas, and what is off or 0 is not taken for what was not given."""
    given = {"stacking": False, "seed": 0, "ignore": ["a,b", "c"], "missing": ["x,y"], "task": None}
    options = options_of(given)
    assert (options.stacking, options.ignore, options.missing) == (False, ["a", "b", "c"], ["x,y"])
    assert options.model_fields_set == {"stacking", "seed", "ignore", "missing"}
