"""The quick version of every experiment of the paper, and the content of its files."""

import importlib
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kalstream import paper
from kalstream.errors import InvalidInput, MissingFile
from kalstream.paper import Plan, images, learners, openclass, tables
from kalstream.paper.plan import Method
from kalstream.paper.race import Race
from kalstream.paper.results import ResultsFile
from kalstream.paper.search import search

torch.set_num_threads(1)


def test_every_experiment_in_its_quick_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, so that each experiment runs once; some use results of others."""
    monkeypatch.setattr("kalstream.paper.plan.QUICK_ROWS", 100)
    folder = tmp_path / "all"
    for name in paper.names():
        paper.reproduce(name, folder, quick=True, say=lambda line: None)
    for name in paper.names():
        files_are_complete(folder, name)
    is_not_run_again(folder)
    (tmp_path / "touched").mkdir()
    changes_are_detected(folder, tmp_path / "touched")


def files_are_complete(folder: Path, name: str) -> None:
    plan = Plan.read(name)
    page = (folder / f"{name}.md").read_text()
    assert page.startswith(f"# {plan.title}")
    assert all(method.name in page for method in plan.methods)
    assert paper.shown(name, folder) in page
    assert (folder / f"{name}.png").exists() == bool(plan.figure)
    if plan.kind == "images":
        found = json.loads((folder / f"{name}.json").read_text())
        assert {(r["method"], r["stream"]) for r in found["runs"]} == {
            (method.key, stream) for method, stream in plan.cells()
        }
        for each in found["runs"]:
            made = each["pass"]
            assert made["failed"] is None
            assert made["rows"] == 100
            assert sum(made["right"]) == pytest.approx(each["accuracy"], abs=1e-3)


def is_not_run_again(folder: Path) -> None:
    before = (folder / "table1.json").read_bytes()
    lines: list[str] = []
    paper.reproduce("table1", folder, quick=True, say=lines.append)
    assert lines == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kalstream.paper.plan.QUICK_ROWS", 120)
        with pytest.raises(InvalidInput, match="give --out another folder"):
            paper.reproduce("table1", folder, quick=True, say=lines.append)
    assert json.loads(before)["runs"] == json.loads((folder / "table1.json").read_bytes())["runs"]


def changes_are_detected(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "table1.json").read_text())

    def message(change: Any) -> str:
        touched = json.loads(json.dumps(content))
        change(touched)
        (tmp_path / "table1.json").write_text(json.dumps(touched))
        with pytest.raises(InvalidInput) as caught:
            paper.shown("table1", tmp_path)
        return str(caught.value)

    def better(content: Any) -> None:
        content["runs"][3]["accuracy"] += 5.0

    def same_seed(content: Any) -> None:
        content["runs"][0]["seed"] = 100

    def another(content: Any) -> None:
        search = next(each for each in content["searches"] if "lr" in each["chosen"])
        stage = search["stages"][-1]
        stage["chosen"] = search["chosen"] = next(
            {name: each[name] for name in stage["chosen"]}
            for each in stage["candidates"]
            if not stage["chosen"].items() <= each.items()
        )

    def not_as_chosen(content: Any) -> None:
        content["runs"][0]["options"]["lr"] *= 3.0

    def another_seed(content: Any) -> None:
        content["runs"][0]["seed"] = 7

    assert "was not run with" in message(not_as_chosen)
    assert "not the seeds" in message(another_seed)
    assert "was counted" in message(better)
    assert "seed of the search" in message(same_seed)
    assert "the best candidate was not chosen" in message(another)
    (tmp_path / "table1.json").write_text(json.dumps(content))
    (tmp_path / "table1.md").write_text("# Table 1\n\n| method | 99.9 |\n")
    with pytest.raises(InvalidInput, match="does not match"):
        paper.shown("table1", tmp_path)
    (tmp_path / "table1.md").unlink()
    with pytest.raises(InvalidInput, match="does not match"):
        paper.shown("table1", tmp_path)
    part = {**content, "runs": [run for run in content["runs"] if run["stream"] == "tasks"]}
    (tmp_path / "table1.json").write_text(json.dumps(part))
    table = tables.table(Plan.read("table1"), ResultsFile(tmp_path / "table1.json"))
    assert f"not run yet: {len(content['runs']) - len(part['runs'])} cells" in " ".join(
        table.split()
    )


def test_errors_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no experiment 'table9'; use one of ablations"):
        paper.reproduce("table9", tmp_path)
    with pytest.raises(InvalidInput, match="table1 needs CIFAR-100: pass --data"):
        paper.reproduce("table1", tmp_path)
    with pytest.raises(MissingFile, match=r"figure2 needs table1\.json"):
        paper.reproduce("figure2", tmp_path)
    with pytest.raises(InvalidInput, match="--device nonsense cannot be used here"):
        paper.reproduce("table1", tmp_path, quick=True, device="nonsense")
    with pytest.raises(MissingFile, match="no result file"):
        paper.shown("table1", tmp_path)
    for damaged in ("{bad", "{}"):
        (tmp_path / "figure1.json").write_text(damaged)
        with pytest.raises(InvalidInput, match="is damaged"):
            paper.shown("figure1", tmp_path)
    (tmp_path / "weights.pth").write_text("none")
    with pytest.raises(InvalidInput, match="without running code"):
        paper.reproduce(
            "figure3", tmp_path, data=tmp_path, weights=tmp_path / "weights.pth", only="scratch"
        )


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    find = importlib.import_module

    def blocked(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return find(name, package)

    monkeypatch.setattr("kalstream._optional.import_module", blocked)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_there_is_a_table_and_the_figure_is_skipped(tmp_path: Path) -> None:
    lines: list[str] = []
    files = paper.reproduce("figure1", tmp_path, say=lines.append)
    assert [path.name for path in files] == ["figure1.json", "figure1.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure1.json", "figure1.md"]
    assert len(lines) == 1
    assert lines[0].startswith("figure1.png will not be drawn")
    assert "pip install 'kalstream[figures]'" in lines[0]
    assert paper.shown("figure1", tmp_path)


def test_the_missing_extra_is_named_before_the_work_begins(
    tmp_path: Path, no_matplotlib: None
) -> None:
    lines: list[str] = []
    with pytest.raises(InvalidInput, match="figure3 needs CIFAR-100"):
        paper.reproduce("figure3", tmp_path, say=lines.append)
    assert "kalstream[figures]" in lines[0]


# ---- the parts ----------------------------------------------------------------------------


def test_a_race_equals_its_learners_alone() -> None:
    plan = Plan.read("table1").quick()
    data = images.Images.synthetic(120, "cpu")
    cells = [(m, s) for m, s in plan.cells() if m.group in ("tuned", "baselines")][::3]
    setups = [plan.setup(m, s, 0).having(lr=0.05) for m, s in cells]
    setups = [
        each.having(gamma=0.99, gamma_lr=0.1) if "learned" in each.method else each
        for each in setups
    ]
    together = Race(setups, data, "cpu", window=40)
    together.advance(60)
    together.keep([0, len(setups) - 1])
    together.advance(120)
    for number in (0, 1, len(setups) - 1):
        alone = Race([setups[number]], data, "cpu", window=40)
        alone.advance(60)
        if number != 1:
            alone.advance(120)
        expected, found = alone.passes[0], together.passes[number]
        assert found.right == expected.right
        np.testing.assert_allclose(found.log_prob, expected.log_prob)
        assert found.rows == (60 if number == 1 else 120)


def test_the_search_takes_the_highest_log_probability() -> None:
    plan = Plan.read("table1").quick()
    rungs = {"rows": 60, "rungs": [(20, 3), (30, 2)], "candidates": 4}
    plan = replace(plan, search={**plan.search, **rungs})
    method = next(each for each in plan.methods if each.key == "tuned: gamma = 0.999")
    data = images.Images.synthetic(300, "cpu")
    entry = search(plan, method, "tasks", {}, data, "cpu")
    first, second = entry["stages"]
    for stage in (first, second):
        assert sorted(each["rows"] for each in stage["candidates"]) == [20, 30, 60, 60]
        best = max(each["log_prob"] for each in stage["candidates"] if each["rows"] == 60)
        chosen = next(e for e in stage["candidates"] if (e["log_prob"], e["rows"]) == (best, 60))
        assert stage["chosen"].items() <= chosen.items()
    assert first["chosen"].keys() == {"lr", "beta"}
    assert entry["chosen"] == second["chosen"]
    assert entry["chosen"].items() > first["chosen"].items()
    assert entry["log_prob"] == second["log_prob"]


def test_the_grid_is_the_papers_and_candidates_are_its_points() -> None:
    plan = Plan.read("table1")
    assert plan.grid["lr"] == [0.1, 0.01, 0.001, 0.0005, 0.0001]
    for method in plan.methods:
        stages = [plan.candidates(method, searched) for searched in method.search]
        assert sum(map(len, stages)) <= 40
        assert bool(stages) == (method.group not in ("beyond", "averaged"))  # one setting for both
        for searched, points in zip(method.search, stages, strict=True):
            assert len({tuple(point.values()) for point in points}) == len(points)
            grid = plan.grid_of(method)
            assert all(point[name] in grid[name] for point in points for name in searched)
    assert len([cell for method in plan.methods for cell in method.paper]) == 39


def test_a_method_may_have_seeds_and_a_grid_of_its_own() -> None:
    plan = Plan.read("figure3")
    alone = method_of(plan, "scratch: online SGD, 8 replay streams")
    assert plan.seeds_of(alone) == (0,)
    assert {plan.seeds_of(each) for each in plan.methods if not each.seeds} == {(0, 1, 2)}
    assert not any(each.seeds for each in plan.quick().methods)  # a quick run has one seed anyway
    plan = Plan.read("table1")
    method = method_of(plan, "tuned-softmax: learned gamma")
    points = plan.candidates(method, ("gamma_lr",))
    assert [point["gamma_lr"] for point in points] == method.grid["gamma_lr"]
    assert method.grid["gamma_lr"] != plan.grid["gamma_lr"]
    assert plan.search_settings(method, "tasks")["grid"]["gamma_lr"] == method.grid["gamma_lr"]


def test_the_last_modules_alone_are_trained_and_nothing_is_replayed() -> None:
    plan = Plan.read("figure3")
    method = method_of(plan, "pretrained: stack, the last three blocks trained (ours)")
    options = {**method.options, "weights": None, "lr": 0.01, "size": None}
    learner = learners.make({**options, "replay": "none"}, 10, 0, "cpu")
    trained = {
        name.rsplit("features.", 1)[-1].split(".")[0]
        for name, weights in learner.backbone.named_parameters()
        if weights.requires_grad
    }
    assert trained == {"15", "16", "17", "18"}
    assert learner.training.replay is None


def method_of(plan: Plan, key: str) -> Method:
    return next(each for each in plan.methods if each.key == key)


def cifar_in(folder: Path, each: int = 5) -> tuple[Any, Any]:
    """Noise images in the layout of CIFAR-100, ``each`` per class."""
    (folder / "cifar-100-python").mkdir()
    labels = np.repeat(np.arange(100), each)
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), np.uint8)
    train = {b"data": pixels, b"fine_labels": labels.tolist()}
    (folder / "cifar-100-python/train").write_bytes(pickle.dumps(train, protocol=2))
    return pixels, labels


def without_times(found: Any) -> Any:
    if isinstance(found, dict):
        kept = {name: value for name, value in found.items() if name != "seconds"}
        return {name: without_times(value) for name, value in kept.items()}
    return [without_times(each) for each in found] if isinstance(found, list) else found


def test_several_processes_give_the_same_results_as_one(tmp_path: Path) -> None:
    cifar_in(tmp_path, 1)
    options: dict[str, Any] = {"data": tmp_path, "quick": True, "only": "frozen: gamma = 1"}
    found = []
    for folder, jobs in ((tmp_path / "one", 1), (tmp_path / "two", 2)):
        paper.reproduce("table1", folder, **options, jobs=jobs, say=lambda line: None)
        found.append(json.loads((folder / "table1.json").read_text()))
        assert sorted(each.name for each in folder.iterdir()) == ["table1.json", "table1.md"]
    for key in ("runs", "searches"):
        assert without_times(found[0][key]) == without_times(found[1][key])
    assert found[1]["seconds"] > 0.0


def test_parts_of_a_stopped_command_are_merged(tmp_path: Path) -> None:
    cifar_in(tmp_path, 1)
    options: dict[str, Any] = {"data": tmp_path, "quick": True}
    lines: list[str] = []
    whole, part = tmp_path / "table1.json", tmp_path / "table1.frozen.tasks.json"
    paper.reproduce(
        "table1", tmp_path, **options, only="frozen: gamma = 1, tasks", say=lines.append
    )
    whole.rename(part)
    paper.reproduce(
        "table1", tmp_path, **options, only="frozen: gamma = 0.999, tasks", say=lines.append
    )
    assert not part.exists()
    kept = json.loads(whole.read_text())
    assert [each["method"] for each in kept["runs"]] == [
        "frozen: gamma = 1",
        "frozen: gamma = 0.999",
    ]
    assert len(lines) == 4  # a search and a run each
    paper.reproduce("table1", tmp_path, **options, only="frozen: gamma = ", say=lines.append)
    assert len(lines) == 8  # the other stream
    paper.reproduce("table1", tmp_path, **options, only="frozen: learned gamma", jobs=2)
    found = json.loads(whole.read_text())
    assert {(each["method"], each["stream"]) for each in found["runs"]} == {
        (f"frozen: {name}", stream)
        for name in ("gamma = 1", "gamma = 0.999", "learned gamma")
        for stream in ("stationary", "tasks")
    }


def test_a_search_follows_its_plan(tmp_path: Path) -> None:
    cifar_in(tmp_path, 1)
    options: dict[str, Any] = {"data": tmp_path, "quick": True, "only": "frozen: gamma = 1, tasks"}
    lines: list[str] = []
    paper.reproduce("table1", tmp_path, **options, say=lines.append)
    paper.reproduce("table1", tmp_path, **options, say=lines.append)
    assert len(lines) == 2
    path = tmp_path / "table1.json"
    content = json.loads(path.read_text())
    content["searches"][0]["how"]["options"]["calibration"] = 1.0
    content["runs"][0]["options"]["calibration"] = 1.0
    path.write_text(json.dumps(content))
    paper.reproduce("table1", tmp_path, **options, say=lines.append)
    assert len(lines) == 4
    again = json.loads(path.read_text())
    assert len(again["searches"]) == len(again["runs"]) == 1
    assert again["runs"][0]["options"]["calibration"] == 10.0
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InvalidInput, match=r"is damaged .*; move it away"):
        paper.reproduce("table1", tmp_path, **options, say=lines.append)
    path.write_text(json.dumps({**again, "experiment": "figure6"}))
    with pytest.raises(InvalidInput, match="is not a result file of table1"):
        paper.shown("figure2", tmp_path)


def test_samples_do_not_depend_on_what_ran_before() -> None:
    plan = Plan.read("ablations").quick()
    data = images.Images.synthetic(60, "cpu")
    method = next(each for each in plan.methods if each.name == "S = 1")
    options = {key: value for key, value in method.options.items() if key != "use"}
    setup = plan.setup(replace(method, options=options), "tasks", 0)
    setup = setup.having(lr=0.1, beta=0.1, gamma=0.99, gamma_lr=0.1)
    found = []
    for _ in range(2):
        race = Race([setup], data, "cpu", window=20)
        race.advance(60)
        found.append(race.passes[0].log_prob)
    assert found[0] == found[1]


def test_streams_do_not_depend_on_how_rows_are_stored(tmp_path: Path) -> None:
    pixels, labels = cifar_in(tmp_path)
    order = np.random.default_rng(1).permutation(len(labels))
    (tmp_path / "other/cifar-100-python").mkdir(parents=True)
    train = {b"data": pixels[order], b"fine_labels": labels[order].tolist()}
    (tmp_path / "other/cifar-100-python/train").write_bytes(pickle.dumps(train, protocol=2))
    one, two = (images.Images.cifar100(tmp_path / each, "cpu") for each in (".", "other"))
    assert one.fingerprint == two.fingerprint
    torch.testing.assert_close(one.chunk("tasks", 3, 40, 10), two.chunk("tasks", 3, 40, 10))


def test_a_quick_run_has_images_of_all_classes(tmp_path: Path) -> None:
    pixels, labels = cifar_in(tmp_path)
    some = images.Images.cifar100(tmp_path, "cpu", 200)
    assert np.bincount(some.classes).tolist() == [2] * 100
    everything = images.Images.cifar100(tmp_path, "cpu")
    assert everything.n_rows == 500
    rows, found = everything.chunk("tasks", 0, 40, 10)
    assert rows.shape == (10, 3, 32, 32)
    boundaries = everything.rows("tasks", 0)[1]
    assert boundaries == tuple(range(0, 500, 50))
    shown = (rows[0].permute(1, 2, 0) * everything.std + everything.mean) * 255.0
    stored = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    (place,) = np.flatnonzero(np.abs(stored - shown.numpy()).max((1, 2, 3)) < 1e-2)
    assert int(found[0]) == labels[place]


def test_the_stand_in_drifts_gradually() -> None:
    labels = np.repeat(np.arange(20), 300)
    order = images.drifting(labels, 0)
    assert sorted(order.tolist()) == list(range(6000))
    shares = np.array([np.bincount(part, minlength=20) for part in np.split(labels[order], 20)])
    near = np.abs(shares[1:] - shares[:-1]).mean()
    far = np.abs(shares[10:] - shares[:-10]).mean()
    assert far > 1.5 * near
    assert shares.max() > 3 * shares.mean()
    gains = np.array([images.appearance(t, 0)[0] for t in np.linspace(0, 1, 50)])
    assert gains.min() < 0.8
    assert gains.max() > 1.2
    assert np.abs(np.diff(gains, axis=0)).max() < 0.15


def test_cloc_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "release/dataset/images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=40)
    lists = {"labels": labels.tolist(), "time": list(range(40)), "userID": [0] * 40}
    lists["store_loc"] = [f"{k}.png\n" for k in range(40)]
    for name, values in lists.items():
        torch.save(values, tmp_path / f"release/train_{name}.torchSave")
    for k, label in enumerate(labels):
        if k != 7:  # one is missing
            pixels = rng.integers(0, 60, (40, 40, 3)) + 80 * (np.arange(3) == label)
            path = tmp_path / f"release/dataset/images/{k}.png"
            image.fromarray(pixels.astype(np.uint8)).save(path)
    photographs = images.Photographs(tmp_path, "cpu", size=32)
    expected = np.delete(labels, 7)
    for start in (0, 10, 20, 0, 30):
        rows, found = photographs.chunk("time", 0, start, 10)
        assert found.tolist() == expected[start : start + 10].tolist()
        assert rows.shape == (len(found), 3, 32, 32)
    _, before = photographs.chunk("time", 0, 0, 10)
    _, second = photographs.reader(10)(1)
    _, after = photographs.chunk("time", 0, 10, 10)  # reading again does not disturb the stream
    assert second.tolist() == after.tolist() != before.tolist()
    plan = Plan.read("cloc").quick()
    setups = [plan.setup(m, "cloc", 0).having(lr=0.01) for m in plan.methods[:4]]
    race = Race([replace(each, chunk=10) for each in setups], photographs, "cpu", window=20)
    race.advance(photographs.n_rows)
    assert [each.rows for each in race.passes] == [39] * 4


def test_the_page_agrees_with_the_result_files() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "paper.md").read_text(encoding="utf-8")
    tables = ("table1", "figure3", "figure5", "figure6", "figure7", "ablations", "initialisation")
    tables = (*tables, "openclass")
    for name in ("beyond", "frozen"):  # pages of their own
        table = paper.shown(name, docs / "paper").strip()
        assert table in (docs / f"paper/{name}.md").read_text(encoding="utf-8")
    for name in tables:
        assert paper.shown(name, docs / "paper").strip() in page
    for name in (*(f"figure{number}" for number in range(1, 8)), "openclass"):
        paper.shown(name, docs / "paper")
        assert f"paper/{name}.png" in page


def test_new_classes_are_measured_as_scikit_learn_does(tmp_path: Path) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    rng = np.random.default_rng(0)
    y, X = np.minimum(rng.integers(8, size=200), np.arange(200) // 15), rng.random((200, 2))
    first = np.zeros(200, bool)
    first[np.unique(y, return_index=True)[1]] = True
    for score in ("own", "doubt", "novel", "frequency"):
        options = {"learner": "kalman", "gaussian": score == "own", "score": score}
        made = openclass._measured(options, X, y, first, 0)
        new = openclass._scores(options, X, y, 0)[0]
        area = roc_auc_score(first[1:], new[1:])
        assert 1.0 - np.mean(made["above"]) == pytest.approx(area, abs=1e-4)
        p = np.clip(new[1:], 1e-15, 1.0 - 1e-15)
        if made["event"] is not None:
            assert made["event"] == pytest.approx(log_loss(first[1:], p), abs=1e-4)
    rows = rng.random((60, 3))
    np.savez(tmp_path / "mine.npz", features=rows, labels=np.arange(60) % 12)
    X, labels = openclass._rows({"table": "embeddings"}, 40, 0, tmp_path / "mine.npz")
    assert len(X) == len(labels) == 40
    assert {tuple(row) for row in X} < {tuple(row) for row in rows}
    with pytest.raises(InvalidInput, match="is not a file; give --data a file"):
        openclass._rows({"table": "embeddings"}, 40, 0, tmp_path)
