"""Speed on a GPU: the filter step, a fine-tuning pass, a simulated CLOC. Writes its section.

Needs a CUDA device. `--save FILE` measures and writes the numbers to a file. `--load FILE` writes
the section from such a file, and needs no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from page import table, write_section

M, K, B = 2048, 713, 128
CHUNKS = 1_000_000 // B + 1
CLOC_ROWS = 37_093_769


def milliseconds(torch: Any, do: Callable[[], Any], n: int = 50) -> float:
    """Time of one call by CUDA events, after a warm-up that captures the graphs."""
    for _ in range(80):
        do()
    started, stopped = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    started.record()
    for _ in range(n):
        do()
    stopped.record()
    torch.cuda.synchronize()
    return started.elapsed_time(stopped) / n


def filter_step(
    torch: Any, gamma_lr: float, drifting: bool, dtype: Any, likelihood: str = "onehot"
) -> float:
    """Milliseconds of `KalmanHead.observe`; if drifting, each chunk has another rule."""
    from kalstream.deep import KalmanHead

    torch.manual_seed(0)
    options = {"normalize": True, "dtype": dtype, "likelihood": likelihood}
    head = KalmanHead(M, K, gamma=0.999, gamma_lr=gamma_lr, **options).cuda()
    rule, data = torch.randn(M, K, device="cuda"), []
    for _ in range(40):
        rows = torch.randn(B, M, device="cuda")
        rule = torch.randn(M, K, device="cuda") if drifting else rule
        data.append((rows, (rows @ rule).argmax(1)))
    turn = iter(range(10**9))
    return milliseconds(torch, lambda: head.observe(*data[next(turn) % 40]))


def kalman(seed: int, replay: bool = False, **options: Any) -> Any:
    """The paper's learner: ResNet-18, a head with a learned gamma."""
    from kalstream.deep import KalmanHead, OnlineLearner, RecentMemory
    from kalstream.deep.backbones import resnet18

    head = KalmanHead(512, 100, gamma=0.999, gamma_lr=0.01, bias=True, normalize=True)
    memory = RecentMemory(seed=seed) if replay else None
    network = resnet18(stem="cifar", seed=seed)
    return OnlineLearner(network, head, lr=0.05, device="cuda", replay=memory, **options)


def from_table(seed: int, method: str) -> Any:
    """The learner of a method of table 1."""
    from kalstream.paper.learners import make
    from kalstream.paper.plan import Plan

    options = next(each.options for each in Plan.read("table1").methods if each.key == method)
    return make({"lr": 0.001, **options}, 100, seed, "cuda")


def fine_tuning(torch: Any, n: int, make: Callable[[int], Any], n_learners: int = 1) -> float:
    """Seconds per learner of a pass over 50,000 images, in chunks of 10."""
    from kalstream.deep import Fleet

    torch.backends.cudnn.benchmark = True
    fleet = Fleet([make(seed) for seed in range(n_learners)])
    torch.manual_seed(0)
    rows = torch.randn((n + 8) * 10, 3, 32, 32, device="cuda")
    labels = torch.randint(100, ((n + 8) * 10,), device="cuda")
    parts = list(zip(rows.split(10), labels.split(10), strict=True))
    for part in parts[:8]:
        fleet.step([part] * n_learners)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for part in parts[8:]:
        fleet.step([part] * n_learners)
    torch.cuda.synchronize()
    return 5000 * (time.perf_counter() - started) / n / n_learners


def simulated_cloc(torch: Any, name: str, chunks: int, **options: Any) -> dict[str, Any]:
    """Run one head on generated vectors of classes whose centres move."""
    from kalstream.deep import KalmanHead, MixtureHead

    torch.manual_seed(0)
    kind = MixtureHead if "gammas" in options else KalmanHead
    head = kind(M, K, normalize=True, **options).cuda()
    centres = torch.randn(K, M, device="cuda")
    frequencies = torch.arange(1, K + 1, device="cuda").double().reciprocal().sqrt()
    right, seconds = torch.zeros((), device="cuda"), 0.0
    early = late = memory = 0.0
    for turn in range(chunks):
        # After about 2,000 chunks (250,000 rows) the centres are independent of the first ones.
        centres.mul_(0.9995).add_(torch.randn_like(centres), alpha=(1 - 0.9995**2) ** 0.5)
        labels = torch.multinomial(frequencies, B, replacement=True)
        rows = centres[labels] + 4.0 * torch.randn(B, M, device="cuda")
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            right += (head.scores(rows).argmax(1) == labels).sum()
        head.observe(rows, labels)
        torch.cuda.synchronize()
        spent = time.perf_counter() - started
        seconds += spent if turn >= 8 else 0.0
        if turn == chunks // 10:
            early, memory = seconds, torch.cuda.memory_allocated() / 1e6
        if turn == chunks - chunks // 10 - 1:
            late = seconds
    part = chunks // 10
    return {
        "name": name,
        "gamma_at_end": head.gamma,
        "rows": chunks * B,
        "accuracy": float(right) / (chunks * B),
        "rows_per_second": (chunks - 8) * B / seconds,
        "early": part * B / early,
        "late": part * B / (seconds - late),
        "memory_early": memory,
        "memory_end": torch.cuda.memory_allocated() / 1e6,
    }


def measure() -> dict[str, Any]:
    """Measure all numbers."""
    import torch

    doubles, singles = torch.float64, torch.float32
    numbers: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "filter": {
            "fixed gamma": filter_step(torch, 0.0, False, doubles),
            "learned, one rule": filter_step(torch, 0.01, False, doubles),
            "learned, a new rule every chunk": filter_step(torch, 0.01, True, doubles),
            "learned at rate 0.1, a new rule every chunk": filter_step(torch, 0.1, True, doubles),
            "fixed gamma, float32": filter_step(torch, 0.0, False, singles),
            "learned, one rule, float32": filter_step(torch, 0.01, False, singles),
            "softmax, fixed gamma": filter_step(torch, 0.0, False, doubles, "softmax"),
            "softmax, learned, one rule": filter_step(torch, 0.01, False, doubles, "softmax"),
        },
    }
    half = partial(kalman, autocast=torch.bfloat16)
    replayed = partial(half, replay=True)
    numbers["pass"] = {
        "plain": fine_tuning(torch, 60, partial(kalman, capture=False)),
        "captured": fine_tuning(torch, 400, kalman),
        "captured, bf16": fine_tuning(torch, 400, half),
        "captured, bf16, replay": fine_tuning(torch, 400, replayed),
        "16 learners at once, bf16, each": fine_tuning(torch, 100, half, 16),
        "16 learners at once, bf16, replay, each": fine_tuning(torch, 100, replayed, 16),
    }
    # In turn, so that all see the machine in the same state.
    methods = (
        "baselines: ER++, 3 steps a chunk",
        "beyond: trained by cross-entropy",
        "beyond: the same, twice the time",
    )
    turns = [
        [fine_tuning(torch, 200, partial(from_table, method=method)) for method in methods]
        for _ in range(2)
    ]
    numbers["table1"] = dict(zip(methods, map(min, zip(*turns, strict=True)), strict=True))
    numbers["cloc"] = [
        simulated_cloc(torch, name, CHUNKS, **options)
        for name, options in {
            "1": {"gamma": 1.0},
            "0.99999": {"gamma": 0.99999},
            "0.9999": {"gamma": 0.9999},
            "1, learned at 1": {"gamma": 1.0, "gamma_lr": 1.0},
            "1, learned at 1000": {"gamma": 1.0, "gamma_lr": 1000.0},
            "a mixture of 1, 0.99999, 0.9999": {
                "gammas": (1.0, 0.99999, 0.9999),
                "calibration": 20.0,  # for K = 713, logits from 0 to 1 hardly separate the heads
            },
        }.items()
    ]
    return numbers


def write(numbers: dict[str, Any]) -> None:
    """Write the section from the numbers."""
    where = f"{numbers['device']}, torch {numbers['torch']}"
    cloc = [
        [
            run["name"],
            f"{run['accuracy']:.4f}",
            f"{run['rows_per_second']:,.0f}",
            f"{run['early']:,.0f} / {run['late']:,.0f}",
            f"{run['memory_early']:,.0f} / {run['memory_end']:,.0f}",
            f"{CLOC_ROWS / run['rows_per_second'] / 60:.0f} min",
        ]
        for run in numbers["cloc"]
    ]
    body = [
        "## Deep",
        f"`python benchmarks/deep.py` on {where}.",
        table(
            [f"`KalmanHead.observe`, m = {M}, K = {K}, b = {B}", "ms"],
            [[name, f"{value:.2f}"] for name, value in numbers["filter"].items()],
        ),
        "Targets: 0.6 ms with a fixed gamma, 1 ms with a learned one, 1 ms with the softmax and a "
        "fixed gamma.",
        table(
            ["a pass of 5,000 chunks of 10 images, ResNet-18, learned gamma", "seconds"],
            [[name, f"{value:.1f}"] for name, value in numbers["pass"].items()],
        ),
        "Random images. The time is that of 100 to 400 chunks (plain: 60), extrapolated to 5,000 "
        "chunks. Target: 20 s.",
        *_beside(numbers.get("table1", {})),
        table(
            ["simulated CLOC, gamma", "accuracy", "rows/s", "early / late", "MB early / end",
             "all 37 million"],
            cloc,
        ),
        f"{numbers['cloc'][0]['rows']:,} vectors of {M} numbers in {K} classes whose centres move. "
        f"They are generated during the run. Each chunk of {B} is predicted, then learned.",
    ]  # fmt: skip
    write_section("deep", "\n\n".join(body))


def _beside(seconds: dict[str, float]) -> list[str]:
    """Times of ER++ and of the stack in table 1, if they were measured."""
    if not seconds:
        return []
    first, *others = seconds.values()
    ratios = " and ".join(f"{other / first:.2f}" for other in others)
    rows = [[name, f"{value:.1f}"] for name, value in seconds.items()]
    return [
        table(["a pass of table 1, bf16, alone", "seconds"], rows),
        f"The faster of two turns. The ratios to the first are {ratios}; the target of the second "
        "line is 1.5.",
    ]


def main() -> None:
    """Measure, write the section, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--load", type=Path, metavar="FILE")
    options = parser.parse_args()
    numbers = json.loads(options.load.read_text()) if options.load else measure()
    if options.save:
        options.save.write_text(json.dumps(numbers, indent=1))
    else:
        write(numbers)


if __name__ == "__main__":
    main()
