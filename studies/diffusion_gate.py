"""The settings under which a small diffusion policy learns, changed one at a time, on Lift, from poses or images.

    python -m studies.diffusion_gate --preset state --out runs/diffusion_gate_state --keep diffusion_gate_state

The study records demonstrations with the scripted expert, trains every row with every seed, and rolls each policy out
in unseen scenes, with each way of acting that its row names.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig, validate
from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig, collect_robosuite
from counterpoint.evaluation.evaluate import task_maker
from counterpoint.evaluation.rollout import episode_seed, rollout
from counterpoint.evaluation.statistics import wilson
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from studies.harness import Rows, Study, Tree, Trial, file_name, main, markdown, number


class Row(FrozenConfig):
    """A row of the table.

    Attributes:
        data: Name of the demonstrations.
        changes: Keys of the recipe that differ from `training`.
        acting: Names of the ways of acting with which the policy is rolled out.
    """

    data: str
    changes: dict[str, Any] = Field(default={})
    acting: tuple[str, ...] = Field(default=("as trained",), min_length=1)


class DiffusionGateConfig(FrozenConfig):
    """Policies that are compared.

    Attributes:
        task: A task of robosuite.
        data: Settings of `collect robosuite`, by the name of the demonstrations.
        recipe: The recipe.
        training: Keys of the recipe that all rows share.
        rows: The rows by name.
        acting: Arguments of `DiffusionPolicy.acting`, by the name of the way of acting.
        seeds: Seeds of training.
        episodes: Unseen scenes, the same ones for every policy.
        envs: Number of parallel simulations.
        seed: Random seed of the scenes.
        processes: Number of policies that are trained in parallel.
    """

    task: str = "Lift"
    data: dict[str, dict[str, Any]]
    recipe: str = "diff_c-robosuite-state"
    training: dict[str, Any] = Field(default={})
    rows: dict[str, Row]
    acting: dict[str, dict[str, Any]] = Field(default={"as trained": {}})
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    episodes: PositiveInt = 20
    envs: PositiveInt = 2
    seed: int = 0
    processes: PositiveInt = 1


def diffusion_gate_study(config: DiffusionGateConfig, out: Path) -> Tree:
    """Record, train and roll out; write `diffusion_gate.json`, `diffusion_gate.md` and `results.parquet`."""
    for row in config.rows.values():
        load_recipe(config.recipe, config.training | row.changes)
    study = Study("diffusion policies", out, config, free=("processes", "seeds"))  # more seeds may follow
    for name, settings in config.data.items():
        given = {"tasks": (config.task,), "workers": 1, **settings, "out": out / "data" / name}
        collect_robosuite(validate(RobosuiteCollectConfig, given, f"data.{name}"))
    trials = [  # seed after seed: a study cut short has whole tables of the first seeds
        Trial(
            file_name(name.replace(",", ""), seed),
            partial(measure, config, out, name, seed),
            load_recipe(config.recipe, config.training | row.changes).loop.steps or 1,
            {"row": name, "seed": seed, "data": row.data},
        )
        for seed in config.seeds
        for name, row in config.rows.items()
    ]
    study.run(trials, config.processes)
    rows = study.rows()
    return study.finish("diffusion_gate", {"rows": summary(rows)}, table(rows))


def measure(config: DiffusionGateConfig, out: Path, name: str, seed: int) -> Tree:
    """Train one policy; return the errors of its sampled actions and the scenes it solved under each way of acting."""
    row, folder = config.rows[name], out / "runs" / file_name(name.replace(",", ""), seed)
    own = {"train.seed": seed, "train.trackers": [], "train.keep": 1, "data.cache": str(out / "cache")}
    run = train(config.recipe, out / "data" / row.data, folder, overrides=config.training | row.changes | own)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    errors = {line["split"]: line for line in lines if "action_error" in line}  # those of the last evaluation
    policy = DiffusionPolicy.from_pretrained(run.model)
    seeds = [episode_seed(config.seed, 2, number) for number in range(config.episodes)]
    solved = {}
    for way in row.acting:
        acting = policy.acting(**config.acting[way])
        make, until_solved = task_maker(acting, f"robosuite/{config.task}")
        results = rollout(acting, make, seeds, envs=config.envs, stop_at_success=until_solved)
        solved[way] = [bool(result.success) for result in results]
    return {"solved": solved, "errors": errors, "numbers": sum(p.numel() for p in policy.parameters())}


def summary(rows: Rows) -> list[Tree]:
    """Return, for each row and way of acting, the scenes solved over all seeds and the errors of sampled actions."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows):
        own = sorted((row for row in rows if row["row"] == name), key=lambda row: row["seed"])
        errors = {
            f"{split} {key}": sum(row["errors"][split][key] for row in own) / len(own)
            for split in ("seen", "val")
            for key in ("action_error", "gripper_wrong")
        }
        for way in own[0]["solved"]:
            each = [row["solved"][way] for row in own]
            scenes = [scene for seed in each for scene in seed]
            lines.append(
                {
                    "row": name,
                    "acting": way,
                    "success": wilson(sum(scenes), len(scenes)).as_json(),
                    "each": [sum(seed) / len(seed) for seed in each],
                    "minutes": sum(row["processor_seconds"] for row in own) / len(own) / 60,
                    **errors,
                }
            )
    return lines


def table(rows: Rows) -> str:
    """Return the summary as Markdown."""
    head = (
        "row", "acting", "scenes solved", "share solved, each seed", "error, seen", "error, unseen",
        "gripper wrong, unseen", "minutes",
    )  # fmt: skip
    cells = []
    for line in summary(rows):
        share = line["success"]
        cells.append(
            [
                line["row"],
                line["acting"],
                f"{share['value']:.2f} [{share['low']:.2f}, {share['high']:.2f}] of {share['n']}",
                ", ".join(number(value) for value in line["each"]),
                number(line["seen action_error"], 3),
                number(line["val action_error"], 3),
                f"{line['val gripper_wrong']:.1%}",
                number(line["minutes"], 1),
            ]
        )
    return markdown(head, cells)


if __name__ == "__main__":
    main("diffusion_gate")
