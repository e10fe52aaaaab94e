"""`python -m studies.stitching`: what temporal differences find in offline data and Monte Carlo does not.

The tabular experiments of TD InfoNCE (Zheng et al., ICLR 2024, section 4.4, Fig. 4, 5, 8, 9, Appendix D.4): stitching
pieces of trajectories together, here, and shortcuts, in `studies.stitching.shortcuts`.
`docs/results/stitching.md` reads the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import wilson
from studies.harness import Study, Trial
from studies.occupancy.tabular import Rule, TabularConfig
from studies.stitching.data import CORNER_PAIRS, staircase_data
from studies.stitching.shortcuts import SHORTCUTS, shortcut_cases, shortcut_summary
from studies.stitching.trials import CELLS, Case, Method, run_trial

STAIRCASES = ("alternating", "random")


class StitchingConfig(FrozenConfig):
    """The study; sizes, steps and seeds are the paper's, which gives no discount.

    Attributes:
        seeds: How many data sets of each kind.
        transitions: Of each data set.
        table: How the tables are trained.
        processes: How many cells run at once.
    """

    seeds: int = Field(default=5, ge=1)
    transitions: int = Field(default=20_000, ge=1000)
    table: TabularConfig = Field(default=TabularConfig())
    processes: int = Field(default=2, ge=1)


def staircase_cases(style: str, transitions: int, seeds: Iterable[int]) -> list[Case]:
    """One case a seed, all asked for the eight corner pairs.

    Raises:
        BadInputError: When a trajectory visits both ends of a pair: nothing would be left to stitch.
    """
    cases = []
    for seed in seeds:
        data = staircase_data("alternating" if style == "alternating" else "random", transitions, seed)
        pairs = tuple(
            (start[0] * data.grid.width + start[1], goal[0] * data.grid.width + goal[1]) for start, goal in CORNER_PAIRS
        )
        if any(data.together(*pair) for pair in pairs):
            raise BadInputError(
                f"{style} staircases, seed {seed}",
                "a trajectory that visits start and goal",
                "pairs that no trajectory joins",
                "draw the trajectories anew",
            )
        cases.append(Case(style, seed, data, pairs))
    return cases


def stitching_summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Success over pairs and seeds.

    Args:
        records: Of one method, rule and style.

    Returns:
        The mean, each seed's share of pairs, mean steps of those that arrived, and, where each pair was walked once,
        Wilson's interval over all walks (which takes the pairs of one seed for independent).
    """
    reached = [float(record["reached"]) for record in records]
    by_seed: dict[int, list[float]] = {}
    for record in records:
        by_seed.setdefault(record["seed"], []).append(float(record["reached"]))
    steps = [record["steps"] for record in records if record["steps"] is not None]
    found: dict[str, Any] = {
        "success": float(np.mean(reached)),
        "by_seed": [float(np.mean(shares)) for shares in by_seed.values()],
        "steps": float(np.mean(steps)) if steps else None,
        "n": len(reached),
    }
    if set(reached) <= {0.0, 1.0}:
        interval = wilson(int(sum(reached)), len(reached))
        found |= {"low": interval.low, "high": interval.high}
    return found


def _cases(config: StitchingConfig, experiment: str) -> list[Case]:
    make = staircase_cases if experiment in STAIRCASES else shortcut_cases
    return make(experiment, config.transitions, range(config.seeds))


def stitching_study(config: StitchingConfig, out: Path) -> dict[str, Any]:
    """Run the study, or what is left of it, and write `stitching.json` and the figures.

    Args:
        config: What to run.
        out: A folder for this study alone; one that an interrupted run left is finished.

    Returns:
        What `stitching.json` holds.

    Raises:
        BadInputError: When the folder holds a study of another configuration, or a worker process was killed.
    """
    from studies.stitching.figures import plot_all  # matplotlib is an extra

    study = Study("stitching study", out, config)
    plan = [(experiment, *cell) for experiment in (*STAIRCASES, *SHORTCUTS) for cell in CELLS]
    trials = {
        one: Trial(f"{one[0].replace(' ', '_')}-{one[1]}-{'-'.join(one[2])}", partial(_train, config, number, *one))
        for number, one in enumerate(plan)
    }
    study.run([*trials.values()], config.processes)
    found = {one: study.read(trial.name) for one, trial in trials.items()}
    result = {
        "data": {experiment: _about(_cases(config, experiment)) for experiment in (*STAIRCASES, *SHORTCUTS)},
        "stitching": _summaries(found, STAIRCASES),
        "shortcuts": _summaries(found, SHORTCUTS),
    }
    result = study.finish("stitching", result)
    walks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (experiment, method, _), content in found.items():
        walks.setdefault((experiment, method), []).extend(content["records"])
    plot_all({name: _cases(config, name) for name in (*STAIRCASES, *SHORTCUTS)}, walks, out)
    return result


def _train(
    config: StitchingConfig, number: int, experiment: str, method: Method, rules: tuple[Rule, ...]
) -> dict[str, Any]:
    seed = int(np.random.SeedSequence([number, config.seeds]).generate_state(1)[0])
    return run_trial(_cases(config, experiment), method, rules, config.table, seed=seed)


def _about(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the data of the first seed hold, by case."""
    return [
        {
            "case": case.name,
            "transitions": case.data.transitions,
            "distinct_trajectories": len(case.data.paths),
            "trajectories": sum(case.data.counts),
            "state_actions_seen": int(case.data.seen.sum()),
            "pairs_in_one_trajectory": sum(case.data.together(*pair) for pair in case.pairs),
            "fewest_steps_in_the_data": [case.data.fewest_steps(*pair) for pair in case.pairs],
        }
        for case in cases
        if case.seed == cases[0].seed
    ]


def _summaries(
    found: Mapping[tuple[str, Method, tuple[Rule, ...]], Mapping[str, Any]], experiments: Sequence[str]
) -> dict[str, Any]:
    """Return experiment -> method -> rule -> summary."""
    summarise = stitching_summary if experiments == STAIRCASES else shortcut_summary
    told: dict[str, Any] = {}
    for (experiment, method, rules), content in found.items():
        if experiment in experiments:
            methods = told.setdefault(experiment, {}).setdefault(method, {})
            for rule in rules:
                methods[rule] = summarise([one for one in content["records"] if one["rule"] == rule])
    return told
