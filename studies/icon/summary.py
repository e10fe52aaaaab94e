"""The numbers of a comparison with ICon: success, attention and separability, with intervals.

There are two intervals. The interval over training seeds (Student's t) is for the result of another training; with
three seeds it is wide. The interval over initial conditions or held-out episodes (Wilson, bootstrap) is for the result
of the same policies under other conditions. Differences from the reference are paired by seed, conditions and episodes.
Differences of success are evidence only if the reference's success lies in `BAND`, because policies that did not learn,
or cannot improve, show no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, seeds_interval, wilson
from studies.harness import Differences, Rows, Tree, aggregates, improvements, kept
from studies.icon.trials import POSITIONS, TRAINED, UNTRAINED
from studies.means import mean_where_defined
from studies.verdicts import Gate

TOP = 10
"""Number of best checkpoints whose mean the paper compares with the maximum (section 4.6)."""

BAND = (0.3, 0.9)
"""Range of the reference's success in which a task can distinguish methods."""

ENDS = ("low", "high")

KEPT = ("attention", "separability", "aggregate", "improvement")
"""Parts of a summary that a result file may hold: bootstraps, and numbers whose rows were rounded later."""
UNDEFINED = {"value": None, "low": None, "high": None, "n": 0, "method": "none: success was never met"}

Array = NDArray[np.float64]


def summarise(rows: Rows, about: Tree) -> Tree:
    """Return `success`, `stability`, `attention` and `separability` by column and method, and aggregates over columns.

    Args:
        rows: One row per trial.
        about: The configuration, and parts of the summary that are stored already (`KEPT`).
    """
    config = about["config"]
    methods, reference = [method["name"] for method in config["methods"]], config["reference"]
    found = {(row["column"], row["method"], row["seed"]): row for row in rows}
    columns = sorted({row["column"] for row in rows}, key=_order(config).index)
    runs = {
        column: {name: [found[column, name, seed] for seed in config["seeds"]] for name in methods}
        for column in columns
    }
    solved = {
        column: {method: [np.array(run["curve"][-1]["success"], float) for run in own] for method, own in by.items()}
        for column, by in runs.items()
    }
    curves = {
        column: {
            method: stability([run["curve"] for run in own], [run.get("validation") for run in own])
            for method, own in by.items()
        }
        for column, by in runs.items()
    }
    last = {method: np.array([[run.mean() for run in by[method]] for by in solved.values()]).T for method in methods}
    computed: Tree = {
        "success": {column: _beside(by, reference, success) for column, by in solved.items()},
        "in_band": {
            column: bool(BAND[0] <= np.mean(np.concatenate(by[reference])) <= BAND[1]) for column, by in solved.items()
        },
        "stability": curves,
        "attention": {column: _attention(by, reference) for column, by in runs.items()},
        "separability": {column: _separability(by) for column, by in runs.items()},
    }
    if "aggregate" not in about:
        computed |= {"aggregate": aggregates(last), "improvement": improvements(last, reference)}
    return computed | {key: about[key] for key in KEPT if key in about}


def _order(config: Tree) -> list[str]:
    """Return the columns of the table: each task, followed by the same task of other robots."""
    targets = (config["transfer"] or {}).get("targets", {})
    return [
        column
        for task in config["data"]["tasks"]
        for column in (
            task,
            *(f"{other} ({start})" for other in targets.get(task, ()) for start in ("alone", "transferred")),
        )
    ]


def success(runs: Sequence[Float[Array, " conditions"]]) -> Tree:
    """Return the success rate of the last checkpoint.

    The Wilson interval pools the episodes of all seeds as if they were independent, although seeds share conditions.

    Args:
        runs: One array per seed, with 1 for each initial condition that was solved.
    """
    pooled = np.concatenate(runs)
    by_seed = np.array([run.mean() for run in runs])
    return {
        "rate": float(by_seed.mean()),
        "by_seed": by_seed.tolist(),
        "deviation": float(by_seed.std()),
        "episodes": _told(wilson(int(pooled.sum()), len(pooled))),
        "seeds": _told(seeds_interval(by_seed, share=True)),
    }


def stability(
    curves: Sequence[Sequence[Mapping[str, Any]]], validations: Sequence[Sequence[Mapping[str, Any]] | None] = ()
) -> Tree:
    """Return success at each checkpoint, its maximum, and the mean of the best ten (Figure 4), on shared conditions.

    Args:
        curves: The evaluations of each seed; the last one may have more conditions than the others.
        validations: The validations of each seed at the same steps; if given, success at the smallest validation error
            is returned too.
    """
    met = min(len(point["success"]) for curve in curves for point in curve)
    rates = np.array([[np.mean(point["success"][:met]) for point in curve] for curve in curves])
    greatest = rates.max(1)
    best = np.sort(rates, 1)[:, -TOP:].mean(1)
    drop = (greatest - best)[greatest > 0] / greatest[greatest > 0]
    found = {
        "steps": [point["step"] for point in curves[0]],
        "rates": rates.tolist(),
        "conditions": met,
        "maximum": _told(seeds_interval(greatest, share=True)),
        "mean_of_best": _told(seeds_interval(best, share=True)),
        "best_of": min(TOP, rates.shape[1]),
        "relative_drop": _told(seeds_interval(drop, share=True)) if len(drop) else UNDEFINED,
    }
    if validations and all(validations):
        least = [int(np.argmin([one["action_error"] for one in own or ()])) for own in validations]
        chosen = rates[np.arange(len(rates)), least]
        found["least_validation_error"] = _told(seeds_interval(chosen, share=True))
    return found


def _beside(runs: Mapping[str, Sequence[Array]], reference: str, summarised: Any) -> Tree:
    """Return a summary of each method and, except for the reference, its paired difference from the reference.

    Args:
        runs: One value per episode, by method and seed.
        reference: The method with which others are compared.
        summarised: Function that summarises a method's runs.
    """
    summary: Tree = {}
    for method, own in runs.items():
        summary[method] = summarised(own)
        if method != reference and reference in runs:
            apart = [mine - theirs for mine, theirs in zip(own, runs[reference], strict=True)]
            summary[method]["difference"] = _mean(apart, low=-1.0)
    return summary


def _mean(runs: Sequence[Float[Array, " episodes"]], low: float = 0.0) -> Tree:
    """Return a mean over seeds of means over episodes, with intervals over seeds and episodes within [low, 1].

    Args:
        runs: One array per seed, with one value per episode, the same episodes for all; nan if it is not defined.
        low: Smallest possible value: 0 for shares, -1 for their differences.
    """
    by_seed = np.array([np.nanmean(run) for run in runs])
    over = seeds_interval(by_seed)
    return {
        "by_seed": by_seed.tolist(),
        "seeds": _told(replace(over, low=np.maximum(over.low, low), high=np.minimum(over.high, 1.0))),
        "episodes": _told(mean_where_defined(np.mean(runs, axis=0))),
    }


def _attention(by: Mapping[str, Sequence[Mapping[str, Any]]], reference: str) -> Tree:
    """Return the attention on the robot by method; `untrained` is the reference's encoder before training.

    `ratio` is the share divided by the area: 1 for uniform attention.
    """
    shares = {method: [np.array(run["inside"][TRAINED]["share"], float) for run in own] for method, own in by.items()}
    before = [run["inside"][UNTRAINED] for run in by[reference] if UNTRAINED in run["inside"]]
    if before:
        shares[UNTRAINED] = [np.array(one["share"], float) for one in before]
    area = np.array(by[reference][0]["inside"][TRAINED]["area"], float)
    told = _beside(shares, reference, _mean)
    for method, own in shares.items():
        ratios = [share / area for share in own]
        told[method]["ratio"] = _told(seeds_interval(np.array([np.nanmean(ratio) for ratio in ratios])))
    return {"area": _told(mean_where_defined(area)), "methods": told}


def _separability(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> Tree:
    """Return the balanced accuracy of a linear probe, by method and block, with its interval over seeds."""
    layers = {method: [run["inside"][TRAINED]["separability"] for run in own] for method, own in by.items()}
    for own in by.values():
        before = [run["inside"][UNTRAINED]["separability"] for run in own if UNTRAINED in run["inside"]]
        if before:
            layers[UNTRAINED] = before
        alone = [run["inside"][TRAINED]["positions"] for run in own if "positions" in run["inside"][TRAINED]]
        if alone:
            layers[POSITIONS] = [[one] * len(run) for one, run in zip(alone, layers[next(iter(by))], strict=True)]
    return {
        method: [_told(seeds_interval(np.array(block), share=True)) for block in zip(*seeds, strict=True)]
        for method, seeds in layers.items()
    }


def _told(estimate: Estimate) -> Tree:
    """Return an estimate as JSON values; an unknown end of the interval is null."""
    ends = {key: float(value) if np.isfinite(value) else None for key, value in vars(estimate).items() if key in ENDS}
    return {"value": estimate.value, **ends, "n": estimate.n, "method": estimate.method}


def _by_column(results: Sequence[str], start: str) -> list[Tree]:
    """Return the success of every method in each column with this start (`scratch` or `transferred`)."""
    columns: dict[str, Tree] = {}
    for result in results:
        for name, by in kept(result, summarise)["success"].items():
            columns[name] = columns.get(name, {}) | by
    return [by for name, by in columns.items() if (name.partition(" (")[2].rstrip(")") or "scratch") == start]


def more(*results: str, start: str = "scratch", row: str = "ICon-Diff-C", baseline: str = "Diff-C") -> Differences:
    """Return a row's success minus a baseline's success, by seed and column of stored results."""
    columns = _by_column(results, start)
    return np.array([np.subtract(by[row]["by_seed"], by[baseline]["by_seed"]) for by in columns]).T


def in_band(*results: str, start: str = "scratch", baseline: str = "Diff-C") -> Gate:
    """Return a gate: the baseline's success lies in `BAND` in every column."""
    rates, (low, high) = [by[baseline]["rate"] for by in _by_column(results, start)], BAND
    text = f"{baseline} {', '.join(f'{rate:.2f}' for rate in rates)} ({low} to {high})"
    return Gate(text, all(low <= rate <= high for rate in rates))
