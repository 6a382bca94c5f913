"""References for the core: a dense joint Gaussian, and loops over the plain recursion."""

from dataclasses import dataclass

import numpy as np

from kalstream.core import (
    Alpha,
    Posterior,
    delta_gradient,
    gamma_of,
    gaussian_log_density,
    label_log_prob,
    predict,
    step,
    transition,
    update,
    update_softmax,
)
from kalstream.core.motion_reference import (
    learn_moving,
    moved,
    predict_moving,
    rate_of,
    start_moving,
)


def joint_gaussian(features, targets, *, gamma, noise_var, prior_var):
    """Condition the joint Gaussian of (w_0..w_n, y_1..y_n), built from eqs. (1)-(3).

    Returns the filtered mean (m, K) and cov (m, m) of w_n, and the one-step-ahead mean (n, K) and
    variance (n,) of phi_i'w_i; noise_var (n,) is inf where there is no target.
    """
    n, m = features.shape
    size = (n + 1) * m
    cov_w = np.zeros((size, size))
    cov_w[:m, :m] = prior_var * np.eye(m)  # eq. (2)
    for i in range(1, n + 1):
        here, before = slice(i * m, (i + 1) * m), slice(0, i * m)
        g = gamma[i - 1]
        last = cov_w[(i - 1) * m : i * m]
        cov_w[here, before] = g * last[:, before]  # eq. (3)
        cov_w[before, here] = cov_w[here, before].T
        step_var = (1.0 - g**2) * prior_var
        cov_w[here, here] = g**2 * last[:, (i - 1) * m : i * m] + step_var * np.eye(m)
    design = np.zeros((n, size))  # eq. (1)
    for i, phi in enumerate(features):
        design[i, (i + 1) * m : (i + 2) * m] = phi
    seen = np.flatnonzero(np.isfinite(noise_var))

    def condition(what, rows):
        rows = seen[seen < rows]
        obs = design[rows]
        innovation = obs @ cov_w @ obs.T + np.diag(noise_var[rows])
        gain = np.linalg.solve(innovation, obs @ cov_w @ what.T).T
        return gain @ targets[rows], what @ cov_w @ what.T - gain @ obs @ cov_w @ what.T

    ahead = [condition(design[[i]], i) for i in range(n)]
    mean, cov = condition(np.eye(size)[-m:], n)
    return (
        mean,
        cov,
        np.array([mu[0] for mu, _ in ahead]),
        np.array([var[0, 0] for _, var in ahead]),
    )


@dataclass
class Looped:
    """Result of a loop over the rows: the last state, and the prediction of each row."""

    posterior: Posterior
    logit_mean: np.ndarray
    logit_var: np.ndarray
    gamma: np.ndarray
    delta: float = np.nan
    alpha: Alpha | None = None
    calibration: np.ndarray | None = None
    seen: np.ndarray | None = None


def rows_of(features, targets, gamma=1.0, sample_weight=None, time_gap=None):
    """Iterate over rows: features, target (NaN if it is not learned), gamma, weight, time gap."""
    n = len(features)
    weights = np.ones(n) if sample_weight is None else np.broadcast_to(sample_weight, n)
    gaps = np.ones(n) if time_gap is None else np.broadcast_to(time_gap, n)
    gammas = np.broadcast_to(gamma, n)
    for phi, target, g, w, dt in zip(features, targets, gammas, weights, gaps, strict=True):
        unknown = w == 0.0 or np.isnan(target).any() or (np.ndim(target) == 0 and target == -1)
        yield phi, np.nan if unknown else target, float(g), float(w), float(dt)


def textbook(
    posterior, features, targets, *, gamma, noise_var, prior_var, keep_mean=False, **per_row
):
    """Apply `recursion.step` row by row."""
    means, variances, gammas = [], [], []
    rows = list(rows_of(features, targets, gamma, **per_row))
    # The power of a whole array, as in step_chunk, because libm's pow may round differently. If
    # gamma is 1 - 1e-12, one unit in the last place of gamma ** gap is a large part of the
    # forgetting.
    powers = np.array([g for _, _, g, _, _ in rows]) ** np.array([dt for *_, dt in rows])
    for (phi, target, _, w, _), power in zip(rows, powers, strict=True):
        posterior, seen = step(
            posterior,
            phi,
            target,
            gamma=float(power),
            noise_var=noise_var / w if w > 0.0 else noise_var,
            prior_var=prior_var,
            keep_mean=keep_mean,
        )
        means.append(seen.logit_mean)
        variances.append(seen.logit_var)
        gammas.append(seen.gamma)
    return Looped(posterior, *map(np.array, (means, variances, gammas)))


def learned(
    posterior,
    features,
    targets,
    *,
    delta,
    lr,
    calibration,
    calibrated,
    noise_var,
    prior_var,
    keep_mean=False,
    labels=True,
    **per_row,
):
    """Algorithm 1, row by row; lr = 0 is a fixed gamma. Classes that never came are left out."""
    alpha, seen = calibration.start(), []
    means, variances, gammas, alphas = [], [], [], []
    for phi, target, _, w, dt in rows_of(features, targets, 1.0, **per_row):
        shared = {"prior_var": prior_var, "keep_mean": keep_mean}
        g = np.exp(-0.5 * delta * dt)
        ahead = transition(posterior, gamma=g, **shared)
        mu, var = predict(ahead, phi)
        means.append(mu)
        variances.append(var)
        alphas.append(alpha.value)
        known = not np.isnan(target).any()
        slope = 0.0
        if known and not labels:
            slope = delta_gradient(posterior, phi, target, gamma=g, noise_var=noise_var, **shared)
        elif known and target in seen and len(seen) > 1:
            among = Posterior(posterior.mean[:, seen], posterior.cov)
            index = seen.index(target)
            slope = delta_gradient(
                among,
                phi,
                index,
                gamma=g,
                noise_var=noise_var,
                calibration=alpha.value if calibrated else 1.0,
                **shared,
            )
            terms = label_log_prob(mu[seen], max(var, 0.0), index, calibration=alpha.value)
            if calibration.learns:
                alpha = calibration.learn(alpha, alpha.value * float(terms.d_calibration), w)
        if known and labels and target not in seen:
            seen.append(target)
        if lr > 0.0:
            delta = min(max(delta + lr * w * dt * slope, 0.0), 5.0)
        g = np.exp(-0.5 * delta * dt)
        gammas.append(g)
        posterior = transition(posterior, gamma=g, **shared)
        if known:
            posterior, _ = update(posterior, phi, target, noise_var=noise_var / w)
    mask = np.isin(np.arange(posterior.n_outputs), seen)
    moments = map(np.array, (means, variances, gammas))
    return Looped(posterior, *moments, delta, alpha, np.array(alphas), mask)


def through_softmax(mean, var, label, seen, weight, likelihood):
    """Innovation (K,) of a label, and its noise variance before the weight divides it."""
    before = Posterior(mean[None], [[var]])  # one feature that is 1
    after, step = update_softmax(
        before, [1.0], label, seen=seen, sample_weight=weight, likelihood=likelihood
    )
    noise_var = float(step.noise_var)
    return (after.mean - before.mean)[0] * (var + noise_var) / var, noise_var * weight


def moving(stream, *, order, half_life, prior_var, likelihood="onehot", n_outputs=None):
    """The plain filter of `motion_reference`: its last state, and the moments of each row."""
    n_outputs = stream.n_outputs if n_outputs is None else n_outputs
    options = {k: v for k, v in stream.settings.items() if k in ("sample_weight", "time_gap")}
    state = start_moving(stream.features.shape[1], n_outputs, order=order, prior_var=prior_var)
    rate, means, variances = rate_of(order, half_life), [], []
    seen = np.zeros(n_outputs, bool)
    for phi, target, _, w, gap in rows_of(stream.features, stream.targets, **options):
        state = moved(state, tau=rate * gap, prior_var=prior_var)
        mean, var = predict_moving(state, phi)
        means.append(mean)
        variances.append(var)
        if np.isnan(target).any():
            continue
        noise = stream.settings["noise_var"]
        if not stream.labels:
            innovation = target - mean
        elif likelihood != "onehot":
            seen[int(target)] = True
            innovation, noise = through_softmax(mean, var, int(target), seen, w, likelihood)
        else:
            innovation = np.eye(n_outputs)[int(target)] - mean
        state = learn_moving(state, phi, innovation, noise / w)
    return state, np.array(means), np.array(variances)


def mixture(
    filters,
    targets,
    *,
    calibrations,
    share,
    noise_var,
    labels=True,
    **per_row,
):
    """Weights (n, J, C) before each row, log predictive (n,), and weights (J, C) at the end.

    ``filters`` are the J results of `textbook`; Bayes' rule needs only their predictions.
    """
    n = len(targets)
    weights = np.full((len(filters), len(calibrations)), 1.0 / len(filters) / len(calibrations))
    before, log_probs, seen = [], np.full(n, np.nan), []
    for i, (_, target, _, w, dt) in enumerate(rows_of(np.zeros((n, 1)), targets, 1.0, **per_row)):
        switch = 1.0 - (1.0 - share) ** dt
        weights = (1.0 - switch) * weights + switch / weights.size
        before.append(weights)
        if np.isnan(target).any():
            continue
        if labels and target not in seen:
            seen.append(target)
            continue
        log_liks = np.array(
            [
                [
                    label_log_prob(
                        f.logit_mean[i, seen],
                        max(f.logit_var[i], 0.0),
                        seen.index(target),
                        calibration=c,
                    ).log_prob
                    if labels
                    else gaussian_log_density(
                        target, f.logit_mean[i], f.logit_var[i] + noise_var
                    ).sum()
                    for c in calibrations
                ]
                for f in filters
            ]
        )
        top = log_liks.max()
        log_probs[i] = np.log(np.sum(weights * np.exp(log_liks - top))) + top
        weights = weights * np.exp(w * (log_liks - top))
        weights = weights / weights.sum()
    return np.array(before), log_probs, weights


def mixture_filters(half_lives, posterior, features, targets, **settings):
    """Each filter of a mixture, run by itself."""
    return [
        textbook(posterior, features, targets, gamma=gamma_of(h), **settings) for h in half_lives
    ]


def assert_close(value, expected, rtol=1e-10, atol=1e-14):
    """Compare relative to the largest entry, because its rounding affects small entries too."""
    value, expected = np.asarray(value), np.asarray(expected)
    assert value.shape == expected.shape
    assert np.isfinite(value).all()
    error, scale = np.abs(value - expected).max(), np.abs(expected).max()
    assert error <= rtol * scale + atol, (
        f"off by {error:.3g}, {error / (scale + 1e-300):.3g} relative"
    )


def assert_same_posterior(posterior, expected, rtol=1e-10):
    """Mean and covariance agree."""
    assert_close(posterior.mean, expected.mean, rtol)
    assert_close(posterior.cov, expected.cov, rtol)


def bits(posterior):
    """The content of a posterior as bytes."""
    return posterior.mean.tobytes() + posterior.cov.tobytes()
