"""Model and encoder of an opened run change together, also for other threads."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream import KalmanClassifier
from kalstream.errors import InvalidInput
from kalstream.runs import Options, Run, RunModel, open_run

KNOWN = [{"color": "red", "x": 1.0, "y": "yes"}, {"color": "blue", "x": 2.0, "y": "no"}]

MANY = "".join(f"color{k},1,yes\n" for k in range(20))  # a column of more categories has more slots


@pytest.fixture
def run(tmp_path: Path) -> RunModel:
    data = tmp_path / "data.csv"
    data.write_text("color,x,y\n" + "red,1,yes\nblue,2,no\n" * 20 + MANY)
    options = Options(source=str(data), target="y", features="raw", forgetting="0.99")
    Run(tmp_path / "run", options).go()
    return open_run(tmp_path / "run")


def knows(run: RunModel, color: str) -> bool:
    known, unknown = run.encode([{"color": each, "x": 1.0} for each in (color, "no color")])
    return bool((known != unknown).any())


def test_readers_see_the_old_pair_until_both_are_ready(
    run: RunModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, seen = KalmanClassifier.partial_fit, []

    def spied(model: Any, *args: Any, **more: Any) -> Any:
        made = learn(model, *args, **more)
        seen.append((run.model.n_seen_, knows(run, "green")))  # as another thread would
        return made

    monkeypatch.setattr(KalmanClassifier, "partial_fit", spied)
    run.partial_fit([{"color": "green", "x": 3.0, "y": "maybe"}])
    assert seen == [(60, False)]
    assert (run.model.n_seen_, knows(run, "green")) == (61, True)
    assert "maybe" in run.classes_


def test_an_error_leaves_the_old_pair(run: RunModel) -> None:
    before = run.model, run.encoder
    with pytest.raises(InvalidInput, match="column 'x'"):
        run.partial_fit([{"color": "green", "x": "no number", "y": "yes"}])
    assert (run.model, run.encoder) == before


def test_threads_learn_and_predict_at_the_same_time(run: RunModel) -> None:
    """Each of two writers teaches its own new colors; a reader sees colors only once learned."""
    wrong: list[str] = []
    done = threading.Event()

    def write(who: str) -> None:
        for k in range(2):
            run.partial_fit([{"color": f"{who}{k}", "x": 1.0, "y": "yes"}, *KNOWN])

    def read() -> None:
        while not done.is_set():
            model, encoder = run._current
            assert encoder is not None
            n_new = len(encoder.features[0].slots) - 22
            if not wrong and model.n_seen_ != 60 + 3 * n_new:
                wrong.append(f"{n_new} new colors with a model of {model.n_seen_} rows")
            run.predict_proba(KNOWN)

    writers = [threading.Thread(target=write, args=(who,)) for who in "ab"]
    reader = threading.Thread(target=read)
    for each in (reader, *writers):
        each.start()
    for each in writers:
        each.join()
    done.set()
    reader.join()
    assert not wrong
    assert run.model.n_seen_ == 60 + 2 * 2 * 3  # no call was lost
    assert all(knows(run, f"{who}{k}") for who in "ab" for k in range(2))
    np.testing.assert_allclose(run.predict_proba(KNOWN).sum(axis=1), 1.0)
