"""The search for hyper-parameters: by cumulative log-probability on a stream of another seed."""

from __future__ import annotations

from typing import Any

from kalstream.errors import InvalidInput
from kalstream.paper.images import Images, Photographs
from kalstream.paper.plan import Method, Plan
from kalstream.paper.race import Race


def search(
    plan: Plan,
    method: Method,
    stream: str,
    begin: dict[str, Any],
    images: Images | Photographs,
    device: str,
) -> dict[str, Any]:
    """Choose the hyper-parameters of a cell, one stage after the other.

    Parameters
    ----------
    plan : Plan
    method : Method
    stream : str
    begin : mapping
        Hyper-parameters to start from.
    images : Images or Photographs
    device : str

    Returns
    -------
    search : mapping
        An entry of `ResultsFile.searches`.
    """
    stages, chosen = [], begin
    for names in method.search:
        points = [{**chosen, **point} for point in plan.candidates(method, names)]
        stages.append(_race(plan, method, stream, points, images, device))
        chosen = stages[-1]["chosen"]
    return {
        "method": method.key,
        "stream": stream,
        "seed": plan.search["seed"],
        "how": plan.search_settings(method, stream),
        "begin": begin,
        "chosen": chosen,
        "log_prob": stages[-1]["log_prob"],
        "stages": stages,
    }


def _race(
    plan: Plan,
    method: Method,
    stream: str,
    points: list[dict[str, Any]],
    images: Images | Photographs,
    device: str,
) -> dict[str, Any]:
    """One stage: at each rung only the best candidates continue, until one is left or rows end."""
    settings, first = plan.search, plan.setup(method, stream, plan.search["seed"])
    race = Race([first.having(**point) for point in points], images, device)
    passes = race.passes
    n_rows = min(settings["rows"] or images.n_rows, images.n_rows)
    for rows, n_kept in (*(method.rungs or settings["rungs"]), (n_rows, 1)):
        race.advance(min(rows, n_rows))
        if n_kept == 1:
            break
        best = sorted(race.active, key=lambda n: passes[n].mean_log_prob, reverse=True)
        race.keep(sorted(best[:n_kept]))
    race.end()
    sound = [n for n, each in enumerate(passes) if each.failed is None]
    if not sound:
        raise InvalidInput(
            f"all {len(points)} candidates of {method.key} on {stream} diverged; put lower rates "
            "into the grid of the experiment"
        )
    chosen = max(sound, key=lambda n: (passes[n].rows, passes[n].mean_log_prob))
    return {
        "chosen": points[chosen],
        "log_prob": round(passes[chosen].mean_log_prob, 4),
        "seconds": round(sum(each.seconds for each in passes), 1),
        "candidates": [
            {
                **point,
                "rows": each.rows,
                "log_prob": None if each.failed else round(each.mean_log_prob, 4),
                "accuracy": round(each.accuracy, 2),
            }
            for point, each in zip(points, passes, strict=True)
        ],
    }
