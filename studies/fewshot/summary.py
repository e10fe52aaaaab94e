"""The numbers of a few-shot study: scores with intervals, from the raw outcome of every episode.

The score of a method on a task is the success rate or, in a suite that has only rewards, the return as a share of the
expert's return. `best3` is the mean of the best three evaluations of a run, as in the paper; it increases with the
number of evaluations. `last` is the last evaluation, which involves no selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, wilson
from studies.harness import Rows, Tree, aggregates, improvements
from studies.means import mean_percentile

SCORES = ("best3", "last")
CHANCE, LEFT_CHANCE = 0.5, 0.55
"""Window accuracy at chance, and the accuracy below which an encoder counts as still at chance."""

Curves = Mapping[str, Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]]
"""Evaluations by row, task and seed, each with `step`, `success`, `return` and `steps`, one number per episode."""


def result(rows: Rows, about: Tree) -> Tree:
    """Return all results that are computed from a study's rows.

    Args:
        rows: One row per trial.
        about: The configuration, on dm_control `expert_return`, and, if they were computed before, the bootstrapped
            `aggregate` and `improvement`.

    Returns:
        The parts of `summarise` and `bootstrapped`, and a summary of every pretraining.
    """
    config, expert, pretraining = about["config"], about.get("expert_return"), {}
    found = {(row["row"], row["task"], row["seed"]): row["curve"] for row in rows if "row" in row}
    curves = {
        row["name"]: {
            task: [found[row["name"], task, seed] for seed in range(config["seeds"])]
            for task in config["data"]["unseen_tasks"]
        }
        for row in config["rows"]
    }
    for run in (row for row in rows if "pretraining" in row):
        batch = config["pretrainings"][run["pretraining"]]["train"].get("batch_size", config["train"]["batch_size"])
        pretraining[f"{run['pretraining']}-{run['seed']}"] = about_pretraining(run, batch)
    kept: Tree = {key: about[key] for key in ("aggregate", "improvement") if key in about}
    summary = summarise(curves, expert)
    return {
        "score": "success rate" if expert is None else "return / expert return",
        **summary,
        **(kept or bootstrapped(summary["table"], config["reference"], reps=config["resamples"])),
        "pretraining": pretraining,
    }


def about_pretraining(run: Tree, batch: int) -> Tree:
    """Return a pretraining's last numbers and, if it is contrastive and stayed at chance, a note."""
    last = run["metrics"].get("val") or run["metrics"].get("train", {})
    about: Tree = {"metrics": run["metrics"], "seconds": run["seconds"], "batch": batch}
    window, among = last.get("window_accuracy"), last.get("categorical_accuracy")
    if window is not None:
        about["window_accuracy"] = window
        if window < LEFT_CHANCE:
            about["note"] = f"stayed at chance: window accuracy {window:.2f}, where {CHANCE} is guessing"
    elif among is not None and among < 2 / batch:
        about["note"] = f"stayed at chance: accuracy {among:.4f} among {batch} rows"
    return about


def score_titles(curves: Mapping[str, Mapping[str, Sequence[Sequence[Any]]]]) -> dict[str, str]:
    """Return the title of each kind of score, with the number of evaluations from which the best were chosen."""
    counts = {len(run) for tasks in curves.values() for runs in tasks.values() for run in runs}
    fewest, most = min(counts), max(counts)
    among = f"{most}" if fewest == most else f"{fewest} to {most}"
    best = "mean of the best three" if most > 3 else "mean of all, at most three,"
    return {"best3": f"{best} of {among} evaluation{'s' * (most > 1)}", "last": "last evaluation"}


def scores(table: Tree) -> dict[str, dict[str, Float[NDArray[np.float64], "seeds tasks"]]]:
    """Return scores by kind and row, one per seed and task, from the `table` of `summarise`."""
    return {
        kind: {row: np.array([cell[kind]["by_seed"] for cell in cells.values()]).T for row, cells in table.items()}
        for kind in SCORES
    }


def single(
    runs: Sequence[Sequence[Mapping[str, Any]]], task: str, expert: Mapping[str, float] | None = None
) -> dict[str, dict[str, Any]]:
    """Return both scores of one method on one task with intervals, the seeds' episodes pooled.

    An interval shows how precisely the number of episodes determines the score. It does not show how much training
    differs between seeds, which `by_seed` shows. It does not account for the choice of the best three evaluations.
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


def summarise(curves: Curves, expert: Mapping[str, float] | None = None) -> Tree:
    """Return `table` by row and task, and mean `curves`.

    Args:
        curves: The evaluations.
        expert: The expert's mean return by task, of which scores are shares; without it, scores are success rates.
    """
    table = {row: {task: single(runs, task, expert) for task, runs in tasks.items()} for row, tasks in curves.items()}
    means = {
        row: {
            task: [[[one["step"], float(_score(one, task, expert).mean())] for one in run] for run in runs]
            for task, runs in tasks.items()
        }
        for row, tasks in curves.items()
    }
    return {"table": table, "curves": means}


def bootstrapped(table: Tree, reference: str, *, reps: int = 2000) -> Tree:
    """Return, by kind of score, `aggregate` by row and `improvement` of the reference over each other row."""
    found = scores(table)
    return {
        "aggregate": {kind: aggregates(found[kind], reps=reps) for kind in SCORES},
        "improvement": {kind: improvements(found[kind], reference, reps=reps) for kind in SCORES},
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
