"""The paired test holds its level when windows go together, and finds what is there."""

import numpy as np
import pytest

from kalstream.errors import InvalidInput
from kalstream.evaluate import paired_test


def lines(values, n=100):
    return [
        {"row": (i + 1) * n, "n": n, "window": {"log_loss": float(v), "ece": None}}
        for i, v in enumerate(values)
    ]


def test_no_difference() -> None:
    same = lines(np.arange(10.0))
    assert paired_test(same, same, "log_loss").p_value == 1.0
    shifted = paired_test(lines(np.arange(10.0) + 1.0), same, "log_loss")
    assert (shifted.difference, shifted.p_value) == (1.0, 0.0)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_level_under_no_difference(memory: float) -> None:
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        noise = rng.standard_normal(220)
        for i in range(1, len(noise)):
            noise[i] += memory * noise[i - 1]
        rejected += paired_test(lines(noise[20:]), lines(np.zeros(200)), "log_loss").p_value < 0.05
    assert rejected / 400 < 0.12  # Newey and West's standard error has 0.24 at memory 0.8


def test_power_and_sign() -> None:
    rng = np.random.default_rng(0)
    hard = rng.standard_normal(100)  # what both share cancels
    better = paired_test(
        lines(hard + 0.1 * rng.standard_normal(100)), lines(hard + 0.2), "log_loss"
    )
    assert better.difference < 0.0
    assert better.p_value < 1e-6
    assert better.n == 100


def test_windows_count_by_their_rows() -> None:
    one, two = lines([1.0, 2.0, 3.0]), lines([0.0, 0.0, 0.0])
    one[2]["n"] = two[2]["n"] = 10
    assert paired_test(one, two, "log_loss").difference == pytest.approx((100 + 200 + 30) / 210)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(InvalidInput, match="same rows in the same windows"):
        paired_test(lines([1.0, 2.0]), lines([1.0]), "log_loss")
    with pytest.raises(InvalidInput, match="'ece' is defined in 0 windows"):
        paired_test(lines([1.0, 2.0]), lines([1.0, 2.0]), "ece")
