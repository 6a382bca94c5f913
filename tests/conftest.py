"""What every test runs under: hypothesis profiles and one BLAS thread."""

import os
from collections.abc import Iterator

import pytest
import scipy.linalg.blas  # noqa: F401  (a thread pool can be limited only once it is loaded)
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# The first example of a property often pays for compiling a kernel: time says nothing about it.
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
