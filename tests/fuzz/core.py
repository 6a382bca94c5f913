"""Random valid and invalid calls of every public function of `kalstream.core`.

A call works or raises a `KalstreamError`. After an error every argument is unchanged, and the state
learns the same bits as a twin that did not get the bad call. No state or probability is NaN.

`run(rng, seconds)` raises `Failure` with the call that failed; the same seed draws the same calls.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from kalstream import core
from kalstream.core.bank import Bank
from kalstream.core.fixed import MovingState
from kalstream.core.motion import MotionBank
from kalstream.core.orders import MixedBank
from kalstream.errors import KalstreamError

Rng = np.random.Generator
# A function, its arguments, and a check of its result.
Call = tuple[Callable[..., Any], dict[str, Any], Callable[[Any], None]]

SIZES = {"m": (1, 5), "K": (1, 4), "b": (1, 9)}
METHODS = ("exact", "probit", "monte-carlo", "plug-in")
NASTY: list[Any] = [
    *(None, "x", b"x", float("nan"), float("inf"), -float("inf"), -1, 0, 1e300, -1e300, 1e-320),
    *(5, True, 1j, 2**70, -(2**70), 2**62, "", [], (), {}, set(), [[1.0], [1.0, 2.0]], [None]),
    *(np.float32(0.5), np.float64(-0.0), np.int8(3), np.datetime64("2020-01-01"), np.ma.masked),
    *(np.array(["a"]), np.array(None), np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0)), object()),
    *(np.full((1, 1), np.nan), np.array([1e200]), np.zeros((1, 1, 1, 1)), range(3), slice(None)),
]


class Failure(AssertionError):
    """A call with a wrong result, a wrong error, or a changed argument."""


class World:
    """Arguments of the calls: an object of each kind, replaced when calls return new ones."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.m, self.K = self.size("m"), self.size("K")
        self.prior_var = float(10.0 ** rng.uniform(-2, 2))
        self.noise_var = float(10.0 ** rng.uniform(-2, 1))
        half_lives = tuple(float(10.0 ** rng.uniform(0, 4)) for _ in range(self.below(3) + 1))
        grid = tuple(float(10.0 ** rng.uniform(-1, 2)) for _ in range(self.below(3) + 1))
        self.policies: list[Any] = [
            core.Mixture(
                (*half_lives, np.inf),
                share=float(rng.choice([0.0, 0.001, 1.0])),
                calibrations=grid,
                predictive=str(rng.choice(["exact", "probit"])),
                learn_scale=bool(rng.random() < 0.3),
                order=self.orders(len(half_lives) + 1),
            ),
            core.Fixed(
                float(rng.choice([0.1, 0.5, 0.99, 1.0])), core.Calibration(), "onehot", self.order()
            ),
            core.Learned(0.9, lr=float(10.0 ** rng.uniform(-3, 1))),
        ]
        dtype = np.float32 if rng.random() < 0.1 else np.float64
        start = {"prior_var": self.prior_var, "dtype": dtype}
        self.states = [policy.start(self.m, self.K, **start) for policy in self.policies]
        self.posterior = core.init(self.m, self.K, prior_var=self.prior_var)
        self.labels = bool(rng.random() < 0.6)
        # One step of each kind, as an argument of other calls.
        rows = rng.standard_normal((self.size("b"), self.m))
        self.steps = [
            policy.predict(state, rows, prior_var=self.prior_var)
            for policy, state in zip(self.policies, self.states, strict=True)
        ]
        self.stack = core.Stack.start(len(self.policies[0].half_lives), self.K)

    def order(self) -> int:
        return int(self.rng.choice([1, 1, 2, 3]))

    def orders(self, n: int) -> Any:
        return 1 if self.rng.random() < 0.5 else tuple(self.order() for _ in range(n))

    def size(self, name: str) -> int:
        low, high = SIZES[name]
        return int(self.rng.integers(low, high + 1))

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def rows(self, b: int) -> Any:
        scale = 1.0 if self.rng.random() < 0.9 else 10.0 ** self.rng.uniform(-90, 90)
        return self.rng.standard_normal((b, self.m)) * scale

    def targets(self, b: int) -> Any:
        if self.labels:
            return self.rng.integers(-1, self.K, b)
        scale = 1.0 if self.rng.random() < 0.9 else 10.0 ** self.rng.uniform(-90, 90)
        values = self.rng.standard_normal((b, self.K)) * scale
        values[self.rng.random(b) < 0.2] = np.nan
        return values

    def settings(self, b: int) -> dict[str, Any]:
        """Keyword arguments of a step."""
        some: dict[str, Any] = {"noise_var": self.noise_var, "prior_var": self.prior_var}
        if self.rng.random() < 0.3:
            some["transition"] = str(self.rng.choice(["example", "chunk"]))
        if self.rng.random() < 0.2:
            some["keep_mean"] = True
        if self.rng.random() < 0.3:
            some["sample_weight"] = self.rng.choice([0.0, 0.5, 1.0, 1e3], b)
        if self.rng.random() < 0.3:
            some["time_gap"] = self.rng.choice([0.0, 1.0, 2.5, 1e4, 1e12], b)
        return some


# ---- checks of results --------------------------------------------------------------------


def bits(value: Any) -> Any:
    """The content of a value, comparable, without addresses and caches."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, np.asarray(value).tobytes()
    if isinstance(value, core.Posterior):
        return "donated" if value._stored is None else (bits(value.mean), bits(value.cov))
    if isinstance(value, Bank):
        if value.stored is None:
            return "donated"
        cov = np.triu(value.stored.cov)  # the other triangle is not used
        pending = None if value.rows is None else (bits(value.rows), bits(value.coefficients))
        return bits(value.stored.mean), bits(cov), bits(value.scales), pending
    if isinstance(value, MotionBank):
        return "donated" if value.stored is None else bits([value.moments(0), value.nbytes])
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(bits(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return repr(value)


def finite(name: str, array: Any) -> None:
    if not np.isfinite(array).all():
        raise Failure(f"{name} is not finite: {array}")


def sound_state(state: Any) -> None:
    """Check that numbers are finite and weights sum to 1."""
    if isinstance(state, core.Posterior):
        finite("mean", state.mean)
        finite("cov", state.cov)
    elif isinstance(state, core.MixtureState):
        for bank in state.bank.banks if isinstance(state.bank, MixedBank) else [state.bank]:
            finite("mean", bank.arrays.mean)
            finite("cov", bank.arrays.cov)
            finite("scales", bank.scales)
        finite("spread", state.spread)
        if not abs(state.weights.sum() - 1.0) < 1e-12:
            raise Failure(f"weights sum to {state.weights.sum()!r}")
    elif isinstance(state, MovingState):
        sound_state(state.posterior)
        finite("alpha", [state.alpha.log_mean, state.alpha.log_var])
    elif isinstance(state, core.FilterState):
        sound_state(copy.copy(state.posterior))
        finite("delta and alpha", [state.delta, state.alpha.log_mean, state.alpha.log_var])
    elif isinstance(state, core.Stack):
        for field in fields(state):
            finite(f"{field.name} of the stack", getattr(state, field.name))


def sound_pair(pair: Any) -> None:
    state, step = pair
    sound_state(state)
    finite("logit_mean", step.logit_mean)
    finite("logit_var", step.logit_var)


def sound_probabilities(result: Any) -> None:
    finite("probabilities", result)
    if result.size and not np.abs(result.sum(axis=-1) - 1.0).max() < 1e-6:
        raise Failure(f"probabilities sum to {result.sum(axis=-1)}")


def no_nan(result: Any) -> None:
    for each in result if isinstance(result, tuple) else (result,):
        if np.isnan(np.asarray(each, np.float64)).any():
            raise Failure(f"NaN in {result}")


def anything(result: Any) -> None:
    """Accept every result."""


# ---- the calls ----------------------------------------------------------------------------


def of_policy(w: World) -> Call:
    which = w.below(3)
    policy, state, b = w.policies[which], w.states[which], w.size("b")
    if w.rng.random() < 0.1:  # a state of another policy
        state = w.states[w.below(3)]
    name = str(
        w.rng.choice(["step_chunk", "step_chunk", "predict", "class_probabilities", "start"])
    )
    if name == "start":
        size = {"n_features": w.m, "n_outputs": w.K, "prior_var": w.prior_var}
        return policy.start, size, sound_state
    given = {"state": state, "features": w.rows(b)}
    if name == "step_chunk":
        given |= {"targets": w.targets(b), "donate": bool(w.rng.random() < 0.5), **w.settings(b)}
        return policy.step_chunk, given, sound_pair
    given |= {"prior_var": w.prior_var, "time_gap": float(w.rng.choice([0.0, 1.0, 1e9]))}
    if name == "predict":
        return policy.predict, given, lambda step: finite("logit_mean", step.logit_mean)
    given |= {"method": METHODS[w.below(4)], "n_samples": 5, "random_state": 0}
    return policy.class_probabilities, given, sound_probabilities


def of_state(w: World) -> Call:
    state = w.states[w.below(3)]
    name = str(w.rng.choice(["add_outputs", "keep_outputs", "add_features", "scale"]))
    if name == "scale":
        return w.policies[0].scale, {"state": state}, anything
    if name == "keep_outputs":
        columns = w.rng.permutation(w.K)[: 1 + w.below(w.K)]
        return state.keep_outputs, {"columns": columns}, sound_state
    if name == "add_outputs":
        return state.add_outputs, {"n_outputs": 1 + w.below(2)}, sound_state
    given = {"n_features": 1 + w.below(2), "prior_var": w.prior_var}
    return state.add_features, given, sound_state


def of_stack(w: World) -> Call:
    stack, step = w.stack, w.steps[0]
    name = str(w.rng.choice(["learned", "learned", "corrected", "grown", "keep_classes", "start"]))
    if name == "start":
        return core.Stack.start, {"n_filters": stack.n_filters, "n_classes": w.K}, sound_state
    if name == "grown":
        return stack.add_classes, {"n_classes": len(stack.counts) + w.below(2)}, sound_state
    if name == "keep_classes":
        n = len(stack.counts)
        return (
            stack.keep_classes,
            {"columns": w.rng.permutation(n)[: 1 + w.below(n)]},
            sound_state,
        )
    b, k = step.logit_mean.shape[1:]
    plain = w.rng.dirichlet(np.ones(k), b)
    given = {"step": step, "plain": plain, "ordered": bool(w.rng.random() < 0.5)}
    if name == "corrected":
        return stack.predict, given, lambda result: finite("probabilities", result)
    given |= {"labels": w.rng.integers(-1, w.K, b)}
    if w.rng.random() < 0.5:
        given["weight"] = w.rng.choice([0.0, 1.0, 1e4], b)
    if w.rng.random() < 0.3:
        given["plain"] = None
    return stack.learn, given, lambda pair: sound_state(pair[0])


def of_probabilities(w: World) -> Call:
    b, k = w.size("b"), w.size("K")
    scale = 10.0 ** w.rng.uniform(-3, 3) if w.rng.random() < 0.8 else 10.0 ** w.rng.uniform(3, 140)
    moments = {
        "logit_mean": w.rng.standard_normal((b, k)) * scale,
        "logit_var": w.rng.exponential(size=b) * 10.0 ** w.rng.uniform(-3, 6),
        "calibration": float(10.0 ** w.rng.uniform(-2, 2)),
    }
    which = w.below(5)
    if which == 0:
        given = {"step": w.steps[0], "method": METHODS[w.below(4)], "n_samples": 5}
        given |= {"light": float(w.rng.random()), "random_state": 0}
        return core.mixture_probabilities, given, sound_probabilities
    if which == 1:
        return core.label_log_prob, {**moments, "labels": w.rng.integers(0, k, b)}, no_nan
    if which == 2:
        given = {"target": w.rng.standard_normal(b), "mean": moments["logit_mean"][:, 0]}
        # The density of NaN is NaN, element by element, like numpy's functions.
        return core.gaussian_log_density, {**given, "var": moments["logit_var"]}, anything
    if which == 3:
        given = {"target": w.rng.standard_normal(k), "means": moments["logit_mean"]}
        given |= {"variances": 0.1 + w.rng.random((b, k)), "log_weights": np.full(b, -np.log(b))}
        return core.mixture_log_density, given, anything
    given = {**moments, "method": METHODS[w.below(4)], "n_samples": 5, "random_state": 0}
    return core.class_probabilities, given, sound_probabilities


def of_recursion(w: World) -> Call:
    p, x, y = w.posterior, w.rows(1)[0], w.targets(1)[0]
    given = {"posterior": p, "features": x, "target": y}
    pace = {"gamma": float(w.rng.choice([0.0, 0.5, 1.0])), "prior_var": w.prior_var}
    noise = {"noise_var": w.noise_var}
    weights, b = w.rng.standard_normal((w.m, w.K)), w.size("b")
    chunk = {"posterior": p, "features": w.rows(b), "targets": w.targets(b), **w.settings(b)}
    calls: list[Call] = [
        (core.step, {**given, **pace, **noise}, sound_pair),
        (core.update, {**given, **noise}, sound_pair),
        (core.delta_gradient, {**given, **pace, **noise, "calibration": 2.0}, no_nan),
        (core.transition, {"posterior": p, **pace}, sound_state),
        (core.predict, {"posterior": p, "features": x}, no_nan),
        (core.drift, {"weights": weights, **pace}, no_nan),
        (
            core.log_likelihood,
            {"weights": weights, "features": x, "target": y, **noise},
            no_nan,
        ),
        (core.init, {"n_features": w.m, "n_outputs": w.K, "prior_var": w.prior_var}, sound_state),
        (core.add_outputs, {"posterior": p, "n_outputs": 1}, sound_state),
        (
            core.ridge_posterior,
            {"features": w.rows(b), "targets": w.rng.standard_normal((b, 2)), **noise}
            | {"prior_var": w.prior_var},
            sound_state,
        ),
        (
            core.step_chunk,
            {**chunk, "gamma": pace["gamma"], "donate": bool(w.rng.random() < 0.3)},
            sound_pair,
        ),
    ]
    return calls[w.below(len(calls))]


def of_the_rest(w: World) -> Call:
    state = w.states[w.below(3)]
    calls: list[Call] = [
        (core.half_life, {"gamma": float(w.rng.random())}, no_nan),
        (core.gamma_of, {"half_life": float(w.rng.exponential() + 0.1)}, no_nan),
        (core.health, {"state": state, "step": w.steps[w.below(3)]}, anything),
        (core.Alpha, {"log_mean": 0.5, "log_var": 1.0}, anything),
        (core.Calibration, {"init": 2.0, "spread": 1.0, "gamma": 0.9}, anything),
        (core.Calibration.fixed, {"value": 2.0}, anything),
        (core.Fixed, {"gamma": 0.5, "calibration": 2.0}, anything),
        (core.Learned, {"init": 0.9, "lr": 0.1, "calibration": 2.0, "calibrated": True}, anything),
        (
            core.Calibration().learn,
            {"alpha": core.Alpha(0.0, 1.0), "gradient": float(w.rng.normal()), "weight": 1.0},
            lambda alpha: finite("alpha", [alpha.log_mean, alpha.log_var]),
        ),
        (
            core.Mixture,
            {"half_lives": (1.0, 10.0), "share": 0.1, "calibrations": [1.0], "learn_scale": False}
            | {"predictive": "probit"},
            anything,
        ),
        (core.Posterior, {"mean": w.rows(2).T, "cov": np.eye(w.m)}, sound_state),
    ]
    return calls[w.below(len(calls))]


CALLS = (of_policy, of_policy, of_policy, of_state, of_stack, of_stack, of_probabilities)
CALLS += (of_probabilities, of_recursion, of_the_rest)


# ---- bad arguments ------------------------------------------------------------------------


def spoiled(rng: Rng, value: Any) -> Any:
    """A changed value, or something else."""
    if rng.random() < 0.25:
        return NASTY[rng.integers(len(NASTY))]
    if isinstance(value, np.ndarray):
        return spoiled_array(rng, value)
    if is_dataclass(value) and not isinstance(value, Bank | MotionBank | MixedBank):
        names = [field.name for field in fields(value)]
        name = names[rng.integers(len(names))]
        return replace(value, **{name: spoiled(rng, getattr(value, name))})
    if isinstance(value, tuple) and value:
        some = list(value)
        some[rng.integers(len(some))] = spoiled(rng, some[0])
        return (tuple(some), value[:-1], value * 2)[rng.integers(3)]
    if isinstance(value, int | float) and rng.random() < 0.5:
        return type(value)(value * rng.choice([-1, 0, 2, 10, 1000]))
    return NASTY[rng.integers(len(NASTY))]


def spoiled_array(rng: Rng, array: Any) -> Any:
    """Change shape, dtype, order or values; some results are still valid."""
    some: list[Callable[[], Any]] = [
        lambda: array[:-1],
        lambda: array[..., :-1],
        lambda: array[None],
        lambda: array.ravel(),
        lambda: array.T,
        lambda: np.asfortranarray(array),
        lambda: np.repeat(array, 2, axis=0)[::2],
        lambda: np.repeat(array, 3, axis=0),
        lambda: np.append(array, array, axis=-1),
        lambda: array[:0],
        lambda: array.tolist(),
        lambda: array.astype(np.float32),
        lambda: array.astype(np.complex128),
        lambda: array.astype(object),
        lambda: array.astype(str),
        lambda: -array if array.dtype != bool else ~array,
        lambda: (
            array.astype(np.float64) * float(rng.choice([np.nan, np.inf, 1e308, 1e120, 1e-300]))
        ),
        lambda: np.ma.masked_array(array, array == array),
        lambda: array.astype(np.float64).view(np.matrix) if array.ndim == 2 else array,
        lambda: with_one(rng, array, rng.choice([np.nan, np.inf, -1.0, 99.0, 1e18, 1e300])),
        lambda: array.view(ReadOnly) if array.ndim else array,
    ]
    if array.ndim == 0:
        return NASTY[rng.integers(len(NASTY))]
    with np.errstate(all="ignore"):
        return some[rng.integers(len(some))]()


class ReadOnly(np.ndarray):
    """A subclass of numpy's array."""


def with_one(rng: Rng, array: Any, value: float) -> Any:
    changed = array.astype(np.float64) if np.isnan(value) or abs(value) > 1e18 else array.copy()
    if changed.size:
        changed.flat[rng.integers(changed.size)] = value
    return changed


# ---- running ------------------------------------------------------------------------------


def twin_agrees(w: World, before: Any, after: Any) -> None:
    """Check that a state after a bad call, and a copy from before, learn the same bits."""
    for policy in w.policies:
        if isinstance(before, core.MixtureState) == isinstance(policy, core.Mixture):
            x, y = np.ones((2, before.posterior.n_features)), np.zeros(2, np.int64)
            options = {"noise_var": w.noise_var, "prior_var": w.prior_var}
            both = []
            for state in (before, after):
                try:
                    both.append(bits(policy.step_chunk(state, x, y, **options)))
                except (
                    KalstreamError
                ) as error:  # another policy's half-lives, or numerical problems
                    both.append(str(error))
            if both[0] != both[1]:
                raise Failure("after an error the state learns other bits than its twin")


def use_result(w: World, result: Any) -> None:
    """Use the result of a call as a new argument, if its sizes fit."""
    state, step = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if isinstance(state, core.MixtureState | core.FilterState | MovingState):
        which = 0 if isinstance(state, core.MixtureState) else 1 + w.below(2)
        fits = state.posterior.n_features == w.m and len(state.seen) == w.K
        kind = isinstance(state, w.policies[which].state_type)
        if fits and kind and (which or state.half_lives == w.policies[0].half_lives):
            w.states[which] = state
            if isinstance(step, core.MixtureStep | core.Step):
                w.steps[which] = step
    elif isinstance(state, core.MixtureStep) and state.logit_mean.shape[2] == w.K:
        w.steps[0] = state
    elif isinstance(state, core.Stack) and state.n_filters == w.stack.n_filters:
        if len(state.counts) == w.K:
            w.stack = state
    elif isinstance(state, core.Posterior) and (state.n_features, state.n_outputs) == (w.m, w.K):
        w.posterior = state


def one_call(w: World) -> bool:
    """Make one call; return whether it worked."""
    function, given, sound = CALLS[w.below(len(CALLS))](w)
    rng = w.rng
    if rng.random() < 0.6:
        name = list(given)[rng.integers(len(given))]
        try:
            given[name] = spoiled(rng, given[name])
        except KalstreamError:  # a dataclass checks its parts
            return False
        except (TypeError, ValueError, OverflowError, IndexError):
            return False  # numpy cannot make such an array
    owner = getattr(function, "__self__", None)
    subject = given.get("state", owner)
    states = core.MixtureState | core.FilterState | MovingState
    twin = (
        copy.deepcopy(subject) if isinstance(subject, states) and not is_donated(subject) else None
    )
    before = bits([owner, *given.values()])
    try:
        result = function(**given)
    except KalstreamError:
        if bits([owner, *given.values()]) != before:
            raise Failure("an error changed an argument") from None
        if twin is not None:
            twin_agrees(w, twin, subject)
        return False
    if given.get("donate") is not True and bits([owner, *given.values()]) != before:
        raise Failure("a pure call changed an argument")
    sound(result)
    if not (isinstance(owner, type) or function in (core.init, core.ridge_posterior)):
        use_result(w, result)
    return True


def is_donated(state: Any) -> bool:
    """Whether a state was donated."""
    if isinstance(state, MovingState):
        return state.bank.stored is None
    if isinstance(state, core.MixtureState):
        bank = state.bank.banks[0] if isinstance(state.bank, MixedBank) else state.bank
        return bank.stored is None
    return state.posterior._stored is None


def run(rng: Rng, seconds: float) -> dict[str, int]:
    """Make random calls for this many seconds; return the numbers of accepted and refused ones."""
    stop, counts = time.monotonic() + seconds, {"accepted": 0, "refused": 0}
    while time.monotonic() < stop:
        seed = int(rng.integers(2**63))
        one_world(seed, stop, counts)
    return counts


def one_world(seed: int, stop: float, counts: dict[str, int]) -> None:
    """Make up to 100 calls with the same objects; they depend only on ``seed``."""
    w = World(np.random.default_rng(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(100):
            if time.monotonic() > stop:
                return
            try:
                counts["accepted" if one_call(w) else "refused"] += 1
            except Exception as error:
                raise Failure(
                    f"world {seed}, call {number}: {type(error).__name__}: {error}; repeat it "
                    f"with one_world({seed}, float('inf'), {{'accepted': 0, 'refused': 0}})"
                ) from error
            if any(is_donated(state) for state in w.states):
                return
