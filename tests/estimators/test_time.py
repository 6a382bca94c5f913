"""Time: dates, units, gaps, and predictions further ahead."""

import datetime

import numpy as np
import pandas as pd
import pytest

from kalstream.errors import InvalidInput
from small_models import X, Y, answer, small


def test_dates_without_a_unit_are_warned_about():
    days = np.datetime64("2026-01-01") + np.arange(60)
    with pytest.warns(UserWarning, match=r"86400 seconds apart .* time_unit"):
        small().partial_fit(X, Y, time=days)
    small(time_unit=datetime.timedelta(days=1)).partial_fit(X, Y, time=days)  # warnings are errors


def test_time_is_given_from_the_start():
    model = small().partial_fit(X, Y)
    before = answer(model)
    with pytest.raises(InvalidInput, match="is given in this call but was not in earlier ones"):
        model.partial_fit(X, Y, time=np.arange(60.0))
    with pytest.raises(InvalidInput, match="was not given to partial_fit; give it in every call"):
        model.predict(X, time=3.0)
    assert answer(model) == before


@pytest.mark.parametrize("time_unit", [86400.0, datetime.timedelta(days=1), pd.Timedelta("1D")])
@pytest.mark.parametrize(
    "dates",
    [
        pd.date_range("2024-02-01", periods=60),
        pd.Series(pd.date_range("2024-02-01", periods=60)),
        pd.date_range("2024-02-01", periods=60, tz="Asia/Tokyo"),
        list(pd.date_range("2024-02-01", periods=60, tz="UTC")),
        np.arange("2024-02-01", "2024-04-01", dtype="datetime64[D]"),
        np.arange("3024-02-01", "3024-04-01", dtype="datetime64[D]"),
        [datetime.datetime(2024, 2, 1) + datetime.timedelta(days=i) for i in range(60)],
        [datetime.date(2024, 2, 1) + datetime.timedelta(days=i) for i in range(60)],
        86400.0 * np.arange(60),
        (86400 * np.arange(60)).astype(object),
    ],
    ids=lambda dates: f"{type(dates).__name__} {getattr(dates, 'dtype', '')}",
)
def test_dates(dates, time_unit):
    kept = np.array([0, *range(5, 60)])
    dates = dates.iloc if isinstance(dates, pd.Series) else dates
    some = [dates[i] for i in kept]
    model = small(time_unit=time_unit, features="raw").partial_fit(X[kept], Y[kept], time=some)
    plain = small(features="raw").partial_fit(X[kept], Y[kept], time=kept)
    assert model.predict_proba(X) == pytest.approx(plain.predict_proba(X), rel=1e-9)
    every = small(features="raw").partial_fit(X[kept], Y[kept])
    assert np.abs(model.predict_proba(X) - every.predict_proba(X)).max() > 1e-6
    ahead = model.predict_proba(X, time=dates[59])
    assert ahead == pytest.approx(plain.predict_proba(X, time=59), rel=1e-9)


def test_time_unit_of_numpy():
    one = small(time_unit=np.timedelta64(2, "h")).partial_fit(X, Y, time=3600 * np.arange(60))
    other = small().partial_fit(X, Y, time=0.5 * np.arange(60))
    assert one.predict_proba(X) == pytest.approx(other.predict_proba(X), rel=1e-12)


def test_time_is_given_always_or_never():
    model = small().partial_fit(X, Y, time=np.arange(60.0))
    before = answer(model)
    with pytest.raises(InvalidInput, match="time was given in earlier calls but not in this one"):
        model.partial_fit(X, Y)
    with pytest.raises(InvalidInput, match="time decreases from 59 to 58 at row 0 of X; sort"):
        model.partial_fit(X[:1], Y[:1], time=58.0)
    assert answer(model) == before
    assert model.partial_fit(X[:2], Y[:2], time=59.0).n_seen_ == 62  # equal times are fine


def test_the_further_ahead_the_less_is_known():
    model = small(forgetting=0.9, features="raw").partial_fit(X, Y, time=np.arange(60.0))
    times = np.array([59.0, 60.0, 65.0, 90.0, 1e4])
    row = np.repeat(X[:1], 5, axis=0)
    uncertain = model.uncertainty(row, time=times)
    assert (np.diff(uncertain) > 0.0).all()
    assert uncertain[-1] == pytest.approx(1.0)
    found = model.predict_proba(row, time=times)
    assert found[-1] == pytest.approx(np.full(3, 1 / 3), abs=1e-6)
    assert found[1] == pytest.approx(model.predict_proba(X[:1])[0], rel=1e-12)
    assert model.predict(row, time=1e6).shape == (5,)
