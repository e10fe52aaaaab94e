"""Comparison of goal-reaching agents (TD InfoNCE, Fig. 2, Appendix E.1) with several seeds, by the command line.

python -m studies.goal_reaching --preset fetch_reach_matched --out runs/fetch_reach_matched

`holding` measures why a policy stays at its goal or leaves it. It compares values of the policy's training objective,
in nats: standing still at a reached goal against moving away, and moving towards a goal at 0.1 m against moving away
from it. For a perfect critic of a perfect policy, the difference is about -log gamma per step of the way back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from counterpoint.agents import SavedAgent
from counterpoint.agents.contrastive import ContrastiveAgent
from counterpoint.agents.networks import GaussianActor
from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.errors import BadInputError
from studies.harness import Rows, Study, Tree, Trial, file_name, main, over_seeds
from studies.mazes import CONTROLLER, controller_trial, in_the_maze
from studies.plots import COLOURS, curve, legend, panels, plain

SIGNALS = {
    "stay_nats": "staying minus leaving a reached goal, nats",
    "toward_nats": "towards minus away from a goal at 0.1 m, nats",
    "speed_at_goal": "speed at a reached goal",
    "spread_at_goal": "spread of actions at a reached goal",
}
"""Titles, in the tables, of the numbers that `holding` measures."""


class Row(FrozenConfig):
    """One agent.

    Attributes:
        recipe: The recipe for `counterpoint train`.
        overrides: Keys of the recipe that this agent changes.
    """

    recipe: str
    overrides: dict[str, Any] = Field(default={})


class GoalReachingConfig(FrozenConfig):
    """Agents that are compared in one environment.

    Attributes:
        env: The environment's id.
        rows: Agents by name.
        common: Overrides of every row.
        grid: Further overrides of every row, as values by key; every combination of values becomes a separate row.
        pairs: Two rows for each named comparison: success of the first minus success of the second, seed by seed.
        data: The data set of an offline study, recorded by `counterpoint collect pointmaze --suite stitch`.
        prepare: The `counterpoint` command that records the data set.
        seeds: Number of seeds.
        first_seed: The first seed, so that settings can be chosen on seeds that are not reported.
        episodes: Number of episodes of the final evaluation, the same ones for every row and seed.
        holding: True to measure the agents' signals for staying at a goal (`holding`); goals must be gripper positions.
        processes: Number of runs that run in parallel.
    """

    env: str
    rows: dict[str, Row]
    common: dict[str, Any] = Field(default={})
    grid: dict[str, tuple[Any, ...]] = Field(default={})
    pairs: dict[str, tuple[str, str]] = Field(default={})
    data: str | None = None
    prepare: str | None = None
    seeds: PositiveInt = 3
    first_seed: int = Field(default=0, ge=0)
    episodes: int = Field(default=50, ge=1)
    holding: bool = False
    processes: PositiveInt = 2

    @property
    def agents(self) -> dict[str, Row]:
        """The rows, each in every setting of the grid."""
        return {
            " ".join([name, *map(str, chosen.values())]): row.model_copy(update={"overrides": row.overrides | chosen})
            for chosen in combinations(self.grid)
            for name, row in self.rows.items()
        }


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Tree]:
    """Return every combination of a grid's values, by key; an empty grid has one, which is empty."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def goal_reaching_study(config: GoalReachingConfig, out: Path) -> Tree:
    """Train and evaluate every agent and write `goal_reaching.json` and `results.parquet`."""
    study = Study("goal-reaching agents", out, config)
    if config.prepare:
        counterpoint(config.prepare.split(), out / "logs" / "prepare.log")
    trials = [
        Trial(name, partial(_train, config, out / "runs" / name, row, seed), about={"row": row, "seed": seed})
        for seed in range(config.first_seed, config.first_seed + config.seeds)
        for row in config.agents
        for name in [file_name(row, seed)]
    ]
    if config.data:
        about = {"row": CONTROLLER, "seed": config.first_seed}
        trials.insert(0, Trial(CONTROLLER, partial(controller_trial, config.data, config.episodes), about=about))
    study.run(trials, config.processes)
    return study.finish("goal_reaching", summary(study.rows(), {"config": config.model_dump()}))


def command(config: GoalReachingConfig, run: Path, row: str, seed: int) -> list[str]:
    """Return the arguments of `counterpoint` that train one run."""
    section = "train" if config.data else "online"
    keys = config.common | config.agents[row].overrides | {f"{section}.seed": seed}
    # The recorder of a data set names the environment that evaluates on it, cells included.
    source = ["--data", config.data] if config.data else ["--env", config.env]
    return ["train", config.agents[row].recipe, "--out", str(run), *source, *flags(keys)]


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return keys of a recipe with their values as flags of the command line."""
    return [word for key, value in settings.items() for word in _flag(key, value)]


def _flag(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        section, _, name = key.rpartition(".")
        return [f"--{section}.{name}" if value else f"--{section}.no-{name}"]
    if isinstance(value, list | tuple):
        return [f"--{key}", *(str(one) for one in np.array(value).flatten().tolist())]
    return [f"--{key}={value}"]


def _train(config: GoalReachingConfig, run: Path, row: str, seed: int) -> Tree:
    run.mkdir(parents=True, exist_ok=True)
    arguments = command(config, run, row, seed)
    counterpoint(arguments, run.with_name(f"{run.name}.log"))
    counterpoint(["evaluate", str(run), "--episodes", str(config.episodes)], run.with_name(f"{run.name}.log"))
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "command": " ".join(["counterpoint", *arguments]),
        "evaluation": json.loads((run / "evaluation.json").read_text()),
        "curve": [
            {key: line[key] for key in ("step", "success", "closest_distance")}
            for line in lines
            if line["split"] == "eval"
        ],
        **({"holding": holding(SavedAgent.from_pretrained(run / "model"))} if config.holding else {}),
        **(in_the_maze(config.data, config.episodes, run) if config.data else {}),
    }


@torch.no_grad()
def holding(saved: SavedAgent, *, episodes: int = 10, seed: int = 10_000) -> dict[str, float]:
    """Return a contrastive agent's signals for holding a goal, at the states of its own episodes.

    Args:
        saved: An agent of FetchReach, whose first three actions move the gripper.
        episodes: Number of episodes whose states are used, at every fifth step.
        seed: Seed of the first episode.

    Returns:
        `stay_nats`: objective of standing still at the goal minus the mean over moves at full speed along the axes.
        `toward_nats`: objective of moving towards a goal 0.1 m away along an axis minus moving away from it.
        `speed_at_goal`: mean length of the policy's own move at a goal that is reached; 1 is full speed along an axis.
        `spread_at_goal`: mean standard deviation of that move before its tanh.
    """
    agent, env = saved.agent, make_goal_env(EnvConfig.model_validate(saved.env))
    assert isinstance(agent, ContrastiveAgent)
    assert isinstance(agent.actor, GaussianActor)
    seen, places = [], []
    for number in range(episodes):
        observation, _ = env.reset(seed=seed + number)
        over, step = False, 0
        while not over:
            if step % 5 == 0:
                seen.append(observation["observation"])
                places.append(observation["achieved_goal"])
            (action,) = agent.act({key: value[None] for key, value in observation.items()}, rows=[0])
            observation, _, terminated, truncated, _ = env.step(action)
            over, step = terminated or truncated, step + 1
    env.close()
    states, here = agent.tensors(np.stack(seen), np.stack(places))
    axes = torch.cat([torch.eye(3), -torch.eye(3)])
    width = agent.spaces.action

    def objective(move: Float[Tensor, " 3"], goal: Tensor) -> Float[Tensor, ""]:
        action = torch.zeros(len(states), width)
        action[:, :3] = move
        phi, psi = agent.critic.encode_actions(states, action, goal), agent.critic.encode_futures(goal)
        return -agent.objective.cost(agent.objective.score(phi, psi)).mean()

    leave = torch.stack([objective(axis, here) for axis in axes]).mean()
    toward = [objective(axis, here + 0.1 * axis) - objective(-axis, here + 0.1 * axis) for axis in axes]
    loc, scale = agent.actor(torch.cat([states, here], dim=1))
    found = {
        "stay_nats": objective(torch.zeros(3), here) - leave,
        "toward_nats": torch.stack(toward).mean(),
        "speed_at_goal": torch.linalg.vector_norm(torch.tanh(loc[:, :3]), dim=1).mean(),
        "spread_at_goal": scale[:, :3].mean(),
    }
    return {key: float(value) for key, value in found.items()}


def counterpoint(arguments: list[str], log: Path) -> None:
    """Run a command of this library with one thread, and write its output to a file.

    Raises:
        BadInputError: If the command fails; the message has the last line of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "counterpoint", *arguments]
    with log.open("a") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        code = subprocess.run(words, stdout=file, stderr=file, env=environment).returncode
    if code:
        said = (log.read_text().splitlines() or ["nothing"])[-1]
        where, expected = f"counterpoint {' '.join(arguments)}", "a command that succeeds"
        raise BadInputError(where, f"exit code {code} ({said})", expected, f"see {log}")


def summary(rows: Rows, about: Tree | None = None) -> Tree:
    """Return `rows`: for each row, each number's mean over seeds with its interval, and the `runs`, seed by seed.

    For a study with `pairs`, the result also has `pairs`: the differences of success by name, one number per seed.
    """
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = sorted((row for row in rows if row["row"] == name), key=lambda run: run["seed"])
        found[name] = {
            key: over_seeds([run["evaluation"][key]["value"] for run in runs], share=key.startswith("success"))
            for key in ("success", "success_at_end", "closest_distance")
        }
        if all(run["curve"] for run in runs):
            areas = [float(np.mean([one["success"] for one in run["curve"]])) for run in runs]
            found[name]["area"] = over_seeds(areas, share=True)
        if "holding" in runs[0]:
            signals = {key: over_seeds([run["holding"][key] for run in runs]) for key in runs[0]["holding"]}
            found[name]["holding"] = signals
        if "inside" in runs[0]:
            found[name]["inside"] = over_seeds([run["inside"]["success"]["value"] for run in runs], share=True)
        found[name]["runs"] = runs
    pairs = {}
    for name, (one, other) in ((about or {}).get("config", {}).get("pairs") or {}).items():
        values = [np.array(found[row]["success"]["values"]) for row in (one, other)]
        pairs[name] = (values[0] - values[1]).tolist()
    return {"rows": found, "pairs": pairs}


def curves_figure(found: Tree, steps_of: str = "environment steps") -> Any:
    """Return a figure of success over training, with mean and range of the seeds, from the result of `summary`."""
    figure, ((panel,),) = panels(1, 1, 5.6, 3.4)
    rows = {name: row for name, row in found["rows"].items() if all(run["curve"] for run in row["runs"])}
    for (name, row), colour, style in zip(rows.items(), COLOURS, cycle(("-", "--", "-.", ":")), strict=False):
        runs = [[point["success"] for point in run["curve"]] for run in row["runs"]]
        steps = [point["step"] for point in row["runs"][0]["curve"]]
        curve(panel, steps, runs, colour, style, label=f"{name} (n={len(runs)})")
    plain(panel, x=steps_of, y="success", ylim=(-0.03, 1.03))
    legend(figure, panel, columns=2)
    return figure


if __name__ == "__main__":
    main("goal_reaching")
