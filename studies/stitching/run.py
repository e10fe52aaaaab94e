"""`python -m studies.stitching`: paths that temporal differences find in offline data and Monte Carlo does not.

The tabular experiments of TD InfoNCE (Zheng et al., ICLR 2024, section 4.4, Fig. 4, 5, 8, 9, Appendix D.4). In
`stitching`, a policy must join pieces of trajectories. In `shortcuts`, nearly all trajectories take the long way. There
are two kinds of short ways. The first branches off at the start, and some trajectories take it from start to goal. The
second exists only in two pieces, which no trajectory joins, so finding it needs dynamic programming.
`docs/results/stitching.md` discusses the results.

A trial is one method under one rule on one experiment, with all seeds in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.errors import require
from counterpoint.evaluation.statistics import wilson
from studies.harness import Rows, Study, Tree, Trial, file_name
from studies.occupancy.tabular import Rule, TabularConfig
from studies.stitching import figures
from studies.stitching.data import CORNER_PAIRS, LAYOUTS, shortcut_data, staircase_data, walk
from studies.stitching.trials import CELLS, Case, Method, run_trial

STAIRCASES, SHORTCUTS = ("alternating", "random"), ("branching", "two pieces")


class StitchingConfig(FrozenConfig):
    """The configuration of the study; sizes, steps and seeds are the paper's, which does not state the discount.

    Attributes:
        seeds: Number of data sets of each kind.
        transitions: Transitions of each data set.
        table: Training of the tables.
        processes: Number of trials that run in parallel.
    """

    seeds: int = Field(default=5, ge=1)
    transitions: int = Field(default=20_000, ge=1000)
    table: TabularConfig = Field(default=TabularConfig())
    processes: int = Field(default=2, ge=1)


def stitching_study(config: StitchingConfig, out: Path) -> Tree:
    """Run the study and write `stitching.json`, `results.parquet` and the figures.

    Args:
        config: The configuration.
        out: A folder for only this study; an interrupted run resumes.

    Returns:
        The content of `stitching.json`.

    Raises:
        BadInputError: If the folder holds another study, or a worker process was killed.
    """
    study = Study("stitching study", out, config)
    plan = [(experiment, *cell) for experiment in (*STAIRCASES, *SHORTCUTS) for cell in CELLS]
    trials = [
        Trial(
            file_name(experiment, method, *rules),
            partial(_train, config, number, experiment, method, rules),
            about={"experiment": experiment, "method": method},
        )
        for number, (experiment, method, rules) in enumerate(plan)
    ]
    study.run(trials, config.processes)
    rows = study.rows()
    figures.plot_all({name: cases_of(config, name) for name in (*STAIRCASES, *SHORTCUTS)}, rows, out)
    data = {experiment: _about(cases_of(config, experiment)) for experiment in (*STAIRCASES, *SHORTCUTS)}
    return study.finish("stitching", summary(rows), facts={"data": data})


def _train(config: StitchingConfig, number: int, experiment: str, method: Method, rules: tuple[Rule, ...]) -> Tree:
    seed = int(np.random.SeedSequence([number, config.seeds]).generate_state(1)[0])
    return run_trial(cases_of(config, experiment), method, rules, config.table, seed=seed)


def cases_of(config: StitchingConfig, experiment: str) -> list[Case]:
    """Return the data sets of an experiment."""
    make = staircase_cases if experiment in STAIRCASES else shortcut_cases
    return make(experiment, config.transitions, range(config.seeds))


def staircase_cases(style: str, transitions: int, seeds: Iterable[int]) -> list[Case]:
    """Return one case per seed, each with the eight corner pairs.

    Raises:
        BadInputError: If a trajectory visits both ends of a pair, so that no stitching would be needed.
    """
    cases = []
    for seed in seeds:
        data = staircase_data("alternating" if style == "alternating" else "random", transitions, seed)
        width = data.grid.width
        pairs = tuple((start[0] * width + start[1], goal[0] * width + goal[1]) for start, goal in CORNER_PAIRS)
        where, found = f"{style} staircases, seed {seed}", "a trajectory that visits start and goal"
        ok = not any(data.together(*pair) for pair in pairs)
        require(ok, where, found, "pairs that no trajectory joins", "choose another seed")
        cases.append(Case(style, seed, data, pairs))
    return cases


def shortcut_cases(kind: str, transitions: int, seeds: Iterable[int]) -> list[Case]:
    """Return one case per layout and seed; `kind` is one of `SHORTCUTS`."""
    cases = []
    for number, layout in enumerate(LAYOUTS):
        for seed in seeds:
            data = shortcut_data(layout, kind == "two pieces", transitions, seed=1000 * number + seed)
            way = walk(data.grid, layout.start, layout.long).states
            cases.append(Case(layout.name, seed, data, ((way[0], way[-1]),)))
    return cases


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `stitching` and `shortcuts`, each with summaries by experiment, method and rule."""
    found: Tree = {"stitching": {}, "shortcuts": {}}
    order = [(experiment, method) for experiment in (*STAIRCASES, *SHORTCUTS) for method, _ in CELLS]
    for row in sorted(rows, key=lambda row: order.index((row["experiment"], row["method"]))):
        stairs = row["experiment"] in STAIRCASES
        place = found["stitching" if stairs else "shortcuts"].setdefault(row["experiment"], {})
        for rule in dict.fromkeys(record["rule"] for record in row["records"]):
            records = [record for record in row["records"] if record["rule"] == rule]
            own = stitching_summary(records) if stairs else shortcut_summary(records)
            place.setdefault(row["method"], {})[rule] = own
    return found


def stitching_summary(records: Rows) -> Tree:
    """Summarise success over pairs and seeds.

    Args:
        records: The walks of one method, rule and style.

    Returns:
        The mean, each seed's share of solved pairs, the mean steps of walks that arrived, and, if each pair was walked
        once, Wilson's interval over all walks (as if the pairs of one seed were independent).
    """
    reached = [float(record["reached"]) for record in records]
    by_seed: dict[int, list[float]] = {}
    for record in records:
        by_seed.setdefault(record["seed"], []).append(float(record["reached"]))
    steps = [record["steps"] for record in records if record["steps"] is not None]
    found: Tree = {
        "success": float(np.mean(reached)),
        "by_seed": [float(np.mean(shares)) for shares in by_seed.values()],
        "steps": float(np.mean(steps)) if steps else None,
        "n": len(reached),
    }
    if set(reached) <= {0.0, 1.0}:
        interval = wilson(int(sum(reached)), len(reached))
        found |= {"low": interval.low, "high": interval.high}
    return found


def shortcut_summary(records: Rows) -> Tree:
    """Summarise layouts: the lengths of both ways, the steps of each seed, and how many always took the short way.

    Args:
        records: The walks of one method, rule and kind. Steps are `None` if the goal was not reached.
    """
    layouts: dict[str, Tree] = {}
    for layout in LAYOUTS:
        own = [record for record in records if record["case"] == layout.name]
        always = [record["steps"] for record in own if record["reached"] == 1]
        layouts[layout.name] = {
            "short": len(layout.short),
            "long": len(layout.long),
            "steps": [record["steps"] for record in own],
            "reached": [record["reached"] for record in own],
            "took_short": always.count(len(layout.short)),
            "took_long": always.count(len(layout.long)),
            "n": len(own),
        }
    totals = {key: sum(one[key] for one in layouts.values()) for key in ("took_short", "took_long", "n")}
    return {**totals, "layouts": layouts}


def _about(cases: list[Case]) -> list[Tree]:
    """Describe the data of the first seed, case by case."""
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
