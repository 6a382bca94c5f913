"""scikit-learn's own checks, for both estimators and every kind of policy and features."""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from kalstream import CRPClassifier, KalmanClassifier, KalmanRegressor
from kalstream.errors import InvalidInput
from kalstream.features import OnlineScaler
from kalstream.testing import EXPECTED_FAILED_CHECKS, ONLINE_CHECKS, check_online_learner

ESTIMATORS = [
    CRPClassifier(),
    CRPClassifier(50.0),
    KalmanClassifier(),
    KalmanClassifier(0.99, "scaled"),
    KalmanClassifier(0.99, "raw", likelihood="onehot"),
    KalmanClassifier("learned", "scaled", class_weight="balanced"),
    KalmanClassifier(0.99, "fourier", n_components=20, predictive="probit"),
    KalmanClassifier("mixture", "raw", transition="chunk"),
    KalmanRegressor(),
    KalmanRegressor(0.99, "raw"),
    KalmanRegressor("learned", "scaled", noise_var=0.1),
    KalmanRegressor(0.99, "fourier", n_components=20),
    KalmanRegressor("mixture", "scaled", noise_var=0.1),
]


def expected(estimator):
    return EXPECTED_FAILED_CHECKS[type(estimator).__name__]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected, xfail_strict=True)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [CRPClassifier(), KalmanClassifier(), KalmanRegressor()])
def test_expected_failures_are_checks_of_scikit_learn(estimator):
    def name(check):
        return getattr(check, "func", check).__name__

    known = {name(check) for _, check in estimator_checks_generator(estimator, mark=None)}
    assert set(expected(estimator)) <= known
    assert set(EXPECTED_FAILED_CHECKS) == {"CRPClassifier", "KalmanClassifier", "KalmanRegressor"}


@pytest.mark.parametrize("check", ONLINE_CHECKS)
@pytest.mark.parametrize(
    "settings",
    [
        {"n_components": 20},
        {"forgetting": 0.9, "features": "raw"},
        {"forgetting": "learned", "features": "scaled", "predictive": "probit"},
        {"features": OnlineScaler(half_life=20.0), "intercept": False, "class_weight": "balanced"},
        {"forgetting": 1.0, "features": "fourier", "n_components": 4, "dtype": "float32"},
    ],
    ids=str,
)
def test_online(settings, check):
    others = set(ONLINE_CHECKS) - {check}
    skip = others | {"chunks"} if settings.get("dtype") == "float32" else others
    check_online_learner(lambda: KalmanClassifier(random_state=0, **settings), skip=skip)


@pytest.mark.parametrize("half_life", [None, 30.0])
def test_online_with_new_classes(half_life):
    check_online_learner(lambda: CRPClassifier(half_life))


class Faulty:
    """A learner that fails one check of ours, named by ``fault``."""

    def __init__(self, fault):
        self.fault, self.inner = fault, KalmanClassifier(0.99, "scaled", random_state=0)

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def partial_fit(self, X, y):
        if self.fault == "failure" and len(X) and len(X[0]) == 2:
            self.inner.partial_fit(np.zeros((1, 3)), [None])
        self.inner.partial_fit(X, y)
        if self.fault == "chunks":
            self.inner.partial_fit(X[:1], [None])
        return self

    def predict_proba(self, X):
        probabilities = self.inner.predict_proba(X)
        if self.fault == "pure":
            self.inner.partial_fit(X[:1], [None])
        return probabilities[:, ::-1] if self.fault == "probabilities" else probabilities

    def __deepcopy__(self, memo):
        return self if self.fault == "copies" else Faulty(self.fault)


@pytest.mark.parametrize("fault", ["probabilities", "pure", "chunks", "copies", "failure"])
def test_a_failed_check_is_named(fault):
    with pytest.raises(AssertionError, match=f"^Faulty: {fault}: "):
        check_online_learner(lambda: Faulty(fault), skip=set(ONLINE_CHECKS) - {fault})


class Bayes(GaussianNB):
    def partial_fit(self, X, y):
        return super().partial_fit(X, y, classes=["a", "b", "c"])


class Sgd(SGDClassifier):
    def partial_fit(self, X, y):
        return super().partial_fit(X, y, classes=["a", "b", "c"])


def test_other_learners_pass_the_checks():
    check_online_learner(Bayes, skip=["new_classes", "unknown_labels"])
    with pytest.raises(AssertionError, match=r"Bayes: new_classes: ValueError: .*'d'"):
        check_online_learner(Bayes, skip=["unknown_labels"])

    with pytest.raises(AssertionError, match=r"Sgd: chunks: chunks of 1: probabilities differ by"):
        check_online_learner(
            lambda: Sgd(loss="log_loss", learning_rate="constant", eta0=0.1, random_state=0),
            skip=["new_classes", "unknown_labels", "pure"],
        )


def test_skip_names_are_checked():
    with pytest.raises(InvalidInput, match=r"skip holds 'speed'; the checks are probabilities,"):
        check_online_learner(KalmanClassifier, skip=["speed"])
    with pytest.raises(InvalidInput, match=r"skip holds 'speed'; the checks are probabilities,"):
        check_online_learner(KalmanClassifier, skip="speed")
    with pytest.raises(InvalidInput, match=r"make is KalmanClassifier\(\); pass a function"):
        check_online_learner(KalmanClassifier())
