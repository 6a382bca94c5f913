"""Settings of all tests: hypothesis profiles and one BLAS thread."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import scipy.linalg.blas  # noqa: F401  (a thread pool can be limited only once it is loaded)
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# The tests have a cache of compiled kernels of their own; core/jit.py keeps it up to date. Nothing
# above imports numba.
ROOT = Path(__file__).parents[1]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache"))

# The first example of a property often compiles a kernel, so there is no time limit.
settings.register_profile(
    "kalstream",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("kalstream-ci", settings.get_profile("kalstream"), derandomize=True)
settings.load_profile("kalstream-ci" if os.environ.get("CI") else "kalstream")


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    with threadpool_limits(limits=1):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Collect test files as tests only, not also as doctests.

    A file that cannot be imported would be skipped as a doctest, and then be found half imported:
    its tests would be missing without an error.
    """
    collected = yield
    return [each for each in collected if not isinstance(each, DoctestModule)]
