"""The table of a few-shot benchmark: scores with intervals, from the raw outcome of every episode.

A cell of the table is one method on one task. Its score is the success rate, or the return as a share of the expert's
where a suite has rewards alone. `best3` is the mean of the best three evaluations of a run, the paper's convention,
which profits from evaluating often; `last` is the last evaluation, which nothing was chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, mean_percentile, wilson
from studies.harness import aggregates, improvements

SCORES = ("best3", "last")

Curves = Mapping[str, Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]]
"""Row -> task -> seed -> evaluations, each with `step`, `success`, `return` and `steps`, one number an episode."""


def best_three(values: Sequence[float]) -> float:
    """Mean of the three greatest, or of all where there are fewer."""
    return float(np.mean(sorted(values)[-3:]))


def score_titles(curves: Mapping[str, Mapping[str, Sequence[Sequence[Any]]]]) -> dict[str, str]:
    """Kind of score -> what it is, with how many evaluations the best were chosen among.

    Args:
        curves: Row -> task -> seed -> evaluations.
    """
    counts = {len(run) for tasks in curves.values() for runs in tasks.values() for run in runs}
    fewest, most = min(counts), max(counts)
    among = f"{most}" if fewest == most else f"{fewest} to {most}"
    best = "mean of the best three" if most > 3 else "mean of all, at most three,"
    return {"best3": f"{best} of {among} evaluation{'s' * (most > 1)}", "last": "last evaluation"}


def scores(
    curves: Curves, expert: Mapping[str, float] | None = None
) -> dict[str, dict[str, Float[NDArray[np.float64], "seeds tasks"]]]:
    """Kind of score -> row -> one score a seed and task.

    Args:
        curves: What every run came to.
        expert: Task -> the expert's mean return, where scores are shares of it; success is counted without.
    """
    found: dict[str, dict[str, Any]] = {kind: {} for kind in SCORES}
    for row, tasks in curves.items():
        means = [
            [[_score(evaluation, task, expert).mean() for evaluation in run] for run in runs]
            for task, runs in tasks.items()
        ]  # [tasks][seeds][evaluations]
        found["best3"][row] = np.array([[best_three(run) for run in task] for task in means]).T
        found["last"][row] = np.array([[run[-1] for run in task] for task in means]).T
    return found


def single(
    runs: Sequence[Sequence[Mapping[str, Any]]], task: str, expert: Mapping[str, float] | None = None
) -> dict[str, dict[str, Any]]:
    """One cell of the table: both scores with intervals, the seeds' episodes pooled.

    An interval says how well so many episodes determine the score, not how much training differs between seeds; that
    stands in `by_seed`. That the best three evaluations were chosen is not accounted for.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in SCORES:
        by_seed, episodes = [], []
        for run in runs:
            of_run = [_score(evaluation, task, expert) for evaluation in run]
            chosen = of_run[-1:] if kind == "last" else sorted(of_run, key=lambda each: float(each.mean()))[-3:]
            by_seed.append(float(np.mean(chosen)))
            episodes.append(np.mean(chosen, axis=0))  # of one initial state, over the evaluations chosen
        pooled = np.concatenate(episodes)
        interval = _interval(pooled, [seed for seed, part in enumerate(episodes) for _ in part], expert)
        found[kind] = {
            "score": float(np.mean(by_seed)),
            "low": interval.low,
            "high": interval.high,
            "n": len(pooled),
            "method": interval.method,
            "by_seed": by_seed,
        }
    return found


def summarise(
    curves: Curves, reference: str, expert: Mapping[str, float] | None = None, *, reps: int = 2000
) -> dict[str, Any]:
    """`table` by row and task, `aggregate` by row, `improvement` over each other row, and `curves` of mean scores.

    Args:
        curves: What every run came to.
        reference: The row others are compared with.
        expert: See `scores`.
        reps: Of each bootstrap.
    """
    matrices = scores(curves, expert)
    return {
        "table": {
            row: {task: single(runs, task, expert) for task, runs in tasks.items()} for row, tasks in curves.items()
        },
        "aggregate": {kind: aggregates(matrices[kind], reps=reps) for kind in SCORES},
        "improvement": {kind: improvements(matrices[kind], reference, reps=reps) for kind in SCORES},
        "curves": {
            row: {
                task: [[[one["step"], float(_score(one, task, expert).mean())] for one in run] for run in runs]
                for task, runs in tasks.items()
            }
            for row, tasks in curves.items()
        },
    }


def _score(
    evaluation: Mapping[str, Any], task: str, expert: Mapping[str, float] | None
) -> Float[NDArray[np.float64], " episodes"]:
    if expert is None:
        return np.asarray(evaluation["success"], np.float64)
    return np.asarray(evaluation["return"], np.float64) / expert[task]


def _interval(
    pooled: Float[NDArray[np.float64], " N"], strata: Sequence[int], expert: Mapping[str, float] | None
) -> Estimate:
    if expert is not None:
        found = mean_percentile(pooled, strata)
        return Estimate(found.value, found.low, found.high, found.n, "percentile bootstrap over episodes within seeds")
    # The mean of three evaluations need not be a whole number of successes.
    found = wilson(round(float(pooled.sum())), len(pooled))
    return Estimate(found.value, found.low, found.high, found.n, "Wilson, episodes of all seeds pooled")
