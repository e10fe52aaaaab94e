"""Goal-reaching agents side by side (TD InfoNCE, Fig. 2, Appendix E.1), through the command line, several seeds each.

python -m studies.goal_reaching --preset fetch_reach --out runs/fetch_reach
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig
from studies.harness import Rows, Study, Tree, Trial, file_name, main, over_seeds


class Row(FrozenConfig):
    """One agent.

    Attributes:
        recipe: The recipe that `counterpoint train` is given.
        overrides: Its own keys.
    """

    recipe: str
    overrides: dict[str, Any] = Field(default={})


class GoalReachingConfig(FrozenConfig):
    """Agents that are compared in one environment.

    Attributes:
        env: The environment's id.
        rows: Agents by name.
        common: Overrides of every row.
        data: The data set of an offline study.
        prepare: The `counterpoint` command that records the data set.
        seeds: Number of seeds.
        episodes: Episodes of the final evaluation, the same for every row and seed.
        processes: Runs at a time.
    """

    env: str
    rows: dict[str, Row]
    common: dict[str, Any] = Field(default={})
    data: str | None = None
    prepare: str | None = None
    seeds: PositiveInt = 3
    episodes: int = Field(default=50, ge=1)
    processes: PositiveInt = 2


def goal_reaching_study(config: GoalReachingConfig, out: Path) -> Tree:
    """Train and evaluate every agent and write `goal_reaching.json` and `results.parquet`."""
    study = Study("goal-reaching agents", out, config)
    if config.prepare:
        _counterpoint(config.prepare.split(), out / "logs" / "prepare.log")
    trials = [
        Trial(name, partial(_train, config, out / "runs" / name, row, seed), about={"row": row, "seed": seed})
        for seed in range(config.seeds)
        for row in config.rows
        for name in [file_name(row, seed)]
    ]
    study.run(trials, config.processes)
    return study.finish("goal_reaching", summary(study.rows()))


def command(config: GoalReachingConfig, run: Path, row: str, seed: int) -> list[str]:
    """Return the arguments of `counterpoint` that train one run."""
    section = "train" if config.data else "online"
    keys = config.common | config.rows[row].overrides | {f"{section}.seed": seed}
    # The recorder of a data set names the environment that evaluates on it, cells included.
    source = ["--data", config.data] if config.data else ["--env", config.env]
    flags = [word for key, value in keys.items() for word in _flag(key, value)]
    return ["train", config.rows[row].recipe, "--out", str(run), *source, *flags]


def _flag(key: str, value: Any) -> list[str]:
    """Return a key of a recipe as the command line takes it."""
    if isinstance(value, bool):
        section, _, name = key.rpartition(".")
        return [f"--{section}.{name}" if value else f"--{section}.no-{name}"]
    if isinstance(value, list | tuple):
        return [f"--{key}", *(str(one) for one in np.array(value).flatten().tolist())]
    return [f"--{key}={value}"]


def _train(config: GoalReachingConfig, run: Path, row: str, seed: int) -> Tree:
    run.mkdir(parents=True, exist_ok=True)
    arguments = command(config, run, row, seed)
    _counterpoint(arguments, run.with_suffix(".log"))
    _counterpoint(["evaluate", str(run), "--episodes", str(config.episodes)], run.with_suffix(".log"))
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "command": " ".join(["counterpoint", *arguments]),
        "evaluation": json.loads((run / "evaluation.json").read_text()),
        "curve": [
            {key: line[key] for key in ("step", "success", "closest_distance")}
            for line in lines
            if line["split"] == "eval"
        ],
    }


def _counterpoint(arguments: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "counterpoint", *arguments], check=True, stdout=file, stderr=file, env=environment
        )


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: row -> each number's mean over seeds with its interval, and the `runs`, seed by seed."""
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = sorted((row for row in rows if row["row"] == name), key=lambda run: run["seed"])
        found[name] = {
            key: over_seeds([run["evaluation"][key]["value"] for run in runs], share=key.startswith("success"))
            for key in ("success", "success_at_end", "closest_distance")
        }
        found[name]["runs"] = runs
    return {"rows": found}


if __name__ == "__main__":
    main("goal_reaching")
