"""Record dm_control tasks as LeRobot v3 data sets, one per task: `counterpoint collect dmc`.

Tasks have actions and states of different sizes, so OUT is a folder with one data set per task, such as
`OUT/walker-walk`. `MultiTaskStore` opens the folder as one data set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from pydantic import Field

from counterpoint.envs.base import CameraEnv
from counterpoint.envs.collect import CollectConfig, Collection, Names, Slot, collect, require_collected
from counterpoint.envs.dmc.env import ACTION_REPEAT, HARD_DOMAINS, HORIZON, TASKS, DMCEnv, resolve_dmc_tasks
from counterpoint.envs.dmc.planner import Planner, planner_config
from counterpoint.envs.recording import NoisyExpert, Recording, record
from counterpoint.envs.rendering import render_settings
from counterpoint.errors import require
from counterpoint.planning.shooting import MPPIConfig

Kind = Literal["random", "exploratory", "expert"]


class DMCCollectConfig(CollectConfig):
    """The settings of `collect dmc`; see `CollectConfig`.

    Attributes:
        out: The folder of the data sets.
        tasks: Names of tasks, `pretraining` (Premier-TACO's six) or `evaluation` (the ten of its Table 1).
        kind: The source of actions: `random` (actions from U(-1, 1)), `exploratory` (a planner of varying skill,
            instead of Premier-TACO's replay buffer of DrQ-v2) or `expert` (a planner with the true dynamics).
        episodes: Number of training episodes per task. The defaults are Premier-TACO's: 20 for the kind `expert` (100
            for humanoid and dog), 200 for the other kinds.
        steps: Number of actions per episode, each of two control steps; at most 500.
        size: Height and width of the images, in pixels.
        camera: Name or number of a camera that all tasks' models have; by default the camera that DrQ-v2 uses.
        noise_first: Standard deviation of the noise of the least skilled exploratory episode.
        noise_last: Standard deviation of the noise of the most skilled exploratory episode.
        least_return: Minimum return of an expert's episode, as a share of the highest possible return over `steps`. An
            episode with a lower return is replaced by an episode in another scene.
        planner: The planner's settings; by default those of each task.
    """

    tasks: Names = Field(default=("pretraining",), min_length=1)
    kind: Kind = "exploratory"
    episodes: int | None = Field(default=None, ge=0)
    steps: int = Field(default=HORIZON, ge=1, le=HORIZON)
    size: int = Field(default=84, ge=16)
    camera: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    noise_first: float = Field(default=1.0, ge=0, le=10)
    noise_last: float = Field(default=0.1, ge=0, le=10)
    least_return: float = Field(default=0.1, ge=0, le=1)
    planner: Annotated[MPPIConfig | None, tyro.conf.Suppress] = None

    @property
    def cameras(self) -> tuple[str, ...]:
        """The camera's name in the data sets, always the same, so that data sets can be combined."""
        return ("camera",)


def skill(number: int) -> float:
    """Return the skill of an exploratory episode, 0 to 1; any number of episodes has evenly spread skills.

    Skills are 0, 1/2, 1/4, 3/4, 1/8, ... (van der Corput's sequence), so that more episodes do not change earlier ones.
    """
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / 2 ** len(digits) if number else 0.0


class DMCActor(NoisyExpert):
    """An actor that chooses the actions of one episode, in one of three ways.

    - random: every action dimension is sampled from U(-1, 1), as for the paper's Figure 7.
    - exploratory: a planner whose skill s, from 0 to 1, depends on the episode. It replaces the replay buffer of a
      DrQ-v2 agent, which Premier-TACO samples from. The planner samples 2 + s (samples - 2) plans per round. As in
      DrQ-v2, Gaussian noise is added; its standard deviation goes from `noise_first` (s = 0) to `noise_last` (s = 1).
    - expert: the planner with all its samples, and noise of standard deviation `noise`.

    Args:
        env: The environment.
        kind: `random`, `exploratory` or `expert`.
        number: Number of the episode, which determines its skill.
        planner: The planner's settings; by default the task's.
        noise: Standard deviation of the expert's noise.
        noise_first: Standard deviation of the noise of the least skilled exploratory episode.
        noise_last: Standard deviation of the noise of the most skilled exploratory episode.
    """

    def __init__(
        self,
        env: DMCEnv,
        kind: Kind,
        number: int,
        *,
        planner: MPPIConfig | None = None,
        noise: float = 0.0,
        noise_first: float = 1.0,
        noise_last: float = 0.1,
    ) -> None:
        self._planner: Planner | None = None
        if kind == "random":
            super().__init__(lambda: self._rng.uniform(-1, 1, env.action_dim).astype(np.float32), 0.0)
            return
        config = planner or planner_config(env.task.name)
        if kind == "exploratory":
            far = skill(number)
            config = config.model_copy(update={"samples": round(2 + far * (config.samples - 2))})
            noise = noise_first + far * (noise_last - noise_first)
        self._planner = Planner(env, config)
        super().__init__(self._planner.act, noise)

    def reset(self, seed: int) -> None:
        """Begin an episode, after the environment was reset."""
        super().reset(seed)
        if self._planner is not None:
            self._planner.reset(seed)


def collect_dmc(config: DMCCollectConfig) -> dict[str, Path]:
    """Record dm_control tasks as LeRobot v3 data sets, one per task, or resume an interrupted recording.

    Actions are executed actions, float32 [T, A], each for two control steps; rewards are summed over these. The state
    is all that the suite lets a policy observe. `meta/info.json` also stores the configuration, versions, render
    settings, planner, and every episode's return.

    Time: an expert that plans takes up to a second of one core per action (for the dog); random actions take
    milliseconds. Disk: some megabytes per episode.

    Returns:
        The folder of each task's data set.

    Raises:
        BadInputError: If the configuration is wrong, a folder holds anything but its data set, or a worker dies.
        MissingExtraError: If dm_control is not installed.
    """
    jobs = {task: _DMCCollection(_single(config, task)) for task in resolve_dmc_tasks(config.tasks)}
    for job in jobs.values():
        require(sum(job.counts.values()) > 0, "episodes", 0, "at least one a task", "ask for some")
        require_collected(job.config.out)
    return {task: collect(job) for task, job in jobs.items()}


def _single(config: DMCCollectConfig, task: str) -> DMCCollectConfig:
    """Return the settings of one task's data set, with its numbers of episodes and planner settings filled in."""
    expert = 100 if task.partition("-")[0] in HARD_DOMAINS else 20
    usual = expert if config.kind == "expert" else 200
    episodes = usual if config.episodes is None else config.episodes
    planner = None if config.kind == "random" else config.planner or planner_config(task)
    own = {"out": config.out / task, "tasks": (task,), "episodes": episodes, "planner": planner}
    return config.model_copy(update=own)


class _DMCCollection(Collection):
    config: DMCCollectConfig
    packages = DMCEnv.packages
    remedy = (
        "least_return",
        "a task on which the expert earns that now and then",
        "ask for less, less noise or more steps",
    )

    @property
    def robot(self) -> str:
        return str(self.env.task.domain)

    @property
    def fps(self) -> float:
        return float(round(1 / self.env.seconds))  # the dog takes 33 1/3 actions per second

    def parts(self, task: str) -> tuple[str, ...]:
        return (TASKS[task].instruction,)

    def identity(self) -> dict[str, Any]:
        env, identity = self.env, super().identity()
        apart = ("tasks", "planner", *(() if self.config.kind == "expert" else ("least_return",)))
        settings = {key: value for key, value in identity["config"].items() if key not in apart}
        return {
            **identity,
            "config": {"task": self.config.tasks[0], **settings},
            "action_repeat": ACTION_REPEAT,
            "seconds_an_action": env.seconds,
            "planner": identity["config"]["planner"],
            "rendering": {**render_settings(self.config.size), "camera": env.cameras[0]},
        }

    def make(self, task: str) -> CameraEnv:
        return DMCEnv(task, cameras=self.config.camera, size=self.config.size)

    def record(self, env: Any, slot: Slot, seed: int) -> Recording | None:
        chosen = self.config.model_dump(include={"noise", "noise_first", "noise_last"})
        actor = DMCActor(env, self.config.kind, slot.number, planner=self.config.planner, **chosen)
        recorded = record(env, actor, seed, steps=self.config.steps)
        least = self.config.least_return * ACTION_REPEAT * self.config.steps
        if self.config.kind == "expert" and recorded.rewards.sum() < least:
            return None
        return replace(recorded, frames={"camera": recorded.frames[env.cameras[0]]})
