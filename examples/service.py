"""A service in this process: its client predicts rows by name, and their labels come later.

The rows are scikit-learn's breast cancer data: 30 numbers of each sample, malignant or benign. The
client asks the service to predict each row. Twenty rows later the true label is known, and the
client sends it. Then the service stops and starts again from its folder. It knows all it learned.

`kalstream serve` starts the same service on a port; the client then needs only its address. The
example prints the service's scores, and what it predicts before and after the new start. It needs
the extra `serve`.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sklearn.datasets import load_breast_cancer
from starlette.testclient import TestClient

from kalstream.client import Client
from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service

LATER = 20


@contextmanager
def serving(folder: Path):
    """A client of a service in a folder, without a network."""
    service = Service(folder)
    service.start()
    service.begin("default", Options(features="scaled"))
    try:
        yield Client("http://localhost", http=TestClient(make_app(service)))
    finally:
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400)
    options = parser.parse_args()

    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in data.data[: options.rows]]
    labels = [str(data.target_names[label]) for label in data.target[: options.rows]]
    with TemporaryDirectory() as folder:
        with serving(Path(folder)) as client:
            for number, row in enumerate(rows):
                client.predict(row, id=number)
                if number >= LATER:
                    client.label(number - LATER, labels[number - LATER])
            metrics = client.metrics()
            before = client.predict(rows[-1])["probabilities"]
        with serving(Path(folder)) as client:
            after = client.predict(rows[-1])["probabilities"]
    print(f"{metrics['scored']} rows scored, {metrics['waiting']['waiting']} wait for their labels")
    for name, scores in {"service": metrics["total"], **metrics["baselines"]}.items():
        print(f"{name:10} accuracy {scores['accuracy']:.3f}, log-loss {scores['log_loss']:.3f}")
    print("malignant, before the new start:", round(before["malignant"], 6))
    print("malignant, after it:            ", round(after["malignant"], 6))


if __name__ == "__main__":
    main()
