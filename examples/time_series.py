"""The paper's time series (figure 1, appendix C), whose mean jumps seven times.

The example prints the mean log predictive density of a filter with a learned gamma, of the mixture
of half-lives, and of a filter that forgets nothing. `--plot FILE` draws the figure
(pip install 'kalstream[figures]').
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from kalstream._optional import require
from kalstream.core import Fixed, Learned, Mixture, gaussian_log_density
from kalstream.streams import time_series
from kalstream.streams.series import CHANGES, LENGTH

NOISE_VAR, PRIOR_VAR = 0.05, 0.01  # of the filter, appendix C


def run(policy: Fixed | Learned | Mixture, y: NDArray[np.float64]):
    """Log predictive density of every point, and the step of the policy."""
    state = policy.start(1, 1, prior_var=PRIOR_VAR)
    ones = np.ones((len(y), 1))
    _, step = policy.step_chunk(
        state, ones, y, noise_var=NOISE_VAR, prior_var=PRIOR_VAR, keep_mean=True
    )
    if isinstance(policy, Mixture):
        return step.log_prob, step
    return gaussian_log_density(y, step.logit_mean[:, 0], step.logit_var + NOISE_VAR), step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure")
    options = parser.parse_args()
    if options.plot:
        require("matplotlib", "figures")  # fail now if it is missing, not after the work

    y = time_series(options.seed).targets
    learned_density, learned = run(Learned(init=1.0, lr=1.0), y)
    mixture_density, mixture = run(Mixture(), y)
    fixed_density, fixed = run(Fixed(1.0), y)
    print("mean log predictive density of 3058 points with 7 change points")
    print(f"  gamma learned online        {learned_density.mean():6.3f}")
    print(f"  mixture of half-lives       {mixture_density.mean():6.3f}")
    print(f"  nothing forgotten, gamma=1  {fixed_density.mean():6.3f}")
    print("lowest gamma in the 30 steps before and after each change")
    for change in CHANGES:
        before, after = learned.gamma[change - 30 : change], learned.gamma[change : change + 30]
        print(f"  step {change:4d}   {before.min():.3f}   {after.min():.3f}")
    if options.plot:
        plot(options.plot, y, learned, mixture, fixed, learned_density, fixed_density)


def plot(path, y, learned, mixture, fixed, learned_density, fixed_density) -> None:
    """Draw data and predictions, gamma, and the running log density."""
    figure = require("matplotlib.figure", "figures").Figure((8.5, 6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 1.4))
    steps = np.arange(1, LENGTH + 1)
    mean = learned.logit_mean[:, 0]
    sd = np.sqrt(learned.logit_var + NOISE_VAR)
    top.plot(steps, y, ".", color="0.7", markersize=2, label="stream")
    top.plot(steps, mean, color="tab:orange", label="kalstream, predicted before learned")
    top.fill_between(steps, mean - 2 * sd, mean + 2 * sd, color="tab:orange", alpha=0.15)
    top.plot(steps, fixed.logit_mean[:, 0], "--", color="tab:blue", lw=1, label="no forgetting")
    top.legend(loc="upper right", fontsize=8, frameon=False)
    top.set_ylabel("y")
    middle.plot(steps, learned.gamma**2, color="tab:orange", lw=1)
    middle.set_ylabel(r"learned $\gamma^2$")
    for density, color in ((learned_density, "tab:orange"), (fixed_density, "tab:blue")):
        bottom.plot(steps, np.cumsum(density) / steps, color=color)
    bottom.set_ylim(-1.2, 0.6)
    bottom.set_ylabel("mean log density")
    bottom.set_xlabel("examples")
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        for change in CHANGES:
            axis.axvline(change, color="0.85", lw=0.8, zorder=0)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
