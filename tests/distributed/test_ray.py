"""Keys on Ray: the same bits as in one process, also if workers or machines are lost."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distributed.test_crew import CLASSES, NUMBERS, passed, same
from estimators.test_keyed import BASE
from kalstream import KalmanRegressor, KeyedClassifier, KeyedRegressor
from kalstream.distributed import Keyed
from kalstream.errors import InvalidInput, MissingExtra

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ray.init(
            num_cpus=2,
            object_store_memory=200_000_000,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield made
        ray.shutdown()


def workers(model: Any) -> list[Any]:
    """The actors of a model's keys."""
    return [shard._worker for shard in model._model.state.records._crew._shards]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("model", "data"),
    [
        (KeyedClassifier(BASE), CLASSES),
        (KeyedRegressor(KalmanRegressor(random_state=0)), NUMBERS),
    ],
)
def test_ray_gives_the_bits_of_one_process(model: Any, data: Any) -> None:
    with Keyed(model, shards=2) as spread:
        alone, queries = model.spread(None), (data[0][:50], data[2][:50])
        same(passed(spread, data, [1, 50, 333]), passed(alone, data, [1, 50, 333]))
        same([spread.predict(*queries)], [alone.predict(*queries)])
        back = spread.model.spread(None)
    same([back.predict(*queries)], [alone.predict(*queries)])


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_workers_lose_nothing(kills: int, tmp_path: Path) -> None:
    sizes, rng = [10], np.random.default_rng(0)
    expected = passed(KeyedClassifier(BASE), CLASSES, sizes)
    at = {*rng.choice(np.arange(1, 69), kills, replace=False).tolist()}
    with Keyed(KeyedClassifier(BASE), shards=2, folder=str(tmp_path), every=100) as spread:
        made = []
        for i in range(70):
            if i in at:
                victim = workers(spread)[int(rng.integers(2))]
                os.kill(ray.get(victim.process.remote()), signal.SIGKILL)
            rows = (part[10 * i : 10 * i + 10] for part in CLASSES)
            made.append(spread.predict_then_learn(*rows))
    same(made, expected)


@pytest.mark.usefixtures("cluster")
def test_a_stream_of_frames_and_one_of_ray_data() -> None:
    X, y, keys = (part[:300] for part in CLASSES)
    table = pa.table({**{f"x{j}": X[:, j] for j in range(3)}, "y": y, "shop": keys})
    expected = KeyedClassifier(BASE)
    parts = [table.slice(i, 100) for i in range(0, 300, 100)]
    with Keyed(KeyedClassifier(BASE)) as spread:
        made = list(spread.run(parts, key="shop", target="y"))
        same(
            made,
            [
                expected.predict_then_learn(
                    p.select(["x0", "x1", "x2"]), p["y"].to_pylist(), p["shop"].to_pylist()
                )
                for p in parts
            ],
        )
    dataset = ray.data.from_arrow(table)
    with Keyed(KeyedClassifier(BASE)) as spread:
        same(list(spread.run(dataset, key="shop", target="y", batch_size=100)), made)
        with pytest.raises(InvalidInput, match="no column 'store'"):
            next(spread.run(parts, key="store", target="y"))
    with pytest.raises(InvalidInput, match="closed"):
        spread.predict(X, keys)


@pytest.mark.usefixtures("cluster")
def test_the_code_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/distributed.md").read_text(encoding="utf-8")
    X, y, shop = CLASSES
    exec(page.split("```python\n")[1].split("```")[0], {"X": X, "y": y, "shop": shop})
    assert KeyedClassifier.load(tmp_path / "model.safetensors").n_seen_ == len(y)


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'kalstream\[ray\]'"):
        Keyed().partial_fit([[1.0]], ["a"], ["k"])


@pytest.mark.slow
def test_no_cluster_at_the_address() -> None:
    code = (
        "from kalstream.distributed import Keyed;"
        "Keyed(address='127.0.0.1:1').fit([[1.0]], ['a'], ['k'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert "KalstreamError: no Ray cluster could be reached at '127.0.0.1:1'" in last
    assert "ray start --head" in last


@pytest.mark.slow
def test_a_machine_that_is_lost_loses_nothing(tmp_path: Path) -> None:
    """A cluster of three machines on this one, of which two are lost in turn."""
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import ray
from ray.cluster_utils import Cluster
from distributed.test_crew import BASE, CLASSES, passed, same
from kalstream import KeyedClassifier
from kalstream.distributed import Keyed

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
small = {{"num_cpus": 1, "object_store_memory": 100_000_000}}
nodes = [cluster.add_node(**small) for _ in range(3)]
ray.init(address=cluster.address, log_to_driver=False)
first, last = ([part[at] for part in CLASSES] for at in (slice(400), slice(400, 700)))
alone = KeyedClassifier(BASE)
with Keyed(KeyedClassifier(BASE), shards=2, folder={str(tmp_path)!r}, every=150) as model:
    same(passed(model, first, [20]), passed(alone, first, [20]))
    for node, part in zip(nodes[:2], (slice(150), slice(150, 300))):
        cluster.remove_node(node)
        cluster.add_node(**small)
        rows = [each[part] for each in last]
        same(passed(model, rows, [20]), passed(alone, rows, [20]))
ray.shutdown()
cluster.shutdown()
print("the same")
"""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    printed = tmp_path / "printed"
    with printed.open("wb") as file:  # processes of Ray would keep a pipe open
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, env=environment)
    assert printed.read_text().endswith("the same\n"), printed.read_text()[-3000:]
