"""The estimators: scikit-learn's contract over the core."""

from kalstream.core.alarm import Drift
from kalstream.estimators._model import Filter
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.crp import CRPClassifier
from kalstream.estimators.keyed import KeyedClassifier
from kalstream.estimators.keyed_regressor import KeyedRegressor
from kalstream.estimators.regressor import KalmanRegressor
from kalstream.estimators.trees import Trees

__all__ = [
    "CRPClassifier",
    "Drift",
    "Filter",
    "KalmanClassifier",
    "KalmanRegressor",
    "KeyedClassifier",
    "KeyedRegressor",
    "Trees",
]
