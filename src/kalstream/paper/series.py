"""Figures 1 and 4: a mean that jumps seven times (appendix C)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from kalstream._files import replacing
from kalstream.core import Fixed, Learned, Mixture, gaussian_log_density
from kalstream.errors import InvalidInput
from kalstream.paper.figures import new_figure
from kalstream.paper.plan import Plan
from kalstream.streams import time_series
from kalstream.streams.series import CHANGES

NOISE_VAR, PRIOR_VAR = 0.05, 0.01  # of the filter, appendix C
_POLICIES: Final = {"learned": Learned, "fixed": Fixed, "mixture": Mixture}


def run(plan: Plan) -> dict[str, Any]:
    """Each method over the series: predictions, gamma and running log density (n,)."""
    seed = plan.seeds[0]
    y = time_series(seed).targets
    found: dict[str, Any] = {"format": 1, "experiment": plan.name, "seed": seed, "methods": {}}
    for method in plan.methods:
        options = dict(method.options)
        policy = _POLICIES[options.pop("policy")](**options)
        state = policy.start(1, 1, prior_var=PRIOR_VAR)
        ones = np.ones((len(y), 1))
        how = {"noise_var": NOISE_VAR, "prior_var": PRIOR_VAR, "keep_mean": True}
        _, step = policy.step_chunk(state, ones, y, **how)
        if isinstance(policy, Mixture):
            density, shown = step.log_prob, {}
        else:
            mean, var = step.logit_mean[:, 0], step.logit_var + NOISE_VAR
            density = gaussian_log_density(y, mean, var)
            shown = {"mean": mean, "std": np.sqrt(var), "gamma2": step.gamma**2}
        shown["running"] = np.cumsum(density) / np.arange(1, len(y) + 1)
        found["methods"][method.name] = {"density": float(np.mean(density))}
        found["methods"][method.name] |= {key: _short(each) for key, each in shown.items()}
    found["y"] = _short(y)
    return found


def table(found: dict[str, Any]) -> str:
    """Mean log predictive density of each method, in Markdown."""
    for name, each in found["methods"].items():
        if abs(each["running"][-1] - each["density"]) > 1e-3:
            raise InvalidInput(f"{name}: {each['density']} is not where the running mean ends")
    rows = [f"| {name} | {each['density']:.3f} |" for name, each in found["methods"].items()]
    head = "| method | mean log predictive density |\n| --- | --- |\n"
    return head + "\n".join(rows) + f"\n\n{len(found['y']):,} observations, seed {found['seed']}.\n"


def draw(plan: Plan, found: dict[str, Any], path: Path) -> None:
    """Data with mean and uncertainty, gamma squared, running log density."""
    shown = found["methods"][plan.figure["shows"]]
    figure, (data, gamma, density) = new_figure(3, 1)
    rows, mean, std = np.arange(len(found["y"])), np.array(shown["mean"]), np.array(shown["std"])
    data.plot(rows, found["y"], ".", color="black", markersize=1)
    data.plot(rows, mean, color="tab:orange")
    data.fill_between(rows, mean - 2 * std, mean + 2 * std, color="tab:orange", alpha=0.3)
    gamma.plot(rows, shown["gamma2"], color="tab:orange")
    for name, each in found["methods"].items():
        density.plot(rows, each["running"], label=name)
    for axis in (data, gamma, density):
        for change in CHANGES:
            axis.axvline(change, color="red", linestyle="--", linewidth=0.6)
    data.set_ylabel("y")
    gamma.set_ylabel("gamma²")
    density.set_ylabel("mean log density")
    density.set_ylim(-1.5, 1.0)
    density.legend(fontsize=7)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:])


def _short(values: Any) -> list[float]:
    return [round(float(value), 3) for value in values]
