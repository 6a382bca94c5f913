"""A Kalman filter as the last layer of a torch network, which is fine-tuned online."""

from kalstream._optional import require

require("torch", "torch")

from kalstream.deep.fleet import Fleet  # noqa: E402
from kalstream.deep.head import Head, Moments  # noqa: E402
from kalstream.deep.kalman import KalmanHead  # noqa: E402
from kalstream.deep.learner import Learner  # noqa: E402
from kalstream.deep.mixture import MixtureHead  # noqa: E402
from kalstream.deep.presets import OnlineLearner  # noqa: E402
from kalstream.deep.replay import RecentMemory, ReplayStreams  # noqa: E402
from kalstream.deep.slow import SlowCopies  # noqa: E402
from kalstream.deep.softmax import SoftmaxHead  # noqa: E402
from kalstream.deep.stack import Stack  # noqa: E402
from kalstream.deep.step import Outcome  # noqa: E402
from kalstream.deep.training import CrossEntropy, Frozen, ThroughHead, Training  # noqa: E402

__all__ = [
    "CrossEntropy",
    "Fleet",
    "Frozen",
    "Head",
    "KalmanHead",
    "Learner",
    "MixtureHead",
    "Moments",
    "OnlineLearner",
    "Outcome",
    "RecentMemory",
    "ReplayStreams",
    "SlowCopies",
    "SoftmaxHead",
    "Stack",
    "ThroughHead",
    "Training",
]
