"""The writer of checkpoints saves whatever follows its protocol."""

from pathlib import Path
from typing import Any

from kalstream import KalmanClassifier
from kalstream.evaluate import Evaluation
from kalstream.runs.checkpoint import CheckpointWriter
from kalstream.streams import PushedRows

CONFIG = {
    "run": "0" * 32,
    "stream": {"name": "pushed", "task": "classification", "fingerprint": None},
}


class Counter:
    """All that a checkpoint is made of, without the loop of an `Evaluation`."""

    def __init__(self) -> None:
        self.learner, self.stream = KalmanClassifier(features="raw"), PushedRows()
        self.n_rows = self.n_learned = 0
        self.is_fitted = False

    def state(self) -> dict[str, Any]:
        empty = Evaluation(KalmanClassifier(), self.stream).state()
        return {**empty, "n_rows": self.n_rows, "n_learned": self.n_learned}

    def learn(self) -> None:
        self.learner.partial_fit([[1.0], [-1.0]], ["a", "b"])
        self.n_rows, self.n_learned, self.is_fitted = self.n_rows + 2, self.n_learned + 2, True


def test_a_minimal_object_is_saved(tmp_path: Path) -> None:
    source = Counter()
    writer = CheckpointWriter(tmp_path, CONFIG, source, every=1e9)
    sizes = {"metrics.jsonl": 0, "predictions.jsonl": 0}
    writer.save(sizes)
    assert list(tmp_path.iterdir()) == []  # nothing was learned
    for n in (2, 4):
        source.learn()
        writer.save(sizes)
        assert writer.progress is not None
        assert writer.progress["evaluation"]["n_rows"] == n
        assert [path.name for path in tmp_path.glob("model-*")] == [f"model-{n}.safetensors"]
    source.learn()
    writer.save_result()  # beside the state to resume from
    assert writer.progress["evaluation"]["n_rows"] == 4
    assert len(list(tmp_path.glob("model-*"))) == 2
    writer.remove()
    assert list(tmp_path.iterdir()) == []


def test_how_often_a_checkpoint_is_due(tmp_path: Path) -> None:
    source = Counter()
    assert CheckpointWriter(tmp_path, CONFIG, source, every=0.0).is_due
    assert not CheckpointWriter(tmp_path, CONFIG, source, every=1e9).is_due
