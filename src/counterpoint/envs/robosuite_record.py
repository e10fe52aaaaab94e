"""One demonstration of robosuite's scripted experts, with the robot's masks beside the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.control import ControlTask
from counterpoint.envs.recording import Recording

__all__ = ["ExpertTask", "record_robosuite"]

_GRIPPER = 1  # the last numbers of an action, which open or close


class ExpertTask(ControlTask, Protocol):
    """A control task that knows how it is solved, and where its pictures show the robot.

    Attributes:
        cameras: Names, in the order of `draw`.
        env: robosuite's environment.
    """

    cameras: tuple[str, ...]
    env: Any

    def expert(self) -> Array:
        """What the expert does next: float32 [A] in [-1, 1]."""

    def draw_masks(self) -> Array:
        """Where `draw` shows the robot: bool [C, size, size]."""


def record_robosuite(
    task: ExpertTask,
    seed: int,
    *,
    masks: Sequence[str],
    noise: float,
    after_success: int,
    simulation: bool = False,
) -> Recording:
    """Let the expert act in the scene of `seed` until the task is solved or its time is over.

    Args:
        task: The simulation.
        seed: Of the scene and the noise.
        masks: Those of the task's cameras whose masks are kept.
        noise: Standard deviation of the Gaussian noise added to the motion of the hand, in action units, and clipped
            to [-1, 1]. The gripper's command has none: it is opened or closed.
        after_success: Frames that still show the task solved.
        simulation: Keep the simulator's whole state at each frame, as robomimic does.

    Raises:
        ArithmeticError: When the simulation comes to numbers that are not finite.
    """
    cameras = task.cameras
    rng = np.random.default_rng([seed, 1])
    task.reset(seed)
    pictures: list[Array] = []
    robots: list[Array] = []
    states: list[Array] = []
    whole: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    success, shown = False, 0
    while len(actions) < task.horizon and not (success and shown >= after_success):
        picture = task.draw()
        pictures.append(picture.reshape(len(cameras), *picture.shape[-3:]))
        if masks:
            mask = task.draw_masks()
            robots.append(mask.reshape(len(cameras), *mask.shape[-2:]))
        states.append(task.state())
        if simulation:
            whole.append(task.env.sim.get_state().flatten())
        shown += success
        action = task.expert()
        if noise > 0:
            motion = noise * rng.standard_normal(len(action) - _GRIPPER)
            action = np.clip(action + np.append(motion, np.zeros(_GRIPPER)), -1.0, 1.0).astype(np.float32)
        if not np.isfinite(action).all():
            raise ArithmeticError("an action that is not finite")
        outcome = task.step(action)
        success |= outcome.success
        actions.append(action)
        rewards.append(outcome.reward)
    recording = Recording(
        frames={camera: np.stack([shot[place] for shot in pictures]) for place, camera in enumerate(cameras)},
        actions=np.stack(actions).astype(np.float32),
        state=np.stack(states).astype(np.float32),
        success=success,
        rewards=np.array(rewards, np.float32),
        masks={camera: np.stack([shot[cameras.index(camera)] for shot in robots]) for camera in masks},
        simulation=np.stack(whole) if simulation else None,
    )
    for name in ("state", "rewards"):
        if not np.isfinite(getattr(recording, name)).all():
            raise ArithmeticError(f"{name} that is not finite")
    return recording
