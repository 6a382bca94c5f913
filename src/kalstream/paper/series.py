"""Figures 1 and 4: a time series whose mean jumps seven times (appendix C)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from kalstream import _markdown
from kalstream.core import Fixed, Learned, Mixture, gaussian_log_density
from kalstream.errors import InvalidInput
from kalstream.paper.figures import new_figure, save
from kalstream.paper.plan import Plan
from kalstream.streams import time_series
from kalstream.streams.series import CHANGES

NOISE_VAR, PRIOR_VAR = 0.05, 0.01  # of the filter, appendix C
_POLICIES: Final = {"learned": Learned, "fixed": Fixed, "mixture": Mixture}


def run(plan: Plan, data: Path | None = None) -> dict[str, Any]:
    """Run each method over the series: predictions, gamma and running log density (n,)."""
    seed = plan.seeds[0]
    y = time_series(seed).targets
    methods: dict[str, Any] = {}
    for method in plan.methods:
        options = dict(method.options)
        policy = _POLICIES[options.pop("policy")](**options)
        state = policy.start(1, 1, prior_var=PRIOR_VAR)
        _, step = policy.step_chunk(
            state,
            np.ones((len(y), 1)),
            y,
            noise_var=NOISE_VAR,
            prior_var=PRIOR_VAR,
            keep_mean=True,
        )
        if policy.combines:
            density, curves = step.log_prob, {}
        else:
            mean, var = step.logit_mean[:, 0], step.logit_var + NOISE_VAR
            density = gaussian_log_density(y, mean, var)
            curves = {"mean": mean, "std": np.sqrt(var), "gamma2": step.gamma**2}
        curves["running"] = np.cumsum(density) / np.arange(1, len(y) + 1)
        methods[method.name] = {"density": float(np.mean(density))}
        methods[method.name] |= {name: _rounded(each) for name, each in curves.items()}
    about = {"format": 1, "experiment": plan.name, "seed": seed}
    return {**about, "methods": methods, "y": _rounded(y)}


def table(content: dict[str, Any]) -> str:
    """Mean log predictive density of each method, in Markdown."""
    rows = []
    for name, each in content["methods"].items():
        if abs(each["running"][-1] - each["density"]) > 1e-3:
            raise InvalidInput(
                f"{name}: density is {each['density']}, but the running mean ends at "
                f"{each['running'][-1]}"
            )
        rows.append([name, f"{each['density']:.3f}"])
    made = _markdown.table(["method", "mean log predictive density"], rows)
    return f"{made}\n\n{len(content['y']):,} observations, seed {content['seed']}.\n"


def draw(plan: Plan, content: dict[str, Any], path: Path) -> None:
    """Draw the data with mean and uncertainty, gamma squared, and the running log density."""
    shown = content["methods"][plan.figure["shows"]]
    figure, (data, gamma, density) = new_figure(3, 1)
    rows, mean, std = np.arange(len(content["y"])), np.array(shown["mean"]), np.array(shown["std"])
    data.plot(rows, content["y"], ".", color="black", markersize=1)
    data.plot(rows, mean, color="tab:orange")
    data.fill_between(rows, mean - 2 * std, mean + 2 * std, color="tab:orange", alpha=0.3)
    gamma.plot(rows, shown["gamma2"], color="tab:orange")
    for name, each in content["methods"].items():
        density.plot(rows, each["running"], label=name)
    for axis in (data, gamma, density):
        for change in CHANGES:
            axis.axvline(change, color="red", linestyle="--", linewidth=0.6)
    data.set_ylabel("y")
    gamma.set_ylabel("gamma²")
    density.set_ylabel("mean log density")
    density.set_ylim(-1.5, 1.0)
    density.legend(fontsize=7)
    save(figure, path)


def _rounded(values: ArrayLike) -> list[float]:
    return [round(float(value), 3) for value in np.asarray(values)]
