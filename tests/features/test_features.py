"""Scaling and Fourier features learn online, and a chunk equals its single rows."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kalstream.errors import InvalidInput, OutOfMemory
from kalstream.features import OnlineScaler, RandomFourierFeatures


@parametrize_with_checks([OnlineScaler(), RandomFourierFeatures(n_components=20, random_state=0)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_moments_equal_those_of_the_rows():
    rows = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 1e-3, 1e3] + [0.0, 5.0, -1e4]
    ours, theirs = OnlineScaler().fit(rows), StandardScaler().fit(rows)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-12)
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-9)
    np.testing.assert_allclose(ours.transform(rows), theirs.transform(rows), rtol=1e-7, atol=1e-9)


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.sampled_from([float("inf"), 5.0, 100.0]),
    st.sampled_from([OnlineScaler, RandomFourierFeatures]),
)
def test_a_chunk_equals_its_single_rows(seed, cuts, half_life, kind):
    rng = np.random.default_rng(seed)
    n = sum(cuts)
    rows = rng.standard_cauchy((n, 4)) * [1.0, 100.0, 0.0, 1e-6]
    rows[rng.random((n, 4)) < 0.1] = np.nan
    options = {"half_life": half_life} if kind is OnlineScaler else {"random_state": 0}
    whole, one_by_one, parts = kind(**options), kind(**options), kind(**options)
    at_once = whole.advance(rows)
    np.testing.assert_allclose(at_once, np.vstack([one_by_one.advance(r[None]) for r in rows]))
    stops = np.cumsum(cuts)
    pieces = [parts.advance(rows[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
    np.testing.assert_allclose(at_once, np.vstack(pieces))
    # a row is transformed before it is learned
    before = kind(**options).partial_fit(rows[:-1]) if n > 1 else None
    if before is not None:
        np.testing.assert_allclose(before.transform(rows[-1:]), at_once[-1:])


def test_constant_and_heavy_tailed_columns_and_missing_values():
    rng = np.random.default_rng(1)
    rows = np.c_[np.full(5000, 7.0), rng.standard_cauchy(5000), rng.normal(size=5000)]
    rows[::7, 2] = np.nan
    scaler = OnlineScaler()
    out = scaler.advance(rows)
    assert np.abs(out).max() <= 5.0
    assert (out[:, 0] == 0.0).all()
    assert (out[::7, 2] == 0.0).all()
    # the middle half of a Cauchy column keeps its spread in spite of outliers
    middle = np.abs(rows[1000:, 1]) < 1.0
    assert out[1000:, 1][middle].std() > 0.05
    assert scaler.count_.tolist() == [5000, 5000, 5000 - len(rows[::7])]


def test_half_life_follows_a_change_of_scale():
    rng = np.random.default_rng(2)
    rows = np.r_[rng.normal(size=(2000, 1)), 50.0 + 10.0 * rng.normal(size=(2000, 1))]
    fast, slow = OnlineScaler(half_life=100.0).fit(rows), OnlineScaler().fit(rows)
    assert abs(fast.mean_[0] - 50.0) < 5.0 < abs(slow.mean_[0] - 50.0)
    assert 6.0 < fast.var_[0] ** 0.5 < 14.0


@pytest.mark.parametrize("bandwidth", ["auto", 0.7, 3.0])
def test_inner_products_approximate_the_kernel(bandwidth):
    rows = np.random.default_rng(3).normal(size=(40, 5))
    features = RandomFourierFeatures(20_000, bandwidth, linear=False, random_state=0).fit(rows)
    waves, scaled = features.transform(rows), features.scaler_.transform(rows)
    squares = np.sum((scaled[:, None] - scaled[None]) ** 2, axis=2)
    length = 5**0.5 if bandwidth == "auto" else bandwidth
    assert features.bandwidth_ == length
    np.testing.assert_allclose(waves @ waves.T, np.exp(-squares / (2 * length**2)), atol=0.04)
    np.testing.assert_allclose(np.sum(waves**2, axis=1), 1.0)


def test_memory_does_not_grow():
    features = RandomFourierFeatures(10, random_state=0)
    sizes = set()
    for _ in range(5):
        features.partial_fit(np.random.default_rng(0).normal(size=(100, 3)))
        held = [*vars(features).values(), *vars(features.scaler_).values()]
        sizes.add(sum(value.nbytes for value in held if isinstance(value, np.ndarray)))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("transformer", "named"),
    [
        (OnlineScaler(clip=0.0), "clip"),
        (OnlineScaler(half_life=-1.0), "half_life"),
        (RandomFourierFeatures(0), "n_components"),
        (RandomFourierFeatures(bandwidth=0.0), "bandwidth"),
        (RandomFourierFeatures(bandwidth="wide"), "bandwidth"),
    ],
)
def test_bad_settings_are_named(transformer, named):
    with pytest.raises(InvalidInput, match=named):
        transformer.fit([[1.0, 2.0]])


ODD = [
    None,
    3.0,
    "text",
    [1.0, 2.0],
    [],
    [[1.0], [1.0, 2.0]],
    [["a", "b"]],
    [[10**400, 1.0]],
    [[np.inf, 1.0]],
    [[1j, 1.0]],
    np.ones((1, 2, 1)),
    np.ones((1, 3)),
    np.array([["2026-01-01"] * 2], "M8[s]"),
    np.ma.masked_array([[1.0, 2.0]], [[0, 1]]),
    [np.ma.masked_array([1.0, 2.0], [0, 1])],
    scipy.sparse.csr_array(np.ones((1, 2))),
    pd.DataFrame({"a": ["x"], "b": [1.0]}),
    pd.DataFrame({"a": pd.to_datetime(["2026-01-01"]), "b": [1.0]}),
    {1.0, 2.0},
    (k for k in range(2)),
]


def content(model):
    """All attributes, sorted by name."""
    return pickle.dumps(sorted(vars(model).items()))


@pytest.mark.parametrize("kind", [OnlineScaler, RandomFourierFeatures])
@pytest.mark.parametrize("names", [False, True])
def test_bad_rows_are_refused_and_change_nothing(kind, names):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    given = pd.DataFrame(rows, columns=["a", "b"]) if names else rows
    for learned in (False, True):
        model = kind().fit(given) if learned else kind()
        before = content(model)
        for odd in ODD:
            for method in ("fit", "partial_fit", "advance", "transform"):
                wide = isinstance(odd, np.ndarray) and odd.shape == (1, 3)
                if wide and (method == "fit" or not learned):
                    continue  # before the first row, three columns are accepted
                error = InvalidInput if learned or method != "transform" else NotFittedError
                with pytest.raises(error, match=r"X |not fitted"):
                    getattr(model, method)(odd)
                assert content(model) == before, method


def test_bad_settings_and_counts():
    scaler, waves = OnlineScaler().fit([[1.0, 2.0]]), RandomFourierFeatures(4).fit([[1.0, 2.0]])
    for bad in (0, -1, 1.5, "2", None, True):
        for model in (scaler, waves):
            before = pickle.dumps(model)
            with pytest.raises(InvalidInput, match="n_columns must be an integer of at least 1"):
                model.add_columns(bad)
            assert pickle.dumps(model) == before
    for bad in (None, "5", [1.0], np.nan, 10**400):
        with pytest.raises(InvalidInput, match="clip must be"):
            OnlineScaler(clip=bad).fit([[1.0]])
        with pytest.raises(InvalidInput, match="bandwidth must be"):
            RandomFourierFeatures(bandwidth=bad).fit([[1.0]])
    with pytest.raises(InvalidInput, match="random_state must be None, an integer"):
        RandomFourierFeatures(random_state="seed").fit([[1.0]])
    with pytest.raises(InvalidInput, match="n_components must be at most"):
        RandomFourierFeatures(10**16).fit([[1.0]])
    with pytest.raises(OutOfMemory, match=r"n_components=1000000000 waves need \d+"):
        RandomFourierFeatures(10**9).fit(np.ones((1, 100_000)))


def test_features_that_do_not_fit_into_memory(monkeypatch):
    def full(*arguments):
        raise MemoryError

    features = RandomFourierFeatures(4, random_state=0).fit(np.ones((3, 2)))
    monkeypatch.setattr("kalstream.features._moments.waves", full)
    with pytest.raises(OutOfMemory, match=r"3 rows of n_components=4 waves need .* GiB of memory"):
        features.transform(np.ones((3, 2)))
