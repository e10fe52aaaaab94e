"""Success and return of experts: dm_control's planners with the true dynamics, and scripted ones of other suites.

    python -m studies.experts --preset robosuite --out runs/robosuite_experts

Seeds differ from those on which the planners' settings were chosen, and from those of collected data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from counterpoint.config import FrozenConfig
from counterpoint.envs.collect import episode_seed, versions
from counterpoint.envs.make import make_env
from counterpoint.evaluation.statistics import wilson
from studies.harness import Study, Tree, Trial, file_name, main
from studies.lcbc.config import suite_of
from studies.lcbc.data import env_options

FIRST_SEED = 10_000
RANDOM_EPISODES = 5


class ExpertsConfig(FrozenConfig):
    """Tasks and episodes.

    Attributes:
        suite: `dmc`, `robosuite`, or `lcbc`, the suites of language-conditioned cloning.
        tasks: Task names, for `lcbc` as `SUITE/TASK`; by default all tasks with an expert.
        episodes: Number of episodes per task.
        noise: Standard deviations of Gaussian noise on scripted experts' actions.
        steps: Actions of a dm_control episode.
        processes: Number of trials that run in parallel.
    """

    suite: Literal["dmc", "robosuite", "lcbc"]
    tasks: tuple[str, ...] = ()
    episodes: PositiveInt = 3
    noise: tuple[float, ...] = (0.0,)
    steps: PositiveInt = 500
    processes: PositiveInt = 2


def experts_study(config: ExpertsConfig, out: Path) -> Tree:
    """Run every expert and write `SUITE_experts.json` and `results.parquet`."""
    study, trials, facts = Study(f"{config.suite} experts", out, config), [], {}
    if config.suite == "dmc":
        from counterpoint.envs.dmc.env import EVALUATION, PRETRAINING, DMCEnv, resolve_dmc_tasks

        for task in resolve_dmc_tasks(config.tasks or [*PRETRAINING, *EVALUATION]):
            trials.append(Trial(task, partial(_plan, task, config.episodes, config.steps), about={"task": task}))
        facts = {"highest_possible_return": 2 * config.steps, "versions": versions(DMCEnv.packages)}
    else:
        names = _robosuite(config.tasks) if config.suite == "robosuite" else config.tasks
        for name in names:
            for noise in config.noise:
                task = f"{name.removeprefix('robosuite/')} noise {noise:g}"
                trials.append(
                    Trial(file_name(task), partial(_script, name, noise, config.episodes), about={"task": task})
                )
        facts = {"first_seed": FIRST_SEED}
    study.run(trials, config.processes)
    tasks = {trial.about["task"]: study.read(trial.name) for trial in trials}
    return study.finish(f"{config.suite}_experts", {"tasks": tasks}, facts=facts)


def _plan(name: str, episodes: int, steps: int) -> Tree:
    """Plan with the true dynamics, and for comparison act at random."""
    from counterpoint.envs.dmc.collect import DMCActor
    from counterpoint.envs.dmc.env import DMCEnv
    from counterpoint.envs.dmc.planner import planner_config

    task = DMCEnv(name)
    task.look = False

    def play(actor: DMCActor, number: int) -> float:
        seed = episode_seed(1, name, "test", number)
        task.reset(seed=seed)
        actor.reset(seed)
        return round(sum(task.step(actor.act())[1] for _ in range(steps)), 2)

    played = []
    for number in range(episodes):
        actor, started = DMCActor(task, "expert", number), time.perf_counter()
        earned = play(actor, number)
        each = round((time.perf_counter() - started) / steps, 4)
        played.append({"seed": episode_seed(1, name, "test", number), "return": earned, "seconds_an_action": each})
    chance = [play(DMCActor(task, "random", 0), number) for number in range(RANDOM_EPISODES)]
    return {
        "planner": planner_config(name).model_dump(),
        "expert_return": round(mean(one["return"] for one in played), 2),
        "random_return": round(mean(chance), 2),
        "n": episodes,
        "episodes": played,
        "random_episodes": chance,
        "steps": steps,
    }


def _robosuite(tasks: Sequence[str]) -> list[str]:
    """Return the names of robosuite tasks (by default all) with their robots, as `make_env` takes them."""
    from counterpoint.envs.robosuite.env import ROBOTS, resolve_robosuite, robosuite_name

    every = [(task, robot) for task in ("Lift", "Door", "Stack") for robot in ROBOTS]
    return [robosuite_name(*pair) for pair in [resolve_robosuite(task) for task in tasks] or every]


def _script(name: str, noise: float, episodes: int) -> Tree:
    """Run a scripted expert; an episode's result is the number of the action after which it succeeded."""
    task: Any = make_env(name, cameras=[], **env_options(suite_of(name)))

    def solved_after(seed: int) -> int | None:
        task.reset(seed=seed)
        random = np.random.default_rng(seed)
        for step in range(task.horizon):
            action = task.expert() + noise * random.standard_normal(task.action_dim)
            *_, info = task.step(action.clip(-1.0, 1.0))
            if info["is_success"]:
                return step + 1
        return None

    played = [{"seed": seed, "solved_after": solved_after(seed)} for seed in range(FIRST_SEED, FIRST_SEED + episodes)]
    steps = [one["solved_after"] for one in played if one["solved_after"] is not None]
    return {
        "noise": noise,
        "versions": versions(task.packages),
        "success": asdict(wilson(len(steps), len(played))),
        "steps_median": median(steps) if steps else None,
        "steps_most": max(steps, default=None),
        "episodes": played,
    }


if __name__ == "__main__":
    main("experts")
