"""Learning from labelled streams that drift: a Kalman filter over the weights of a linear readout.

The names below are public. Each is loaded when it is first used, so that importing the package is
quick and never imports an optional dependency.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kalstream import core, errors, estimators, evaluate, features, streams, testing
    from kalstream.errors import KalstreamError
    from kalstream.estimators import (
        CRPClassifier,
        KalmanClassifier,
        KalmanRegressor,
        KeyedClassifier,
        KeyedRegressor,
    )
    from kalstream.features import TableEncoder

__version__ = "0.1.0"

__all__ = [
    "CRPClassifier",
    "KalmanClassifier",
    "KalmanRegressor",
    "KalstreamError",
    "KeyedClassifier",
    "KeyedRegressor",
    "TableEncoder",
    "__version__",
    "core",
    "errors",
    "estimators",
    "evaluate",
    "features",
    "streams",
    "testing",
]

# public name -> the module that defines it, or the submodule itself
_HOME = {
    "CRPClassifier": "kalstream.estimators",
    "KalmanClassifier": "kalstream.estimators",
    "KalmanRegressor": "kalstream.estimators",
    "KalstreamError": "kalstream.errors",
    "KeyedClassifier": "kalstream.estimators",
    "KeyedRegressor": "kalstream.estimators",
    "TableEncoder": "kalstream.features",
    "core": "kalstream.core",
    "errors": "kalstream.errors",
    "estimators": "kalstream.estimators",
    "evaluate": "kalstream.evaluate",
    "features": "kalstream.features",
    "streams": "kalstream.streams",
    "testing": "kalstream.testing",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value  # found there at the next access
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
