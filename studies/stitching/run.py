"""`python -m studies.stitching`: what temporal differences find in offline data and Monte Carlo does not.

The tabular experiments of TD InfoNCE (Zheng et al., ICLR 2024, section 4.4, Fig. 4, 5, 8, 9, Appendix D.4): stitching
pieces of trajectories together, here, and shortcuts, in `studies.stitching.shortcuts`.
`docs/studies/stitching.md` reads the results.

Each cell is written when it is finished, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import wilson
from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from studies.occupancy.tabular import Rule, TabularConfig
from studies.pool import Tick, run_side_by_side
from studies.stitching.cells import CELLS, Case, Method, run_cell
from studies.stitching.data import CORNER_PAIRS, staircase_data
from studies.stitching.shortcuts import SHORTCUTS, shortcut_cases, shortcut_summary

__all__ = ["STAIRCASES", "StitchingConfig", "staircase_cases", "stitching_study", "stitching_summary"]

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

    @classmethod
    def quick(cls) -> StitchingConfig:
        """A look at the study in some seconds: fewer seeds and steps. Its numbers are not the study's."""
        return cls(seeds=2, table=TabularConfig(steps=3_000))


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


@dataclass(frozen=True)
class _Cell:
    experiment: str
    method: Method
    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        return f"{self.experiment.replace(' ', '_')}-{self.method}-{'-'.join(self.rules)}"

    def path(self, out: Path) -> Path:
        return out / "cells" / f"{self.name}.json"


def _cells() -> list[_Cell]:
    return [_Cell(experiment, *cell) for experiment in (*STAIRCASES, *SHORTCUTS) for cell in CELLS]


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
    from studies.stitching.figures import draw_all  # matplotlib is an extra

    _claim(config, out)
    left = [cell for cell in _cells() if not cell.path(out).exists()]
    _run(config, left, out)
    cells = {cell: json.loads(cell.path(out).read_text()) for cell in _cells()}
    result = {
        "config": config.model_dump(mode="json"),
        "data": {experiment: _about(_cases(config, experiment)) for experiment in (*STAIRCASES, *SHORTCUTS)},
        "stitching": _summaries(cells, STAIRCASES),
        "shortcuts": _summaries(cells, SHORTCUTS),
        "processor_seconds": round(sum(cell["processor_seconds"] for cell in cells.values()), 1),
        "provenance": provenance(),
    }
    write_atomically(out / "stitching.json", json.dumps(result, indent=1) + "\n")
    walks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell, found in cells.items():
        walks.setdefault((cell.experiment, cell.method), []).extend(found["records"])
    draw_all({name: _cases(config, name) for name in (*STAIRCASES, *SHORTCUTS)}, walks, out)
    return result


def _claim(config: StitchingConfig, out: Path) -> None:
    """Make the folder this study's; the number of processes may differ when it goes on."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    own = config.model_dump(mode="json", exclude={"processes"})
    path = out / "config.json"
    if not path.exists():
        write_atomically(path, json.dumps(own, indent=1))
    elif json.loads(path.read_text()) != own:
        raise BadInputError(
            out,
            "a study of another configuration",
            "an empty folder, or one this configuration began",
            "choose another folder, or remove this one",
        )


def _run(config: StitchingConfig, cells: Sequence[_Cell], out: Path) -> None:
    """Run cells side by side; an interruption loses only those under way."""
    if not cells:
        return
    trained = sum(cell.method in ("td_infonce", "mc_infonce") for cell in cells)
    with ProgressBar("off-policy study", trained * config.table.steps, "gradient steps") as bar:
        parts = [partial(_run_cell, config, cell, out) for cell in cells]
        run_side_by_side("stitching study", parts, config.processes, bar)


def _run_cell(config: StitchingConfig, cell: _Cell, out: Path, tick: Tick) -> None:
    seed = int(np.random.SeedSequence([_cells().index(cell), config.seeds]).generate_state(1)[0])
    cases = _cases(config, cell.experiment)
    torch.set_flush_denormal(True)  # moments that fade to denormal numbers slow Adam down many times
    try:
        found = run_cell(cases, cell.method, cell.rules, config.table, seed=seed, tick=tick)
    finally:
        torch.set_flush_denormal(False)
    write_atomically(cell.path(out), json.dumps(found))


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


def _summaries(cells: Mapping[_Cell, Mapping[str, Any]], experiments: Sequence[str]) -> dict[str, Any]:
    """By experiment, method and rule."""
    summarise = stitching_summary if experiments == STAIRCASES else shortcut_summary
    found: dict[str, Any] = {}
    for cell, content in cells.items():
        if cell.experiment in experiments:
            methods = found.setdefault(cell.experiment, {}).setdefault(cell.method, {})
            for rule in cell.rules:
                methods[rule] = summarise([one for one in content["records"] if one["rule"] == rule])
    return found
