"""Tasks of the DeepMind Control Suite as control tasks: what the camera sees, and an action for two control steps.

As in Premier-TACO (Appendix C: 500 steps an episode) and DrQ-v2, each action is carried out for two of the suite's 1000
control steps and the reward is summed over them, so that a return lies between 0 and 1000.

The suite's own renderer and `mujoco.Renderer` do not live together in one process: the suite is imported with its
renderer switched off, and pictures come from `FastRenderer`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome, draw_each, named_cameras
from counterpoint.envs.dmc.tasks import TASKS, resolve_dmc_tasks
from counterpoint.envs.rendering import FastRenderer, import_mujoco
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["ACTION_REPEAT", "HORIZON", "DMCTask", "dmc_versions", "import_suite"]

ACTION_REPEAT = 2
"""Control steps of the suite that one action lasts."""
HORIZON = 500
"""Actions an episode: 1000 control steps."""
_SMALLEST = 16


class DMCTask:
    """A task of the suite. Success is always False: the suite has rewards alone.

    What follows `reset(seed)` is what the suite's own environment loaded with `random=seed` would show first.

    Args:
        task: A name of `dmc_tasks.TASKS`, such as `walker-walk`.
        camera: A camera of the model, by name or number, or several; DrQ-v2's by default (0, of the quadruped 2).
        size: Height and width of the pictures, in pixels; at least 16.
        horizon: Actions an episode, 500 at most.

    Attributes:
        cameras: Names of the cameras, in order; `camera` is the first.
        action_repeat: Control steps an action.
        seconds: Of simulated time an action takes.
        environment: The suite's own environment.

    Raises:
        BadInputError: When task or camera is unknown, or size or horizon cannot be had.
        MissingExtraError: When dm_control is not installed.
    """

    action_repeat = ACTION_REPEAT

    def __init__(self, task: str, *, camera: Cameras = None, size: int = 84, horizon: int = HORIZON) -> None:
        (known,) = resolve_dmc_tasks([task])
        if not 1 <= horizon <= HORIZON:
            raise BadInputError("steps", f"{horizon}", f"1 to {HORIZON} actions", "500 is the suite's own")
        self.horizon = horizon
        if size < _SMALLEST:
            raise BadInputError("size", f"{size}", f"at least {_SMALLEST}", "draw larger pictures")
        self.task = TASKS[known]
        self.name, self.instruction = f"dmc/{known}", self.task.instruction
        self.environment = import_suite().load(self.task.domain, self.task.task, task_kwargs={"random": 0})
        self.physics = self.environment.physics
        if self.task.domain == "quadruped":
            _name_sensors(self.physics)
        self.seconds = float(self.environment.control_timestep()) * ACTION_REPEAT
        self.action_dim = int(self.physics.model.nu)
        named = named_cameras(camera, str(self.task.camera))
        self.cameras = tuple(_checked_camera(self.physics.model.ptr, name) for name in named)
        self.camera = self.cameras[0]
        self.size = size
        self._renderer: FastRenderer | None = None
        self.reset(0)
        self.state_dim = len(self.state())

    def reset(self, seed: int) -> None:
        """Begin an episode, drawn by `seed` (0 to 2^32 - 1)."""
        self.environment.task._random = np.random.RandomState(seed)
        self.environment.reset()

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3].

        The graphics context is made by the first call, in the process that calls.
        """
        if self._renderer is None:
            self._renderer = FastRenderer(self.physics.model.ptr, self.physics.data.ptr, self.size)
        return draw_each(self._renderer.draw, self.cameras)

    def state(self) -> Array:
        """All that the suite lets a policy observe, in its order: float32 [P]."""
        observed = self.environment.task.get_observation(self.physics).values()
        return np.concatenate([np.ravel(part) for part in observed]).astype(np.float32)

    def step(self, action: Array) -> Outcome:
        """Carry out an action for two control steps; the reward is their sum, 0 to 2.

        Args:
            action: float [A]; clipped to [-1, 1], the range of every actuator of these tasks.
        """
        control = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        reward, ended = 0.0, False
        for _ in range(ACTION_REPEAT):
            shown = self.environment.step(control)
            reward += float(shown.reward)
            ended = bool(shown.last())
            if ended:
                break
        return Outcome(reward, success=False, ended=ended)

    def close(self) -> None:
        """Free the graphics context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def import_suite() -> Any:
    """The module `dm_control.suite`, without a renderer of its own.

    Raises:
        MissingExtraError: When it is not installed.
        BadInputError: When MuJoCo has no drawing backend that works here.
    """
    import_mujoco()
    try:
        with _without_renderer():
            from dm_control import suite
    except ModuleNotFoundError:
        raise MissingExtraError("dm_control", "sim") from None
    return suite


def dmc_versions() -> dict[str, str]:
    """Package -> version, of what decides how a task goes."""
    return {name: metadata.version(name) for name in ("dm_control", "mujoco", "numpy")}


@contextmanager
def _without_renderer() -> Iterator[None]:
    """The suite looks at MUJOCO_GL when it is first imported; MuJoCo itself has looked before."""
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = chosen


def _name_sensors(physics: Any) -> None:
    """Fill the quadruped's cache of sensor names, which dm_control 1.0.28 fills with `np.in1d`: gone from numpy 2.4."""
    mujoco = import_mujoco()
    kinds = mujoco.mjtSensor
    model = physics.model.ptr
    for wanted in ((kinds.mjSENS_GYRO, kinds.mjSENS_ACCELEROMETER), (kinds.mjSENS_FORCE, kinds.mjSENS_TORQUE)):
        numbers = tuple(int(kind) for kind in wanted)
        names = [model.sensor(i).name for i in range(model.nsensor) if model.sensor_type[i] in numbers]
        physics._sensor_types_to_names[numbers] = names


def _checked_camera(model: Any, camera: str) -> str:
    names = [str(model.camera(number).name) for number in range(model.ncam)]
    if camera in names:
        return camera
    if camera.isdecimal() and int(camera) < len(names):
        return names[int(camera)]
    raise BadInputError(
        f"camera {camera!r}",
        "no such camera",
        f"one of {', '.join(names)}, or a number below {len(names)}",
        "choose one of these",
    )
