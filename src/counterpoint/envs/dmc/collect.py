"""What acts while a dm_control data set is recorded: chance, a planner of growing skill, or the expert.

Record dm_control tasks as LeRobot v3 data sets, one a task: `counterpoint collect dmc`.

Tasks differ in the size of actions and states, so `OUT` is a folder of data sets, `OUT/walker-walk` and so on, which
`MultiTaskStore` opens as one. An episode depends on the seed, its task, its split and its number alone: neither
workers, nor an interruption, nor recording more tasks or episodes change it.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.formats.lerobot.writer import LeRobotWriter
from counterpoint.envs.collect import (
    Recording,
    Slot,
    Staging,
    episode_seed,
    record_missing,
    refuse_different,
    refuse_foreign,
    slots,
    split_ranges,
)
from counterpoint.envs.dmc.env import ACTION_REPEAT, HORIZON, DMCEnv, dmc_versions
from counterpoint.envs.dmc.planner import Planner, PlannerConfig, planner_config
from counterpoint.envs.dmc.tasks import HARD_DOMAINS, resolve_dmc_tasks
from counterpoint.envs.rendering import render_settings
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["CAMERA_KEY", "Actor", "DMCCollectConfig", "Kind", "collect_dmc", "record_dmc", "skill"]


Kind = Literal["random", "exploratory", "expert"]
CAMERA_KEY = "camera"
"""What every data set calls its pictures, whichever of the model's cameras took them, so that data sets combine."""


def skill(number: int) -> float:
    """How far an exploratory episode's behaviour has come, 0 to 1: evenly spread over any number of episodes.

    0, 1/2, 1/4, 3/4, 1/8, ... (van der Corput's sequence), so that recording more leaves what was recorded as it is.
    """
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / 2 ** len(digits) if number else 0.0


class Actor:
    """Acts in one episode.

    - random: every action dimension from U(-1, 1), as for the paper's Figure 7.
    - exploratory: Premier-TACO samples the replay buffer of a DrQ-v2 agent. Here a planner stands in whose skill s
      goes from 0 to 1 over the episodes: it draws 2 + s (samples - 2) plans a round, and Gaussian noise is added whose
      standard deviation goes from `noise_first` to `noise_last`, as DrQ-v2's does.
    - expert: the planner in full, with noise of standard deviation `noise`.

    Args:
        task: The task.
        kind: How to act.
        number: Of the episode, which decides its skill.
        planner: The expert's settings; the task's own by default.
        noise: Of the expert.
        noise_first: Of an unskilled exploratory episode.
        noise_last: Of a skilled one.
    """

    def __init__(
        self,
        task: DMCEnv,
        kind: Kind,
        number: int,
        *,
        planner: PlannerConfig | None = None,
        noise: float = 0.0,
        noise_first: float = 1.0,
        noise_last: float = 0.1,
    ) -> None:
        self._actions = task.action_dim
        self._planner: Planner | None = None
        self._noise = noise
        if kind == "random":
            return
        config = planner or planner_config(task.task.name)
        if kind == "exploratory":
            far = skill(number)
            samples = round(2 + far * (config.samples - 2))
            config = config.model_copy(update={"samples": samples})
            self._noise = noise_first + far * (noise_last - noise_first)
        self._planner = Planner(task, config)

    def reset(self, seed: int) -> None:
        """Begin an episode; the task has been reset."""
        self._rng = np.random.default_rng([seed, 1])
        if self._planner is not None:
            self._planner.reset(seed)

    def act(self) -> Array:
        """float32 [A] in [-1, 1]."""
        if self._planner is None:
            return self._rng.uniform(-1, 1, self._actions).astype(np.float32)
        action = self._planner.act()
        if self._noise > 0:
            action = action + self._noise * self._rng.standard_normal(self._actions)
        return np.clip(action, -1, 1).astype(np.float32)

    def close(self) -> None:
        """Free the planner."""
        if self._planner is not None:
            self._planner.close()


def record_dmc(task: DMCEnv, actor: Actor, seed: int, *, steps: int) -> Recording:
    """One episode.

    Args:
        task: The simulation.
        actor: What acts.
        seed: Of the episode's beginning and the actor's chance.
        steps: Actions.

    Returns:
        `steps` frames, actions float32 [T, A], states float32 [T, P] (all the suite lets a policy observe) and
        rewards float32 [T]; without success, which the suite does not know.
    """
    task.look = False
    task.reset(seed=seed)
    actor.reset(seed)
    frames: list[Array] = []
    states: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    for _ in range(steps):
        frames.append(task.render())
        states.append(task.state())
        action = actor.act()
        _, reward, ended, truncated, _ = task.step(action)
        actions.append(action)
        rewards.append(reward)
        if ended or truncated:
            break
    return Recording(
        frames={CAMERA_KEY: np.stack(frames)},
        actions=np.stack(actions),
        state=np.stack(states),
        success=None,
        rewards=np.array(rewards, np.float32),
    )


_EXPERT, _EXPERT_HARD, _OTHER = 20, 100, 200  # episodes a task, as in the paper


class DMCCollectConfig(FrozenConfig):
    """What to record.

    Attributes:
        out: The folder of the data sets; each task is recorded into a folder of its own in it.
        tasks: Names of tasks, `pretraining` (the paper's six) or `evaluation` (the ten of its Table 1).
        kind: `random` (actions from U(-1, 1)), `exploratory` (a planner of growing skill, in place of the paper's
            DrQ-v2 replay) or `expert` (a planner with the true dynamics).
        episodes: Training episodes a task; by default as in the paper: of an expert 20, for humanoid and dog 100; of
            the other kinds 200.
        val_episodes: Validation episodes a task.
        steps: Actions an episode, 500 at most.
        size: Height and width of the frames, in pixels; at least 16.
        camera: A camera of all the tasks' models, by name or number; DrQ-v2's choice by default.
        noise: Standard deviation of the Gaussian noise added to the expert's actions.
        noise_first: The same of the least skilled exploratory episode.
        noise_last: The same of the most skilled one.
        planner: The planner's settings; each task's own by default.
        workers: Processes that simulate.
        seed: Of initial states and all that is random.
    """

    out: Path
    tasks: tuple[str, ...] = ("pretraining",)
    kind: Kind = "exploratory"
    episodes: int | None = None
    val_episodes: int = 0
    steps: int = HORIZON
    size: int = 84
    camera: str | None = None
    noise: float = 0.0
    noise_first: float = 1.0
    noise_last: float = 0.1
    planner: PlannerConfig | None = None
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """One task's data set."""

    config: DMCCollectConfig
    task: str
    tasks: tuple[str, ...]
    a_task: Mapping[str, int]
    planner: PlannerConfig | None

    @property
    def out(self) -> Path:
        return self.config.out / self.task


def collect_dmc(config: DMCCollectConfig) -> dict[str, Path]:
    """Record data sets, or go on with what was interrupted.

    Actions are float32 [T, A] as carried out, each for two control steps; rewards are summed over these. State is all
    that the suite lets a policy observe. Frames come from the camera called `camera`. `meta/info.json` keeps under
    `counterpoint`: the configuration, versions, render settings, planner, and of every episode its seed and return.

    Args:
        config: What to record. With more than one worker, a script must start it under `if __name__ == "__main__"`.

    Returns:
        Task -> the folder of its data set.

    Raises:
        BadInputError: When the configuration is wrong, a folder holds something else, or a worker dies.
        MissingExtraError: When dm_control is not installed.
    """
    tasks = resolve_dmc_tasks(config.tasks)
    _check(config)
    parts = [_part(config, task) for task in tasks]
    for part in parts:
        refuse_foreign(part.out)
    return {part.task: _collect(part) for part in parts}


def _check(config: DMCCollectConfig) -> None:
    bounds: dict[str, tuple[float, float]] = {
        "episodes": (0, math.inf),
        "val_episodes": (0, math.inf),
        "steps": (1, HORIZON),
        "size": (16, math.inf),
        "noise": (0, 10),
        "noise_first": (0, 10),
        "noise_last": (0, 10),
        "workers": (1, 1024),
        "seed": (0, 2**63),
    }
    for key, (low, high) in bounds.items():
        value = getattr(config, key)
        if value is not None and not low <= value <= high:
            expected = f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"
            raise BadInputError(key, f"{value}", expected, f"correct {key}")
    if config.episodes == 0 and config.val_episodes == 0:
        raise BadInputError("episodes", "0", "at least one a task", "ask for some")


def _part(config: DMCCollectConfig, task: str) -> _Part:
    episodes = config.episodes
    if episodes is None:
        hard = task.partition("-")[0] in HARD_DOMAINS
        episodes = (_EXPERT_HARD if hard else _EXPERT) if config.kind == "expert" else _OTHER
    planner = None if config.kind == "random" else config.planner or planner_config(task)
    counts = {"train": episodes, "val": config.val_episodes}
    return _Part(config, task, (task,), counts, planner)


def _collect(part: _Part) -> Path:
    simulation = _simulation(part.task, part.config.camera, part.config.size)
    identity = _identity(part, simulation)
    staging = Staging(part.out)
    if part.out.exists():
        refuse_different(part.out, identity)
    else:
        plan = slots(part)
        part.out.parent.mkdir(parents=True, exist_ok=True)
        staging.open(identity)
        try:
            record_missing(
                staging,
                plan,
                partial(_record_slot, part),
                workers=part.config.workers,
                note=_note,
                title=f"collect {part.task}",
            )
        finally:
            simulation.close()
            _simulation.cache_clear()
        _assemble(part, simulation, staging, plan, identity)
    if staging.folder.exists():
        staging.remove()
    return part.out


def _identity(part: _Part, simulation: DMCEnv) -> dict[str, Any]:
    """All that decides the data, as JSON values: other tasks, where to and by how many workers are not among it."""
    config = part.config
    settings = config.model_dump(mode="json", exclude={"out", "workers", "tasks", "planner", "episodes"})
    tree = {
        "config": {"task": part.task, **settings, "episodes": part.a_task["train"]},
        "action_repeat": ACTION_REPEAT,
        "seconds_an_action": simulation.seconds,
        "planner": None if part.planner is None else part.planner.model_dump(mode="json"),
        "versions": dmc_versions(),
        "rendering": {**render_settings(config.size), "camera": simulation.cameras[0]},
    }
    identity: dict[str, Any] = json.loads(json.dumps(tree))
    return identity


def _note(abouts: Sequence[Mapping[str, Any]]) -> str:
    return f"mean return {np.mean([about['return'] for about in abouts]):.1f}"


def _record_slot(part: _Part, slot: Slot) -> None:
    config = part.config
    simulation = _simulation(slot.task, config.camera, config.size)
    seed = episode_seed(config.seed, slot.task, slot.split, slot.number)
    actor = Actor(
        simulation,
        config.kind,
        slot.number,
        planner=part.planner,
        noise=config.noise,
        noise_first=config.noise_first,
        noise_last=config.noise_last,
    )
    try:
        recording = record_dmc(simulation, actor, seed, steps=config.steps)
    finally:
        actor.close()
    assert recording.rewards is not None
    earned = round(float(recording.rewards.sum()), 4)
    about = {"task": slot.task, "split": slot.split, "seed": seed, "return": earned}
    Staging(part.out).add(slot.place, recording, about, _fps(simulation))


@lru_cache(maxsize=1)
def _simulation(task: str, camera: str | None, size: int) -> DMCEnv:
    return DMCEnv(task, cameras=camera, size=size)


def _fps(simulation: DMCEnv) -> float:
    """Actions a second; rounded, as a data set's must be whole: the dog has 33 1/3."""
    return float(round(1 / simulation.seconds))


def _assemble(
    part: _Part, simulation: DMCEnv, staging: Staging, plan: Sequence[Slot], identity: dict[str, Any]
) -> None:
    """Make the data set out of the staged episodes and give it its name."""
    built = staging.folder / "dataset"  # inside, so that the remains of a killed writer go with the folder
    fps = _fps(simulation)
    if not built.exists():
        abouts = [staging.about(slot.place) for slot in plan]
        writer = LeRobotWriter(
            built,
            fps=fps,
            cameras={CAMERA_KEY: (part.config.size, part.config.size)},
            action_dim=simulation.action_dim,
            state_dim=simulation.state_dim,
            robot_type=simulation.task.domain,
            info={
                "collect": identity,
                "machine": {"python": platform.python_version(), "platform": platform.platform()},
                "episodes": {key: [about[key] for about in abouts] for key in abouts[0]},
            },
        )
        with ProgressBar("assemble", len(plan), "episodes") as bar:
            for slot in plan:
                writer.add_episode(*staging.episode(slot.place, simulation.instruction, fps))
                bar.advance()
            writer.finalize(split_ranges(part))
    built.rename(part.out)
