"""Settings of all tests: hypothesis profiles and one BLAS thread."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.linalg.blas  # noqa: F401  (a thread pool can be limited only once it is loaded)
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# numba's cache checks the file of a function, not the files of the functions it calls. So here
# every state of the sources has its own cache. Nothing above imports numba.
ROOT = Path(__file__).parents[1]
_kernels = b"".join(
    path.read_bytes() for path in sorted(ROOT.glob("src/kalstream/core/_kernels/*.py"))
)
_cache = ROOT / ".numba_cache" / hashlib.sha256(_kernels).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache))

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


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A test file that cannot be imported is an error, though doctests would skip it."""
    is_test = report.nodeid.startswith("tests/")
    if is_test and report.skipped and "unable to import module" in str(report.longrepr):
        report.outcome = "failed"
