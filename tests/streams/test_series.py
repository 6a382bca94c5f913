"""The paper's time series: its recipe, and the example's numbers."""

import numpy as np

from kalstream.streams.series import CHANGES, LENGTH, MEANS, time_series


def test_means_and_noise_equal_those_of_the_paper() -> None:
    stream = time_series(3)
    assert stream.task == "regression"
    assert stream.n_rows == LENGTH == 3058
    assert (stream.rows == 1.0).all()
    segments = np.split(stream.targets, CHANGES)
    assert len(segments) == len(MEANS) == 8
    for mean, segment in zip(MEANS, segments, strict=True):
        assert abs(segment.mean() - mean) < 4 * 0.1 / len(segment) ** 0.5
    noise = stream.targets - np.repeat(MEANS, [len(s) for s in segments])
    assert abs(noise.var() / 0.01 - 1) < 0.1


def test_a_seed_determines_the_series() -> None:
    assert time_series(1).describe() == time_series(1).describe()
    assert time_series(1).describe() != time_series(2).describe()
