"""The tables of the occupancy study: best learning rates, intervals, data needed for one error.

A method's learning rate is chosen for each amount of data and schedule: the one whose final error, averaged over seeds,
is nearest to the error of the table to which the method converges (`studies.occupancy.limits`). This choice needs the
true answer, so it shows a method's best result and not what a user would get; it is the same for all methods. The
smallest error is not used, because a Monte Carlo table that has not converged can be nearer to the truth than the
biased table to which it converges.

**How many times less data.** A baseline has some error at the largest amount of data, n_max. TD InfoNCE's curve of
error against data, interpolated linearly on logarithmic axes, first reaches this error at some n; the ratio is
n_max / n. If the baseline's last error is below TD InfoNCE's, the two are exchanged and the ratio is n / n_max < 1. The
ratio is computed for each seed, and seeds are summarised on the logarithmic scale. If a curve begins below the given
error, n is at most n_min, and the ratio is only a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, seeds_interval
from studies.harness import Rows, Tree
from studies.occupancy.methods import METHODS

OURS = "td_infonce"
CUTS = ("episodes", "trajectory")
KEYS = {"": "error", "_rows_normalised": "error_normalised"}

Reals = NDArray[np.float64]


def data_needed(sizes: Sequence[int], errors: Sequence[float], target: float) -> float:
    """Return the amount of data at which a falling curve, linear on logarithmic axes, first reaches `target`.

    Args:
        sizes: Amounts of data in increasing order.
        errors: The error at each size.
        target: The error to reach.

    Returns:
        The amount; 0 if the smallest size already has a smaller error, infinity if no size has.
    """
    if errors[0] <= target:
        return float(sizes[0]) if errors[0] == target else 0.0
    for i in range(1, len(sizes)):
        if errors[i] <= target:
            high, low = np.log(errors[i - 1]), np.log(errors[i])
            share = (high - np.log(target)) / (high - low)
            return float(sizes[i - 1] * (sizes[i] / sizes[i - 1]) ** share)
    return float("inf")


def advantage(sizes: Sequence[int], ours: Reals, baseline: Reals) -> Tree:
    """Return how many times less data `ours` needs, for the larger of the two errors at the largest size.

    Args:
        sizes: The n amounts of data in increasing order.
        ours: Errors of TD InfoNCE, [seeds, n].
        baseline: Errors of the baseline, [seeds, n].

    Returns:
        The ratio as a geometric mean over seeds with its interval, each seed's ratio, and "bound". The bound is "" or,
        if some seed's curve begins below the given error, "at least" ("at most" for the baseline's curve).
    """
    ratios, bounds = [], set()
    for own, other in zip(ours.tolist(), baseline.tolist(), strict=True):
        better = own[-1] <= other[-1]
        curve, target = (own, other[-1]) if better else (other, own[-1])
        needed = data_needed(sizes, curve, target)
        if needed == 0:
            bounds.add("at least" if better else "at most")
        ratio = sizes[-1] / max(needed, sizes[0])
        ratios.append(ratio if better else 1 / ratio)
    logs = seeds_interval(np.log(ratios))
    return {
        "ratio": float(np.exp(logs.value)),
        "low": float(np.exp(logs.low)),
        "high": float(np.exp(logs.high)),
        "n": logs.n,
        "per_seed": ratios,
        "bound": bounds.pop() if len(bounds) == 1 else "mixed" if bounds else "",
    }


def best_setting(trial: Mapping[str, Any], schedule: str, limit: float, key: str = "error") -> int:
    """Return the setting of one schedule whose mean final error over seeds is nearest to the method's limit."""
    final = np.array(trial[key][-1]).mean(axis=0)
    own = [i for i, setting in enumerate(trial["settings"]) if setting["schedule"] == schedule]
    return min(own, key=lambda i: abs(float(final[i]) - limit))


def summarise(rows: Rows, about: Tree) -> Tree:
    """Return the study's tables.

    Args:
        rows: One row per trial.
        about: The configuration, and `limits`: errors by CUT-SIZE-SEED and limit.
    """
    sizes, curve_size = about["config"]["sizes"], about["config"]["curve_size"]
    trials = {(row["cut"], row["size"], row["method"]): row for row in rows if "cut" in row}
    known = next(row["methods"] for row in rows if "methods" in row)
    schedules = sorted({setting["schedule"] for trial in trials.values() for setting in trial["settings"]})
    limits = _limit_table(about["limits"])
    errors: Tree = {}
    curves: Tree = {}

    def limit(cut: str, size: int, method: str) -> float:
        tail = METHODS[method].tail
        found: float = limits[cut][f"monte_carlo_{tail}" if tail else "temporal_difference"][str(size)]["mean"]
        return found

    for cut in CUTS:
        for method in (method for method in METHODS if (cut, sizes[0], method) in trials):
            for schedule in schedules:
                for suffix, key in KEYS.items():
                    if suffix and not method.startswith("c_learning"):
                        continue
                    table = {
                        str(n): _final(trials[cut, n, method], schedule, limit(cut, n, method), key) for n in sizes
                    }
                    errors.setdefault(cut, {}).setdefault(schedule, {})[method + suffix] = table
                curve = _curve(trials[cut, curve_size, method], schedule, limit(cut, curve_size, method))
                curves.setdefault(cut, {}).setdefault(schedule, {})[method] = curve
    found: Tree = {
        "errors": errors,
        "advantages": {
            cut: {schedule: _advantages(sizes, table) for schedule, table in by_schedule.items()}
            for cut, by_schedule in errors.items()
        },
        "advantages_at_one_rate": {cut: _at_one_rate(sizes, by["constant"]) for cut, by in errors.items()},
        "advantages_over_sr_by_rate": {cut: _over_sr(sizes, by["constant"]) for cut, by in errors.items()},
        "limit_errors": limits,
        "limit_advantages": {
            cut: _advantages([*sizes, *about["config"].get("limit_sizes", ())], table, "temporal_difference")
            for cut, table in limits.items()
        },
        "curves": curves,
        "known_model": {name: _known(trial) for name, trial in known.items()},
        "intervals": "95 %: Student's t over seeds, of logarithms for ratios",
        "selection": "learning rate whose error, mean over seeds, is nearest to the limit, at each size and schedule",
    }
    found["known_model_error"] = {name: curve["error"][-1] for name, curve in found["known_model"].items()}
    for row in (row for row in rows if "batch" in row):
        final = _interval(seeds_interval(np.array(row["error"][-1])[:, 0]))
        found.setdefault("by_batch", {}).setdefault(row["method"], {})[str(row["batch"])] = final
    return found


def _final(trial: Mapping[str, Any], schedule: str, limit: float, key: str) -> Tree:
    """Return the final errors of the best setting, and of every learning rate."""
    best = best_setting(trial, schedule, limit, key)
    final = np.array(trial[key][-1])
    by_rate = {
        str(setting["learning_rate"]): final[:, i].tolist()
        for i, setting in enumerate(trial["settings"])
        if setting["schedule"] == schedule
    }
    return {
        "learning_rate": trial["settings"][best]["learning_rate"],
        "per_seed": final[:, best].tolist(),
        **_interval(seeds_interval(final[:, best])),
        "per_seed_by_rate": by_rate,
    }


def _curve(trial: Mapping[str, Any], schedule: str, limit: float) -> Tree:
    """Return the error against gradient steps of the setting with the best final error."""
    best = best_setting(trial, schedule, limit)
    over_seeds = [seeds_interval(np.array(at)[:, best]) for at in trial["error"]]
    return {
        "learning_rate": trial["settings"][best]["learning_rate"],
        "steps": trial["steps"],
        **{part: [getattr(e, part) for e in over_seeds] for part in ("value", "low", "high")},
    }


def _by_size(by_size: Tree, sizes: Sequence[int], rate: str | None = None) -> Reals:
    """Return errors [seeds, sizes] of each size's best learning rate, or of the given rate."""
    own = [by_size[str(n)] for n in sizes]
    return np.array([at["per_seed"] if rate is None else at["per_seed_by_rate"][rate] for at in own]).T


def _advantages(sizes: Sequence[int], table: Tree, ours: str = OURS) -> Tree:
    """Return the ratio of `ours` to each method."""
    own = _by_size(table[ours], sizes)
    return {name: advantage(sizes, own, _by_size(by_size, sizes)) for name, by_size in table.items() if name != ours}


def _at_one_rate(sizes: Sequence[int], table: Tree) -> Tree:
    """Return the ratios with equal constant learning rates for both methods at all sizes, for each common rate."""
    found: Tree = {}
    last = str(sizes[-1])
    for rate in table[OURS][last]["per_seed_by_rate"]:
        ours = _by_size(table[OURS], sizes, rate)
        found[rate] = {
            method: advantage(sizes, ours, _by_size(by_size, sizes, rate))
            for method, by_size in table.items()
            if method != OURS and rate in by_size[last]["per_seed_by_rate"]
        }
    return found


def _over_sr(sizes: Sequence[int], table: Tree) -> Tree:
    """Return the ratio to the successor representation at each of its rates; TD InfoNCE has its best rates."""
    ours = _by_size(table[OURS], sizes)
    rates = table["sr"][str(sizes[-1])]["per_seed_by_rate"]
    return {rate: advantage(sizes, ours, _by_size(table["sr"], sizes, rate)) for rate in rates}


def _limit_table(limits: Mapping[str, Mapping[str, float]]) -> Tree:
    """Return the seeds' errors and their interval by cut, limit and size."""
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for name, of_data in limits.items():
        cut, size, _ = name.split("-")
        for limit, error in of_data.items():
            gathered.setdefault((cut, limit, size), []).append(error)
    table: Tree = {}
    for (cut, limit, size), errors in gathered.items():
        place = table.setdefault(cut, {}).setdefault(limit, {})
        place[size] = {"per_seed": errors, **_interval(seeds_interval(np.array(errors)))}
    return table


def _known(trial: Mapping[str, Any]) -> Tree:
    """Return the complete curve of the setting with the smallest final error."""
    errors = np.array(trial["error"])[:, 0]
    best = int(errors[-1].argmin())
    return {"setting": best, "steps": trial["steps"], "error": errors[:, best].tolist()}


def _interval(estimate: Estimate) -> Tree:
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
