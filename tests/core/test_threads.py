"""BLAS thread pools are limited to one thread, and restored afterwards."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kalstream.core import _threads
from kalstream.core._threads import PARALLEL_FLOPS, OneThread


def sizes() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_threads, "_narrow_until", -1.0)
    with threadpool_limits(limits=2, user_api="blas"):
        if max(sizes()) < 2:
            pytest.skip("BLAS has one thread here")
        yield


def test_small_work_runs_on_one_thread_and_large_work_does_not() -> None:
    with OneThread(1.0):
        assert set(sizes()) == {1}
    assert max(sizes()) == 2
    with OneThread(PARALLEL_FLOPS):
        assert max(sizes()) == 2


def test_a_limit_set_by_the_user_in_between_is_kept() -> None:
    with OneThread(1.0):
        pass
    with threadpool_limits(limits=1, user_api="blas"):
        with OneThread(1.0):
            pass
        assert set(sizes()) == {1}


def test_overlapping_threads_restore_the_sizes() -> None:
    before = sizes()

    def hold(seconds: float) -> None:
        with OneThread(1.0):
            sleep(seconds)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hold, [0.05, 0.01, 0.03, 0.02]))
    assert sizes() == before


def test_an_error_in_the_body_restores_the_sizes() -> None:
    before = sizes()
    with pytest.raises(KeyError), OneThread(1.0):
        raise KeyError
    assert sizes() == before


def test_a_body_that_never_exits_is_forgotten() -> None:
    before = sizes()
    OneThread(1.0).__enter__()  # its __exit__ is never called
    assert set(sizes()) == {1}
    with OneThread(1.0):
        pass
    assert sizes() == before
