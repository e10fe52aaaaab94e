"""One recorded episode: a pure function of the scene's seed and a few settings."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.metaworld import STATE_DIMS, MetaWorldTask

__all__ = ["Recording", "episode_seed", "record"]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Recording:
    """What an expert did in one scene.

    Attributes:
        frames: Camera name -> uint8 [T, size, size, 3].
        actions: float32 [T, A], what was carried out, noise included; over `stride` steps their mean.
        state: float32 [T, P], proprioception at each frame; of Meta-World hand position (metres) and gripper opening
            (0 to 1).
        success: Whether the task was solved at any moment; `None` where a task has rewards alone.
        rewards: float32 [T], what each action earned; over `stride` steps their sum. `None` where nobody said.
        masks: Camera name -> bool [T, size, size], where its picture shows the robot; empty without masks.
        simulation: float64 [T, n], the simulator's whole state at each frame; `None` where it is not kept.
    """

    frames: dict[str, Array]
    actions: Array
    state: Array
    success: bool | None
    rewards: Array | None = None
    masks: Mapping[str, Array] = field(default_factory=dict)
    simulation: Array | None = None


def episode_seed(seed: int, task: str, split: str, number: int, attempt: int = 0) -> int:
    """The seed of one scene. More episodes, other tasks or other splits leave it as it is.

    Args:
        seed: The data set's.
        task: The task's name.
        split: One of train, val, test.
        number: Which episode of that task and split.
        attempt: How many scenes before it were given up.
    """
    keys = [seed, zlib.crc32(task.encode()), SPLITS.index(split), number, attempt]
    return int(np.random.SeedSequence(keys).generate_state(1)[0])


def record(
    task: MetaWorldTask, seed: int, *, noise: float, stride: int, after_success: int, max_steps: int
) -> Recording:
    """Let the expert act in the scene of `seed` until the task is solved or the steps are used up.

    Args:
        task: The simulation.
        seed: Of the scene and the noise.
        noise: Standard deviation of the Gaussian noise added to the clipped action, which is then clipped
            again.
        stride: Control steps a frame.
        after_success: Frames that still show the task solved.
        max_steps: Control steps at most.
    """
    rng = np.random.default_rng([seed, 1])
    observation = task.reset(seed)
    pictures: list[dict[str, Array]] = []
    states: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    success, shown, step = False, 0, 0
    while step < max_steps and not (success and shown >= after_success):
        pictures.append(task.draw())
        states.append(observation[:STATE_DIMS])
        shown += success
        carried_out: list[Array] = []
        earned = 0.0
        for _ in range(min(stride, max_steps - step)):
            action = task.expert(observation)
            if noise > 0:
                action = np.clip(action + noise * rng.standard_normal(4), -1.0, 1.0).astype(np.float32)
            observation, reward, solved = task.step(action)
            earned += reward
            success |= solved
            carried_out.append(action)
            step += 1
        actions.append(np.stack(carried_out).mean(axis=0))
        rewards.append(earned)
    return Recording(
        frames={camera: np.stack([picture[camera] for picture in pictures]) for camera in task.cameras},
        actions=np.stack(actions),
        state=np.stack(states).astype(np.float32),
        success=success,
        rewards=np.array(rewards, np.float32),
    )
