"""Planning in the kitchen with the true dynamics under rewards of language (DecisionNCE, section 5.3, Table 3).

    python -m studies.planning --preset cpu --training.data=DATA --out runs/planning

Rewards are trained on recorded videos of the same kitchen, as rows of `studies.rewards`. A seed sets a reward's initial
weights, its batches and the scenes, which all rewards share. An episode is `solved` if the joint is at its goal at the
end. Success, as the task defines it, needs more than five such steps. A reward of only the last image does not favour
early solutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig, validate
from counterpoint.evaluation.plan import (
    WITHOUT_MODEL,
    PlanConfig,
    language_reward,
    opening_actions,
    plan_episode,
    prepared,
)
from counterpoint.evaluation.rollout import episode_seed
from counterpoint.rewards.model import RewardModel
from studies.harness import (
    Differences,
    Rows,
    Study,
    Tree,
    Trial,
    estimate,
    file_name,
    kept,
    main,
    markdown,
    number,
    over_seeds,
    paired,
)
from studies.rewards.config import RewardsConfig
from studies.rewards.run import TRAIN, WHOLE, fit_row, stores_of
from studies.verdicts import Gate

GATE = 0.8
AGAINST = ("random heads", "clip", "distance")
"""Rewards with which all others are compared."""
PAPER = {"clip": 0.016, "r3m": 0.036, "liv": 0.054, "decisionnce_p": 0.101, "decisionnce_t": 0.122}
"""Success over all tasks in DecisionNCE's Table 3."""
Measure = Literal["progress", "solved", "success"]
MEASURES: tuple[Measure, ...] = ("progress", "solved", "success")


class PlanningConfig(FrozenConfig):
    """Rewards, tasks and scenes.

    Attributes:
        training: Rows of rewards and the videos on which they are trained: the split `train`, or all.
        without_model: Rewards that need no model: `distance` and `constant`.
        tasks: Names of the kitchen's tasks.
        camera: The camera that rewards see.
        planner: Settings of `PlanConfig`.
        seeds: Number of seeds, each with its own weights and scenes.
        scenes: Number of scenes per task and seed.
        processes: Number of trials that run in parallel.
    """

    training: RewardsConfig
    without_model: tuple[Literal["distance", "constant"], ...] = ("distance", "constant")
    tasks: tuple[str, ...] = Field(min_length=1)
    camera: str = "left"
    planner: dict[str, int | float] = Field(default={})
    seeds: PositiveInt = 8
    scenes: PositiveInt = 1
    processes: PositiveInt = 2


def planning_study(config: PlanningConfig, out: Path) -> Tree:
    """Plan every scene under every reward and write `planning.json`, `planning.md` and `results.parquet`.

    Raises:
        BadInputError: If a task or a setting is unknown, or the videos cannot be read.
    """
    study = Study("planning in the kitchen", out, config)
    for task in config.tasks:
        prepared(settings(config, task, 0))[0].close()
    for row in config.training.rows:
        stores_of(config.training, row)  # features are computed here, once for all trials
    rewards = [*config.without_model, *config.training.rows]
    trials = [
        Trial(file_name(reward, task, seed), partial(plan_scenes, config, reward, task, seed), config.scenes, about)
        for seed in range(config.seeds)
        for reward in rewards
        for task in config.tasks
        for about in [{"reward": reward, "task": task, "seed": seed}]
    ]
    study.run(trials, config.processes)
    found = summary(study.rows())
    return study.finish("planning", found, table(found) + "\n")


def settings(config: PlanningConfig, task: str, seed: int) -> PlanConfig:
    """Return the settings of one trial, but for its reward.

    Raises:
        BadInputError: If a setting is unknown.
    """
    own = {"env": f"kitchen/{task}@{config.camera}", "episodes": config.scenes, "seed": seed}
    return validate(PlanConfig, {**config.planner, **own}, "planner")


def plan_scenes(config: PlanningConfig, reward: str, task: str, seed: int) -> Tree:
    """Plan the scenes of one seed."""
    chosen = settings(config, task, seed)
    env, *_ = prepared(chosen)
    make_reward = WITHOUT_MODEL.get(reward) or partial(
        language_reward, model=_trained(config.training.model_dump_json(), reward, seed)
    )
    opening = opening_actions(env, chosen)
    seeds = [episode_seed(seed, 3, number) for number in range(config.scenes)]
    episodes = [{"seed": scene, **plan_episode(env, chosen, make_reward, scene, opening)} for scene in seeds]
    env.close()
    return {"episodes": episodes}


@cache
def _trained(training: str, row: str, seed: int) -> RewardModel:
    """Return a trained reward; a process trains it once for all tasks."""
    config = RewardsConfig.model_validate_json(training)
    stores = stores_of(config, row)
    return fit_row(config, row, stores[TRAIN if TRAIN in stores else WHOLE], seed)


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return, by reward and task and over all tasks, progress, solved and success, and paired differences.

    Returns:
        `table`: by reward and task (or `all`), the means over seeds of `progress`, `solved` and `success` with t
        intervals. `less`: by reward, other reward and number, the difference over all tasks, paired by seed and task.
        `gate`: the share of episodes that the true distance solves, and whether it is enough.
    """
    rewards, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("reward", "task"))
    columns = {**{task: [number] for number, task in enumerate(tasks)}, "all": list(range(len(tasks)))}
    numbers = {reward: {key: measured(rows, reward, key) for key in MEASURES} for reward in rewards}

    def cell(own: Mapping[Measure, Differences], chosen: list[int]) -> Tree:
        by_seed = {key: values[:, chosen].mean(axis=1) for key, values in own.items()}
        return {key: over_seeds(values.tolist(), share=key != "progress") for key, values in by_seed.items()}

    def differences(reward: str, other: str) -> Tree:
        return {key: paired(numbers[reward][key] - numbers[other][key]).as_json() for key in MEASURES}

    grid = {reward: {name: cell(own, chosen) for name, chosen in columns.items()} for reward, own in numbers.items()}
    against = {reward: [other for other in AGAINST if other != reward and other in numbers] for reward in rewards}
    less = {reward: {other: differences(reward, other) for other in others} for reward, others in against.items()}
    reached = grid["distance"]["all"]["solved"]["mean"] if "distance" in grid else None
    return {"table": grid, "less": less, "gate": {"solved": reached, "passed": reached is not None and reached >= GATE}}


def measured(rows: Rows, reward: str, key: Measure) -> Differences:
    """Return a number of each seed and task, the mean over scenes."""
    found = {(row["seed"], row["task"]): row["episodes"] for row in rows if row["reward"] == reward}
    seeds, tasks = (list(dict.fromkeys(name[at] for name in found)) for at in (0, 1))
    return np.array([[np.mean([one[key] for one in found[seed, task]]) for task in tasks] for seed in seeds])


def table(found: Tree) -> str:
    """Return a Markdown table of rewards: progress by task, and over all tasks the share of episodes solved."""
    names, rows = list(next(iter(found["table"].values()))), []
    for reward, cells in found["table"].items():
        own = [estimate(cells[name]["progress"]) for name in names]
        ends = [estimate(cells["all"][key]) for key in ("solved", "success")]
        against = [estimate(found["less"][reward].get(other, {}).get("progress")) for other in AGAINST]
        paper = number(PAPER[reward], 3) if reward in PAPER else ""
        rows.append([reward, *own, *ends, paper, *against])
    head = ["reward", *names, "solved", "success", "success in the paper"]
    return markdown([*head, *(f"all minus {other}" for other in AGAINST)], rows)


def less(name: str, reward: str, other: str, key: Measure) -> Differences:
    """Return a number under a reward of a stored study minus the number under another, by seed and task."""
    rows = kept(name)["rows"]
    return measured(rows, reward, key) - measured(rows, other, key)


def solves(name: str) -> Gate:
    """Return a gate: the true distance solves `GATE` of the episodes."""
    reached = kept(name, summary)["gate"]
    return Gate(f"the true distance solves {reached['solved']:.2f} (at least {GATE})", reached["passed"])


if __name__ == "__main__":
    main("planning")
