"""Small models by key against their plain version, and what they must do."""

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kalstream.core.keyed import Keyed, KeyedState, KeyedValues
from kalstream.core.keyed_reference import Plain, PlainValues
from kalstream.core.records import Records
from kalstream.errors import InvalidInput, NumericalError

Array = NDArray[Any]
Rows = tuple[list[Any], Array, Array, Array, Array]


def rows(n: int, m: int = 4, k: int = 3, seed: int = 0, n_keys: int = 5) -> Rows:
    """Rows of keys that differ; the last class comes late, and some labels are missing."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(n_keys, size=n)
    phi = np.column_stack([np.ones(n), rng.standard_normal((n, m - 1)) / math.sqrt(m - 1)])
    logits = 2.0 * np.einsum("nm,nmk->nk", phi, rng.standard_normal((n_keys, m, k))[keys])
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    labels[: n // 2] %= k - 1
    offsets = rng.standard_normal((n, k))
    offsets[: n // 2, -1] = -np.inf
    offsets[:2] = -np.inf
    offsets -= np.log(np.maximum(np.exp(offsets).sum(axis=1, keepdims=True), 1e-9))
    labels[rng.random(n) < 0.1] = -1
    weight = rng.choice([0.0, 0.5, 1.0, 1.0, 1.0, 3.0], size=n)
    return keys.tolist(), phi, offsets, labels, weight


def value_rows(n: int, m: int = 4, seed: int = 0, n_keys: int = 5) -> Rows:
    """Rows of keys that differ, with numbers; at first nothing is known, and some are missing."""
    keys, phi, _, labels, weight = rows(n, m, 3, seed, n_keys) if m > 1 else ones(n, 3, seed)
    rng = np.random.default_rng(seed)
    added = np.einsum("nm,nm->n", phi, 3.0 * rng.standard_normal((n_keys, m))[keys])
    offsets = np.column_stack([rng.standard_normal(n), np.exp(rng.standard_normal(n))])
    values = offsets[:, 0] + added + rng.standard_normal(n)
    values[labels == -1] = math.nan
    values[n // 2] += 30.0
    offsets[:2] = math.nan, math.inf
    return keys, phi, offsets, values, weight


def same(one: KeyedState, other: KeyedState, rtol: float = 0.0) -> None:
    assert one.n_rows == other.n_rows
    for mine, others in ((one.used, other.used), (one.heard, other.heard)):
        np.testing.assert_allclose(mine.weights, others.weights, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(mine.level, others.level, rtol=rtol, atol=rtol)
    records, others_records = one.records.to_dict(), other.records.to_dict()
    assert set(records) == set(others_records)
    for key, record in records.items():
        mine, others = np.frombuffer(record), np.frombuffer(others_records[key])
        np.testing.assert_allclose(mine, others, rtol=rtol, atol=rtol)


variances = st.floats(1e-3, 30.0)
filters = st.lists(
    st.tuples(variances, variances | st.just(0.0), st.floats(2.0, 200.0) | st.just(math.inf)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(
    filters,
    st.floats(0.0, 0.5),
    st.floats(0.0, 0.1),
    st.floats(0.9, 1.0),
    st.integers(1, 50),
    st.integers(1, 6),
    st.integers(2, 5),
    st.integers(0, 2**31),
)
def test_it_equals_the_plain_version(
    bank: Any, own: float, share: float, keep: float, every: int, m: int, k: int, seed: int
) -> None:
    keyed = Keyed(m, tuple(bank), own, share, keep, every)
    keys, phi, offsets, labels, weight = data = rows(60, m, k, seed) if m > 1 else ones(60, k, seed)
    plain, state = Plain(keyed, k), keyed.start()
    expected = np.array([plain.step(*row)[0] for row in zip(*data, strict=True)])
    state, out = keyed.advance(state, keys, phi, offsets, labels, weight)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(state.heard.weights, plain.pooled, rtol=1e-9, atol=1e-9)
    assert set(state.records.to_dict()) == set(plain.filters)


@settings(max_examples=25, deadline=None)
@given(
    filters,
    st.floats(0.0, 0.5),
    st.floats(1e-6, 0.1),
    st.floats(0.9, 1.0),
    st.integers(1, 50),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_numbers_equal_the_plain_version(
    bank: Any, own: float, share: float, keep: float, every: int, m: int, seed: int
) -> None:
    keyed = KeyedValues(m, tuple(bank), own, share, keep, every)
    data = value_rows(60, m, seed)
    plain = PlainValues(keyed)
    expected = np.array([plain.step(*row)[0] for row in zip(*data, strict=True)])
    state, out = keyed.advance(keyed.start(), *data)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(state.heard.weights, plain.pooled, rtol=1e-9, atol=1e-9)
    records = state.records.to_dict()
    assert set(records) == set(plain.filters)
    for key, each in plain.filters.items():
        means = np.concatenate([mean[:, 0] for mean, _ in each])
        np.testing.assert_allclose(
            np.frombuffer(records[key])[-len(means) :], means, rtol=1e-9, atol=1e-9
        )


def ones(n: int, k: int, seed: int) -> Rows:
    keys, phi, *rest = rows(n, 2, k, seed)
    return keys, phi[:, :1].copy(), *rest  # type: ignore[return-value]


NUMBERS = KeyedValues(4), value_rows(200)


@pytest.mark.parametrize("size", [1, 7, 63])
@pytest.mark.parametrize(("keyed", "data"), [(Keyed(4), rows(200)), NUMBERS])
def test_batches_equal_rows_one_by_one(keyed: Keyed, data: Rows, size: int) -> None:
    whole, expected = keyed.advance(keyed.start(), *data)
    state, parts = keyed.start(), []
    for i in range(0, 200, size):
        state, out = keyed.advance(state, *(part[i : i + size] for part in data))
        parts.append(out)
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    same(state, whole)


def test_keys_hear_of_each_other_at_meetings() -> None:
    keyed = Keyed(4, every=30)
    assert [keyed.meets(n) for n in (0, 1, 2, 15, 16, 29, 30, 59)] == [1, 2, 4, 16, 30, 30, 60, 60]
    data = rows(100)
    state, _ = keyed.advance(keyed.start(), *(part[:70] for part in data))
    more, _ = keyed.advance(state, *(part[70:80] for part in data))
    assert more.used is state.used
    assert (more.heard.weights != state.heard.weights).any()
    more, _ = keyed.advance(state, *(part[70:90] for part in data))
    assert more.used is more.heard


def test_other_keys_change_nothing_but_the_prior_of_hypotheses() -> None:
    """With hypotheses that are fixed beforehand, a key is a lone small model."""
    keys, *data = rows(200)
    keyed = Keyed(4, own=1.0)
    _, together = keyed.advance(keyed.start(), keys, *data)
    mine = np.array(keys) == 3
    _, alone = keyed.advance(keyed.start(), ["me"] * mine.sum(), *(part[mine] for part in data))
    np.testing.assert_array_equal(together[mine], alone)


def test_the_numbers_of_a_key_are_those_of_a_lone_filter_with_the_same_offset() -> None:
    """The textbook's equations, for one filter that forgets."""
    keys, phi, offsets, values, _ = value_rows(300)
    offsets[:, 1] = 2.0
    keyed, ones = KeyedValues(4, ((2.0, 0.5, 30.0),), own=1.0, keep=0.0), np.ones(300)
    state, _ = keyed.advance(keyed.start(), keys, phi, offsets, values, ones)
    gamma, prior = 0.5 ** (1.0 / 30.0), np.diag([2.0, 0.5, 0.5, 0.5])
    for key, record in state.records.to_dict().items():
        mean, cov = np.zeros(4), prior
        for i in np.flatnonzero(np.array(keys) == key):
            residual = values[i] - offsets[i, 0]
            if np.isnan(residual):
                continue
            mean, cov = gamma * mean, gamma**2 * cov + (1.0 - gamma**2) * prior
            gain = cov @ phi[i] / (phi[i] @ cov @ phi[i] + 1.0)
            mean = mean + gain * (residual - phi[i] @ mean)
            cov = cov - np.outer(gain, phi[i] @ cov)
        np.testing.assert_allclose(np.frombuffer(record)[-4:], mean, rtol=1e-10, atol=1e-10)


def test_an_uncertain_base_teaches_a_key_less() -> None:
    """A row of which the base knows four times less, as a variance, counts a quarter."""
    keys, phi, offsets, values, _ = value_rows(100)
    offsets[:, 1] = 1.0
    state, _ = NUMBERS[0].advance(NUMBERS[0].start(), keys, phi, offsets, values, np.ones(100))
    one, far = phi[-1:], offsets[-1:] * [1.0, 2.0]
    new = [["new"], one, offsets[-1:], values[-1:]]
    light, _ = NUMBERS[0].advance(state, *new, np.full(1, 0.25))
    new[2] = far
    unsure, _ = NUMBERS[0].advance(state, *new, np.ones(1))
    light_record, unsure_record = (
        np.frombuffer(s.records.to_dict()["new"]) for s in (light, unsure)
    )
    began = 2 + len(NUMBERS[0].filters)
    np.testing.assert_allclose(light_record[began:], unsure_record[began:], rtol=1e-12)


def test_one_outlier_is_not_what_a_key_remembers() -> None:
    """It moves no hypothesis by more than a factor of 100 below the base."""
    keyed, (keys, phi, offsets, values, _) = NUMBERS[0], value_rows(400, n_keys=1)
    offsets[:, 1], last = 5.0, slice(399, 400)
    values[last] = offsets[last, 0] + 1e4
    data = phi, offsets, values, np.ones(400)
    before, _ = keyed.advance(keyed.start(), keys[:399], *(part[:399] for part in data))
    after, _ = keyed.advance(before, keys[last], *(part[last] for part in data))
    one, other = (np.frombuffer(state.records.to_dict()[0])[1:9] for state in (before, after))
    moved = (other - other[0]) - keyed.keep * (one - one[0])
    assert -4.7 < moved.min() < -4.5


def test_the_first_number_of_a_key_is_as_the_offset_says() -> None:
    keyed, data = NUMBERS
    state, _ = keyed.advance(keyed.start(), *data)
    new = keyed.predict(state, list(range(100, 300)), data[1], data[2])
    np.testing.assert_allclose(new, data[2], rtol=1e-12)


def test_the_first_row_of_a_key_is_the_offset() -> None:
    data, keyed = rows(300), Keyed(4)
    state, _ = keyed.advance(keyed.start(), *data)
    offsets = data[2][150:]
    new = keyed.predict(state, list(range(100, 250)), data[1][150:], offsets)
    np.testing.assert_allclose(new, np.exp(offsets), rtol=1e-12)


def test_a_class_may_come_late() -> None:
    """A key that has not met a class is the same as one whose class was there and never came."""
    keys, phi, offsets, labels, weight = rows(100)
    keyed, two = Keyed(4), slice(0, 50)
    narrow, _ = keyed.advance(
        keyed.start(), keys[two], phi[two], offsets[two, :2].copy(), labels[two], weight[two]
    )
    narrow, late = keyed.advance(
        narrow, keys[50:], phi[50:], offsets[50:], labels[50:], weight[50:]
    )
    wide, expected = keyed.advance(keyed.start(), keys, phi, offsets, labels, weight)
    np.testing.assert_array_equal(late, expected[50:])
    same(narrow, wide)


def test_the_state_given_stays_as_it_was() -> None:
    data, keyed = rows(100), Keyed(4)
    state, _ = keyed.advance(keyed.start(), *data)
    before = state.heard.weights.copy(), state.records.to_dict()
    keyed.advance(state, *data)
    np.testing.assert_array_equal(state.heard.weights, before[0])
    assert state.records.to_dict() == before[1]
    assert keyed.predict(state, *data[:3]).shape == (100, 3)


@pytest.mark.parametrize(("keyed", "data", "k"), [(Keyed(4), rows(100), 3), (*NUMBERS, 1)])
def test_a_block_has_all_keys(keyed: Keyed, data: Rows, k: int) -> None:
    state, _ = keyed.advance(keyed.start(), *data)
    keys, block = keyed.block(state, k)
    assert block.shape == (len(state.records), keyed.size(k) // 8)
    same(replace(state, records=keyed.of_block(Records(), keys, block)), state)


def test_a_key_is_small() -> None:
    """10 columns and a constant, 3 classes: at most 6 KB in all."""
    keyed = Keyed(11)
    n = 50
    phi = np.ones((n, 11))
    offsets = np.full((n, 3), -math.log(3.0))
    state, _ = keyed.advance(
        keyed.start(), list(range(n)), phi, offsets, np.zeros(n, np.int64), np.ones(n)
    )
    assert state.nbytes / n < 5000
    assert sum(map(sys.getsizeof, state.records.to_dict().values())) / n < 6000


def test_what_overflows_is_refused() -> None:
    keys, phi, offsets, labels, _ = rows(50)
    keyed = Keyed(4)
    with pytest.raises(NumericalError, match="weights above 1e50"):
        keyed.advance(keyed.start(), keys, phi, offsets, labels, np.full(50, 1e308))


@pytest.mark.parametrize(
    "bad",
    [
        {"filters": ()},
        {"filters": ((-1.0, 1.0, math.inf),)},
        {"filters": ((1.0, math.nan, math.inf),)},
        {"filters": ((1.0, 1.0, 0.0),)},
        {"own": 1.5},
        {"share": -0.1},
        {"keep": math.nan},
        {"every": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        Keyed(4, **bad)
