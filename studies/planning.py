"""Planning in the kitchen with the true dynamics under rewards of language (DecisionNCE, section 5.3, Table 3).

    python -m studies.planning --preset cpu --encoders=runs/lcbc --out runs/planning

Rewards are compared on the same scenes. The encoders were trained by `studies.lcbc`; each of its seeds has its own
scenes. The main number is the joint's progress at an episode's end. An episode is `solved` if the joint is at its goal
at the end. Success, as the task defines it, needs more than five such steps. A reward of only the last image does not
favour early solutions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig, validate
from counterpoint.errors import require
from counterpoint.evaluation.plan import WITHOUT_MODEL, PlanConfig, plan, prepared
from counterpoint.evaluation.statistics import mean_bca, wilson
from studies.harness import Differences, Rows, Study, Tree, Trial, estimate, file_name, kept, main, markdown
from studies.lcbc.trials import Pretraining
from studies.verdicts import Gate

GATE = 0.8
AGAINST = ("random", "constant", "distance")
"""Rewards with which all others are compared."""


class PlanningConfig(FrozenConfig):
    """Rewards, tasks and scenes.

    Attributes:
        encoders: Folder of a study of language-conditioned cloning; its encoders are used as rewards.
        rewards: Names of these encoders, and `distance` and `constant`.
        tasks: Names of the kitchen's tasks.
        camera: The camera that rewards see.
        planner: Settings of `PlanConfig`.
        seeds: Seeds of the encoders.
        scenes: Number of scenes per task and seed.
        processes: Number of trials that run in parallel.
    """

    encoders: str
    rewards: tuple[str, ...] = Field(min_length=1)
    tasks: tuple[str, ...] = Field(min_length=1)
    camera: str = "left"
    planner: dict[str, int | float] = Field(default={})
    seeds: PositiveInt = 3
    scenes: PositiveInt = 4
    processes: PositiveInt = 2


def planning_study(config: PlanningConfig, out: Path) -> Tree:
    """Plan every scene under every reward and write `planning.json`, `planning.md` and `results.parquet`."""
    study = Study("planning in the kitchen", out, config)
    trials = [
        Trial(file_name(reward, task, seed), partial(plan_scenes, config, reward, task, seed), config.scenes, about)
        for seed in range(config.seeds)
        for task in config.tasks
        for reward in config.rewards
        for about in [{"reward": reward, "task": task, "seed": seed}]
    ]
    for reward in config.rewards:
        for seed in range(config.seeds):
            settings(config, reward, config.tasks[0], seed)
        for task in config.tasks:
            prepared(settings(config, reward, task, 0))[0].close()
    study.run(trials, config.processes)
    found = summary(study.rows())
    return study.finish("planning", found, table(found) + "\n")


def settings(config: PlanningConfig, reward: str, task: str, seed: int) -> PlanConfig:
    """Return the settings of one trial.

    Raises:
        BadInputError: If the encoder was not trained, or a setting is unknown.
    """
    source = reward
    if reward not in WITHOUT_MODEL:
        folder = Path(config.encoders) / "encoders" / Pretraining(reward, seed).name / "model"
        hint = "run `python -m studies.lcbc` first, and name its folder by --encoders"
        require((folder / "config.json").exists(), folder, "no encoder", f"seed {seed} of {reward}", hint)
        source = str(folder)
    own = {"env": f"kitchen/{task}@{config.camera}", "reward": source, "episodes": config.scenes, "seed": seed}
    return validate(PlanConfig, {**config.planner, **own}, "planner")


def plan_scenes(config: PlanningConfig, reward: str, task: str, seed: int) -> Tree:
    """Plan the scenes of one seed."""
    with TemporaryDirectory() as folder:
        found = plan(settings(config, reward, task, seed), Path(folder) / "plan.json")
    return {"episodes": found["episodes"], "actions_a_second": found["actions_a_second"]}


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return, by reward and task and over all tasks, progress, solved and success, and paired differences in progress.

    Intervals are over scenes, each the mean over tasks, so they are valid only for the encoders that were trained.

    Returns:
        `table`: by reward and task (or `all`), `progress` (bootstrap), `solved` and `success` (Wilson, over episodes).
        `less`: by reward and other reward, the difference in progress over all tasks, paired by scene. `gate`.
    """
    rewards, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("reward", "task"))
    seeds = sorted({row["seed"] for row in rows})
    found = {(row["reward"], row["task"], row["seed"]): row["episodes"] for row in rows}

    def numbers(reward: str, key: str, chosen: list[str]) -> NDArray[np.float64]:
        """Return [tasks, scenes of all seeds]."""
        return np.array([[one[key] for seed in seeds for one in found[reward, task, seed]] for task in chosen], float)

    def cell(reward: str, chosen: list[str]) -> Tree:
        own: Tree = {"progress": mean_bca(numbers(reward, "progress", chosen).mean(0)).as_json()}
        for key in ("solved", "success"):
            counted = numbers(reward, key, chosen)
            own[key] = wilson(int(counted.sum()), counted.size).as_json()
        return own

    def difference(reward: str, other: str) -> Tree:
        ours, theirs = (numbers(name, "progress", tasks).mean(0) for name in (reward, other))
        return mean_bca(ours - theirs).as_json()

    columns = {**{task: [task] for task in tasks}, "all": tasks}
    grid = {reward: {name: cell(reward, chosen) for name, chosen in columns.items()} for reward in rewards}
    less = {one: {other: difference(one, other) for other in rewards if other != one} for one in rewards}
    reached = grid["distance"]["all"]["solved"]["value"] if "distance" in grid else None
    return {"table": grid, "less": less, "gate": {"solved": reached, "passed": reached is not None and reached >= GATE}}


def table(found: Tree) -> str:
    """Return a Markdown table of rewards by tasks: progress, and the number of solved and of successful episodes."""
    names = list(next(iter(found["table"].values())))
    rows = []
    for reward, cells in found["table"].items():
        own = [estimate(cells[name]["progress"]) for name in names]
        ends = [f"{cells['all'][key]['value']:.2f}" for key in ("solved", "success")]
        against = [estimate(found["less"].get(reward, {}).get(other)) for other in AGAINST]
        rows.append([reward, *own, *ends, *against])
    return markdown(["reward", *names, "solved", "success", *(f"all minus {other}'s" for other in AGAINST)], rows)


def planned(name: str, reward: str) -> Differences:
    """Return the joint's progress under a reward of a stored study, mean over scenes, by seed and task."""
    found = {(row["seed"], row["task"]): row["episodes"] for row in kept(name)["rows"] if row["reward"] == reward}
    seeds, tasks = (sorted({key[at] for key in found}) for at in (0, 1))
    return np.array([[np.mean([one["progress"] for one in found[seed, task]]) for task in tasks] for seed in seeds])


def solves(name: str) -> Gate:
    """Return a gate: the true distance solves `GATE` of the episodes."""
    reached = kept(name, summary)["gate"]
    return Gate(f"the true distance solves {reached['solved']:.2f} (at least {GATE})", reached["passed"])


if __name__ == "__main__":
    main("planning")
