"""KalmanClassifier and KalmanRegressor: scikit-learn's contract over the filters of the core."""

from kalstream.core.alarm import Drift
from kalstream.estimators._model import Filter
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.regressor import KalmanRegressor

__all__ = ["Drift", "Filter", "KalmanClassifier", "KalmanRegressor"]
