"""One file is enough for an expert: this one is, and knows nothing of the filters.

It counts labels by the signs of the first two columns. A linear readout of the columns cannot see
that labels depend on whether both signs agree.
"""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from river import stream as river_stream

from kalstream import KalmanClassifier
from kalstream.compat.river import KalmanClassifier as RiverClassifier
from kalstream.core import Expert, ExpertRows, ExpertState
from kalstream.core.tagged import TAGGED
from kalstream.errors import CheckpointError, InvalidInput

Array = NDArray[Any]


@dataclass(frozen=True)
class TableState(ExpertState):
    tag: ClassVar[str] = "test.TableState"

    counts: Array  # (4, K), of labels by the signs

    @property
    def n_classes(self) -> int:
        return self.counts.shape[1]

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes

    def add_classes(self, n_classes: int) -> "TableState":
        return TableState(np.pad(self.counts, ((0, 0), (0, n_classes - self.n_classes))))

    def keep_classes(self, columns: Array) -> "TableState":
        return TableState(self.counts[:, columns])

    def add_columns(self, n_columns: int) -> "TableState":
        return self


@dataclass(frozen=True)
class SignTable(Expert):
    tag: ClassVar[str] = "test.SignTable"
    name: ClassVar[str] = "signs"
    state_type: ClassVar[type] = TableState

    half_life: float = 300.0

    def start(self, n_columns: int, n_classes: int) -> TableState:
        return TableState(np.zeros((4, n_classes)))

    def advance(self, state: TableState, rows: ExpertRows) -> tuple[TableState, Array]:
        counts, out = state.counts.copy(), np.empty((len(rows), state.n_classes))
        cells = (rows.columns[:, :2] > 0.0) @ [1, 2]
        for i, (cell, label) in enumerate(zip(cells, rows.labels, strict=True)):
            out[i] = np.log((counts[cell] + 0.5) / (counts[cell] + 0.5).sum())
            if label >= 0:
                counts *= 0.5 ** (rows.gap[i] / self.half_life)
                counts[cell, label] += rows.weight[i]
        return TableState(counts), out


def stream(n: int = 1200) -> tuple[Array, Array]:
    X = np.random.default_rng(0).standard_normal((n, 3))
    return X, np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")


def model(**settings: Any) -> KalmanClassifier:
    return KalmanClassifier(features="scaled", experts=[SignTable()], **settings)


def test_it_is_heard() -> None:
    X, y = stream()
    right, plain = {}, KalmanClassifier(features="scaled", experts=[])
    for name, each in {"with": model(), "without": plain}.items():
        p = each.predict_then_learn(X, y)
        right[name] = (each.classes_[p.argmax(axis=1)] == y)[200:].mean()
    assert right["with"] > 0.95
    assert right["without"] < 0.7


def test_any_row_is_predicted_with_it() -> None:
    X, y = stream()
    learned = model().partial_fit(X[:800], y[:800])
    assert learned.score(X[800:], y[800:]) > 0.95
    plain = KalmanClassifier(features="scaled", experts=[]).partial_fit(X[:800], y[:800])
    assert learned.nbytes_ == plain.nbytes_ + 4 * 2 * 8


def test_calls_of_any_size_are_the_same() -> None:
    X, y = stream(60)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 2.0], 60)
    labels = [None if i % 7 == 3 else str(label) for i, label in enumerate(y)]
    one, other = model().partial_fit(X[:6], y[:6]), model().partial_fit(X[:6], y[:6])
    rows = [
        one.predict_then_learn(X[i : i + 1], labels[i : i + 1], sample_weight=weights[i : i + 1])
        for i in range(60)
    ]
    whole = other.predict_then_learn(X, labels, sample_weight=weights)
    np.testing.assert_allclose(np.concatenate(rows), whole, rtol=1e-9)
    np.testing.assert_array_equal(
        one._model.targets.experts["signs"].counts, other._model.targets.experts["signs"].counts
    )


def test_late_labels_judge_it_too() -> None:
    X, y = stream(2000)
    each, late = model(), 100
    for i in range(0, 2000, 20):
        p = each.ask(X[i : i + 20], ids=list(range(i, i + 20)))
        if i >= 1000:
            right = each.classes_[p.argmax(axis=1)] == y[i : i + 20]
            assert right.mean() >= 0.8
        if i >= late:
            each.tell(range(i - late, i - late + 20), y[i - late : i - late + 20])
    assert each._model.late.beside.shape == (2,)  # class frequencies, and this one


def test_labels_in_time_by_ask_and_tell_are_those_of_predict_then_learn() -> None:
    X, y = stream(150)
    one, other = model().partial_fit(X[:6], y[:6]), model().partial_fit(X[:6], y[:6])
    for i in range(6, 150):
        p = one.ask(X[i : i + 1], ids=[i])
        one.tell([i], y[i : i + 1])
        np.testing.assert_allclose(p, other.predict_then_learn(X[i : i + 1], y[i : i + 1]))


def test_it_is_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    X, y = stream(400)
    each = model().partial_fit(X[:200], y[:200])
    each.ask(X[200:260], ids=range(200, 260))
    each.save(tmp_path / "model.safetensors")
    again = KalmanClassifier.load(tmp_path / "model.safetensors")
    assert list(again.experts) == [SignTable()]
    for one in (each, again):
        one.tell(range(200, 260), y[200:260])
        one.partial_fit(X[260:], y[260:])
    np.testing.assert_array_equal(each.predict_proba(X), again.predict_proba(X))


def test_a_file_whose_expert_is_not_imported_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = stream(20)
    model().partial_fit(X, y).save(tmp_path / "model.safetensors")
    monkeypatch.delitem(TAGGED, SignTable.tag)
    with pytest.raises(CheckpointError, match=r"import its module"):
        KalmanClassifier.load(tmp_path / "model.safetensors")


def test_classes_and_columns_come_and_go() -> None:
    X, y = stream(200)
    each = model().partial_fit(X, y).partial_fit(X[:5], ["new"] * 5)
    assert each.predict_proba(X[:2]).shape == (2, 3)
    assert each.retire_class("other").classes_.tolist() == ["new", "same"]
    each.add_columns(1)
    assert each.predict_proba(np.ones((2, 4))).shape == (2, 2)
    each.partial_fit(np.ones((1, 4)), ["same"])


def test_experts_may_be_set_to_others() -> None:
    X, y = stream(400)
    each = model().partial_fit(X[:200], y[:200])
    coef = each._model.targets.stack.coef
    each.set_params(experts=[]).partial_fit(X[200:300], y[200:300])
    stack = each._model.targets.stack
    assert (stack.experts, len(stack.coef)) == ((), len(coef) - 1)
    each.set_params(experts=[SignTable()]).partial_fit(X[300:], y[300:])
    assert each.score(X, y) > 0.9


def test_it_runs_behind_river() -> None:
    X, y = stream(400)
    adapter, right = RiverClassifier(features="scaled", experts=[SignTable()]), []
    for x, label in river_stream.iter_array(X, y):
        right.append(adapter.predict_one(x) == label)
        adapter.learn_one(x, label)
    assert np.mean(right[200:]) > 0.9


def test_it_runs_on_the_command_line(tmp_path: Path) -> None:
    X, y = stream(300)
    lines = [",".join([*map(repr, row.tolist()), label]) for row, label in zip(X, y, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    (tmp_path / "mine.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_new_expert import model\n"
    )
    made = subprocess.run(
        [
            *(sys.executable, "-m", "kalstream", "run", "s.csv", "-t", "y", "-o", "run"),
            *("--learner", "mine:model"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "PYTHONPATH": str(tmp_path)},
    )
    assert made.returncode == 0, made.stderr
    assert "0.9" in made.stdout, made.stdout


def test_what_cannot_be_heard_is_refused() -> None:
    X, y = stream(20)

    class Odd(SignTable):
        def advance(self, state: TableState, rows: ExpertRows) -> tuple[TableState, Array]:
            after, out = super().advance(state, rows)
            return after, np.where(np.arange(len(out))[:, None] == 3, np.nan, out)

    cases: list[tuple[dict[str, Any], str]] = [
        ({"experts": [Odd()]}, "'signs' gave .* for row 3"),
        ({"experts": "signs"}, "experts must be a list of Expert"),
        ({"experts": [SignTable(), SignTable(1.0)]}, "a name of its own"),
        ({"experts": [SignTable()], "forgetting": 0.9}, "forgetting=0.9 has no stack"),
        ({"experts": [SignTable()], "stacking": False}, "stacking=False has no stack"),
    ]
    for settings, message in cases:
        with pytest.raises(InvalidInput, match=message):
            KalmanClassifier(features="scaled", **settings).partial_fit(X, y)


def test_rows_told_with_time_gaps() -> None:
    X, y = stream(200)
    each = model().partial_fit(X[:100], y[:100], time=np.arange(100.0))
    before = each._model.targets.experts["signs"].counts
    each.partial_fit(X[100:101], y[100:101], time=[400.0])
    after = each._model.targets.experts["signs"].counts
    assert after.sum() == pytest.approx(before.sum() * 0.5 ** (301.0 / 300.0) + 1.0)
    assert replace(SignTable(), half_life=1.0) != SignTable()
