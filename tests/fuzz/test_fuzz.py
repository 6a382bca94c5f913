"""About a minute of the fuzzer with fixed seeds, and tests of the fuzzer itself."""

from pathlib import Path

import numpy as np
import pytest

from fuzz import __main__ as fuzzer
from fuzz.cases import Case, Finding, Twins
from kalstream.errors import InvalidInput

SEED = 17
# part, first case, number of cases: about ten seconds each on one core
JOBS = [
    ("classifier", 0, 60),
    ("classifier", 1000, 60),
    ("regressor", 0, 60),
    ("adapter", 0, 100),
    ("checkpoints", 0, 500),
    ("folders", 0, 90),
    ("core", 0, 1),
]


@pytest.mark.parametrize(("part", "first", "count"), JOBS)
def test_no_findings(part: str, first: int, count: int) -> None:
    findings = fuzzer.run_cases(part, SEED, first, count)
    assert not findings, f"{len(findings)} findings:\n\n" + "\n\n".join(findings[:5])


# ---- the fuzzer itself --------------------------------------------------------------------


class Counter:
    """A model of one number, with faults that the twins must find."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        if number < 0:
            raise InvalidInput("number is below 0; give one above")
        self.total += number
        return self.total

    def add_then_check(self, number: int) -> None:
        self.total += number
        if number < 0:
            raise InvalidInput("number is below 0; give one above")

    def impure_predict(self) -> None:
        self.total += 1

    def crash(self, number: int) -> None:
        raise KeyError(number)


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    return Twins(Case(0, "", 0, tmp_path), Counter, lambda m: m.total, lambda m: True)


def test_twins_accept_good_calls_and_refuse_bad_ones(twins: Twins) -> None:
    assert twins.good("add", 3) == (3, None)
    assert not twins.bad("add", -1, why="negative")
    assert twins.bad("add", 2, why="may be accepted", must=False)
    assert (twins.steady.total, twins.tested.total) == (5, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.bad("add", 1, why="odd"), r"add\(1\) is bad \(odd\), and was accepted"),
        (lambda t: t.bad("add_then_check", -1, why="x"), "twins save different bytes"),
        (lambda t: t.bad("crash", 1, why="x"), "not an error of kalstream: KeyError: 1"),
        (
            lambda t: t.alone("impure_predict"),
            "impure_predict, which only predicts, the models differ",
        ),
        (lambda t: t.good("add", -1), r"add\(-1\) is a good call: InvalidInput: number is"),
    ],
)
def test_twins_report_faults(twins: Twins, call, message: str) -> None:
    with pytest.raises(Finding, match=message):
        call(twins)


def test_a_crash_and_a_hang_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "__main__.py"
    script.write_text(
        "import os, sys, time\n"
        "first, end, folder = int(sys.argv[4]), int(sys.argv[5]), sys.argv[7]\n"
        "log = open(folder + '/log', 'w')\n"
        "for case in range(first, end):\n"
        "    print('CASE', case, file=log)\n"
        "    print('call', case, file=log, flush=True)\n"
        "    if case == 1: os.abort()\n"
        "    if case == 3: time.sleep(60)\n"
    )
    monkeypatch.setattr(fuzzer, "HERE", tmp_path)
    monkeypatch.setattr(fuzzer, "HANG", 1.0)
    crash, hang = fuzzer.run_cases("classifier", 5, 0, 6)
    assert crash.startswith("classifier, seed 5, case 1: the process ended with -6")
    assert hang.startswith("classifier, seed 5, case 3: hangs: no answer for 1 s")
    assert "--part classifier --seed 5 --case 3" in hang
    assert hang.endswith("call 3")


def test_a_case_depends_only_on_seed_part_and_number(tmp_path: Path) -> None:
    def draw(seed: int, part: str, number: int) -> float:
        return float(Case(seed, part, number, tmp_path).rng.random())

    assert draw(1, "core", 2) == draw(1, "core", 2)
    assert len({draw(1, "core", 2), draw(2, "core", 2), draw(1, "api", 2), draw(1, "core", 3)}) == 4
    assert np.isfinite(draw(0, "", 0))
