"""The mathematics: pure functions over small immutable states, on numpy, scipy and numba."""

from kalstream.core.calibration import Alpha, Calibration
from kalstream.core.chunk import step_chunk
from kalstream.core.experts import (
    Expert,
    ExpertRows,
    ExpertState,
    GaussianClasses,
    LabelChain,
    Linear,
    Neighbours,
)
from kalstream.core.fixed import Fixed, MovingState
from kalstream.core.guard import Health, health
from kalstream.core.half_lives import gamma_of, half_life
from kalstream.core.learned import Learned
from kalstream.core.mixture import Mixture, MixtureState, MixtureStep, mixture_probabilities
from kalstream.core.policy import JudgingPolicy, Policy, PolicyState, PolicyStep
from kalstream.core.predictive import (
    LabelLogProb,
    class_probabilities,
    gaussian_log_density,
    label_log_prob,
    mixture_log_density,
)
from kalstream.core.recursion import (
    delta_gradient,
    drift,
    init,
    log_likelihood,
    predict,
    ridge_posterior,
    softmax_curvature,
    step,
    transition,
    update,
    update_softmax,
)
from kalstream.core.single import FilterState
from kalstream.core.stacking import Stack
from kalstream.core.state import (
    BankStep,
    Posterior,
    Step,
    add_features,
    add_outputs,
    keep_outputs,
)

__all__ = [
    "Alpha",
    "BankStep",
    "Calibration",
    "Expert",
    "ExpertRows",
    "ExpertState",
    "FilterState",
    "Fixed",
    "GaussianClasses",
    "Health",
    "JudgingPolicy",
    "LabelChain",
    "LabelLogProb",
    "Learned",
    "Linear",
    "Mixture",
    "MixtureState",
    "MixtureStep",
    "MovingState",
    "Neighbours",
    "Policy",
    "PolicyState",
    "PolicyStep",
    "Posterior",
    "Stack",
    "Step",
    "add_features",
    "add_outputs",
    "class_probabilities",
    "delta_gradient",
    "drift",
    "gamma_of",
    "gaussian_log_density",
    "half_life",
    "health",
    "init",
    "keep_outputs",
    "label_log_prob",
    "log_likelihood",
    "mixture_log_density",
    "mixture_probabilities",
    "predict",
    "ridge_posterior",
    "softmax_curvature",
    "step",
    "step_chunk",
    "transition",
    "update",
    "update_softmax",
]
