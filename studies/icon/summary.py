"""What the parts of a comparison with ICon say together: success, attention and separability, with intervals.

Two intervals answer two questions. Over training seeds (Student's t): what another training would give; with three
seeds it is wide. Over initial conditions or held-out episodes (Wilson, bootstrap): what these very policies would give
elsewhere. Differences from the reference are paired: the same seed, the same conditions, the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, mean_where_defined, seeds_interval, wilson
from studies.harness import aggregates, improvements
from studies.icon.config import ComparisonConfig
from studies.icon.trials import TRAINED, UNTRAINED, PolicyTrial

TOP = 10
"""Checkpoints whose mean the paper sets beside the best (section 4.6)."""

UNDEFINED = {"value": None, "low": None, "high": None, "n": 0, "method": "none: success was never met"}

Array = NDArray[np.float64]
Found = Mapping[PolicyTrial, Mapping[str, Any]]
Tree = dict[str, Any]


def summarise(config: ComparisonConfig, found: Found) -> Tree:
    """`success`, `stability`, `attention` and `separability` by column and method, and `aggregate` over columns.

    Args:
        config: The comparison.
        found: What every trial came to.
    """
    methods, columns = [method.name for method in config.methods], columns_of(found)
    runs = {column: {method: _runs(config, found, method, column) for method in methods} for column in columns}
    last = {
        method: np.array(
            [[np.mean(run["curve"][-1]["success"]) for run in runs[column][method]] for column in columns]
        ).T
        for method in methods
    }
    return {
        "success": {
            column: _beside(
                {method: [np.array(run["curve"][-1]["success"], float) for run in own] for method, own in by.items()},
                config.reference,
                success,
            )
            for column, by in runs.items()
        },
        "stability": {
            column: {method: stability([run["curve"] for run in own]) for method, own in by.items()}
            for column, by in runs.items()
        },
        "attention": {column: _attention(by, config.reference) for column, by in runs.items()},
        "separability": {column: _separability(by) for column, by in runs.items()},
        "aggregate": aggregates(last),
        "improvement": improvements(last, config.reference),
    }


def columns_of(found: Found) -> list[str]:
    """Of the table: tasks, and how their policies began."""
    return list(dict.fromkeys(trial.column for trial in found))


def success(runs: Sequence[Float[Array, " conditions"]]) -> Tree:
    """One trial of the table: success rate of the last checkpoint.

    The Wilson interval pools the episodes of all seeds as if each were on its own, though seeds share the conditions.

    Args:
        runs: Of each seed, whether each initial condition was solved.
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


def stability(curves: Sequence[Sequence[Mapping[str, Any]]]) -> Tree:
    """Success at each checkpoint, its maximum, and the mean of the best ten (Figure 4), on the same conditions for all.

    Args:
        curves: Of each seed, its evaluations; the last one may have met more conditions than the others.
    """
    met = min(len(point["success"]) for curve in curves for point in curve)
    rates = np.array([[np.mean(point["success"][:met]) for point in curve] for curve in curves])
    greatest = rates.max(1)
    best = np.sort(rates, 1)[:, -TOP:].mean(1)
    drop = (greatest - best)[greatest > 0] / greatest[greatest > 0]
    return {
        "steps": [point["step"] for point in curves[0]],
        "rates": rates.tolist(),
        "conditions": met,
        "maximum": _told(seeds_interval(greatest)),
        "mean_of_best": _told(seeds_interval(best)),
        "best_of": min(TOP, rates.shape[1]),
        "relative_drop": _told(seeds_interval(drop)) if len(drop) else UNDEFINED,
    }


def _runs(config: ComparisonConfig, found: Found, method: str, column: str) -> list[Mapping[str, Any]]:
    of_column = {(trial.method, trial.seed): one for trial, one in found.items() if trial.column == column}
    return [of_column[method, seed] for seed in config.seeds]


def _beside(runs: Mapping[str, Sequence[Array]], reference: str, told: Any) -> Tree:
    """A number of each method, and of each but the reference its paired difference from it.

    Args:
        runs: Method -> of each seed, one value an episode.
        reference: The method that others are compared with.
        told: What a method's runs come to.
    """
    summary: Tree = {}
    for method, own in runs.items():
        summary[method] = told(own)
        if method != reference and reference in runs:
            apart = [mine - theirs for mine, theirs in zip(own, runs[reference], strict=True)]
            summary[method]["difference"] = _mean(apart)
    return summary


def _mean(runs: Sequence[Float[Array, " episodes"]]) -> Tree:
    """A mean over seeds of means over episodes, with an interval over either.

    Args:
        runs: Of each seed one value an episode, the same episodes for all; nan where it is not defined.
    """
    by_seed = np.array([np.nanmean(run) for run in runs])
    return {
        "by_seed": by_seed.tolist(),
        "seeds": _told(seeds_interval(by_seed)),
        "episodes": _told(mean_where_defined(np.mean(runs, axis=0))),
    }


def _attention(by: Mapping[str, Sequence[Mapping[str, Any]]], reference: str) -> Tree:
    """Method -> attention on the robot; `untrained` is the reference's encoder before training.

    `ratio` is share over area: 1 for attention spread evenly.
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
    """Method -> of each block, the balanced accuracy of a linear probe, with its interval over seeds."""
    layers = {method: [run["inside"][TRAINED]["separability"] for run in own] for method, own in by.items()}
    for own in by.values():
        before = [run["inside"][UNTRAINED]["separability"] for run in own if UNTRAINED in run["inside"]]
        if before:
            layers[UNTRAINED] = before
    return {
        method: [_told(seeds_interval(np.array(block))) for block in zip(*seeds, strict=True)]
        for method, seeds in layers.items()
    }


def _told(estimate: Estimate) -> Tree:
    """As JSON: an end that is not known is null."""
    ends = {
        key: value if np.isfinite(value) else None for key, value in (("low", estimate.low), ("high", estimate.high))
    }
    return {"value": estimate.value, **ends, "n": estimate.n, "method": estimate.method}
