"""KalmanClassifier and KalmanRegressor: scikit-learn's contract over the filters of the core."""

from kalstream.estimators._model import Filter
from kalstream.estimators._watch import Drift
from kalstream.estimators.classifier import KalmanClassifier
from kalstream.estimators.regressor import KalmanRegressor

__all__ = ["Drift", "Filter", "KalmanClassifier", "KalmanRegressor"]
