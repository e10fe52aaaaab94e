"""robosuite's tasks as robomimic's data sets use them, behind the face of `ControlTask`.

A task is a data set, whose `env_args` name the environment, its robot and its controller, or an environment's name.
What a data set was recorded with, robosuite 1.2 to 1.5, decides its dynamics: `RobomimicTask.versions` tells both.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats.hdf5.files import CONTROL_HZ, ROBOMIMIC_STATE, env_args
from counterpoint.data.formats.hdf5.instructions import HORIZONS, instruction_of
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome, draw_each, named_cameras
from counterpoint.envs.rendering import choose_backend
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["RobomimicTask", "draw_upright"]

_HORIZON = 400  # where robomimic's study has none


class RobomimicTask:
    """A robosuite task. The reward is robosuite's; success is being solved at this moment.

    What follows `reset(seed)` depends on the seed and the actions alone.

    Args:
        task: A robomimic data set (the path of an HDF5 file), or an environment such as `Lift`, which gets one Panda
            (two for `TwoArm...`) with the controller that robosuite gives it.
        camera: A camera of the environment, or several; `agentview` by default, `shouldercamera0` of
            TwoArmTransport. The data's names (`agentview_image`) will do.
        size: Height and width of the pictures, in pixels.
        horizon: Steps of an episode; robomimic's by default.

    Attributes:
        versions: Of robosuite: `installed`, and `recorded` where the data set tells.

    Raises:
        BadInputError: When the data set, the environment or the camera is unknown.
        MissingExtraError: When robosuite is not installed.
    """

    def __init__(self, task: str, *, camera: Cameras = None, size: int = 84, horizon: int | None = None) -> None:
        told = _told(task)
        robosuite = _import_robosuite()
        env_name = str(told["env_name"])
        if env_name not in robosuite.ALL_ENVIRONMENTS:
            raise BadInputError(
                f"robomimic/{task}",
                f"environment {env_name!r}",
                f"a data set, or one of {', '.join(sorted(robosuite.ALL_ENVIRONMENTS))}",
                "name one of these, or install the package that has it",
            )
        self._env = robosuite.make(env_name, **_modern(_arguments(told["env_kwargs"]), robosuite.__version__))
        self.name = f"robomimic/{env_name}"
        self.instruction = str(told["env_kwargs"].get("lang") or instruction_of(env_name))
        self.horizon = horizon or HORIZONS.get(env_name, _HORIZON)
        self.versions = {"installed": str(robosuite.__version__)}
        if told.get("env_version"):
            self.versions["recorded"] = str(told["env_version"])
        self.action_dim = int(self._env.action_dim)
        self._size = size
        names = named_cameras(camera, _usual_camera(self._env))
        self._cameras = tuple(name.removesuffix("_image") for name in names)
        for name in self._cameras:
            _check_camera(self._env, name)
        self.reset(0)
        self.state_dim = len(self.state())

    def reset(self, seed: int) -> None:
        """Place the objects by `seed`."""
        before = np.random.get_state()
        try:
            np.random.seed(seed % 2**32)  # robosuite before 1.5 draws from numpy's own generator
            self._env.rng = np.random.default_rng(seed)
            self._observation = self._env.reset()
        finally:
            np.random.set_state(before)

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3], upright."""
        return draw_each(lambda camera: draw_upright(self._env.sim, camera, self._size), self._cameras)

    def state(self) -> Array:
        """Of each robot hand position, its quaternion and gripper joints: float32 [P], as in the data sets."""
        robots = sorted({key.split("_", 1)[0] for key in self._observation if key.endswith("_eef_pos")})
        parts = [self._observation.get(f"{robot}_{part}", ()) for robot in robots for part in ROBOMIMIC_STATE]
        return np.concatenate(parts).astype(np.float32)

    def step(self, action: Array) -> Outcome:
        """Act for 1/20 s, or what the data set's `control_freq` tells."""
        clipped = np.asarray(action, np.float64).clip(-1.0, 1.0)
        self._observation, reward, _, _ = self._env.step(clipped)
        return Outcome(float(reward), bool(self._env._check_success()))

    def close(self) -> None:
        """Free the graphics context."""
        self._env.close()


def draw_upright(sim: Any, camera: str, size: int) -> Array:
    """A picture from robosuite's simulation, which gives the bottom row first: uint8 [size, size, 3]."""
    return np.ascontiguousarray(sim.render(camera_name=camera, height=size, width=size)[::-1])


def _told(task: str) -> dict[str, Any]:
    """`env_args` of a data set, or what stands for them where an environment is named."""
    if "/" in task or task.endswith((".hdf5", ".h5")):
        return env_args(Path(task).expanduser())
    robots = ["Panda", "Panda"] if task.startswith("TwoArm") else ["Panda"]
    return {"env_name": task, "env_kwargs": {"robots": robots, "control_freq": CONTROL_HZ}}


def _arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The data set's arguments, without a window, and with pictures drawn only when asked for."""
    kept = {
        key: value
        for key, value in copy.deepcopy(kwargs).items()
        if not key.startswith(("camera_", "render_")) and key not in ("lang", "env_lang", "seed")
    }
    return kept | {
        "has_renderer": False,
        "has_offscreen_renderer": True,
        "use_camera_obs": False,
        "use_object_obs": True,
        "ignore_done": True,
        "hard_reset": True,  # places objects by the generator that `reset` sets
    }


def _modern(arguments: dict[str, Any], version: str) -> dict[str, Any]:
    """robosuite 1.5 has one controller for a whole robot; that of a data set of before, an arm's, is put into it."""
    arm = arguments.get("controller_configs")
    if not isinstance(arm, dict) or "body_parts" in arm or version.startswith(("1.2", "1.3", "1.4")):
        return arguments
    from robosuite.controllers.composite import composite_controller_factory as factory

    arm = {"input_type": "delta" if arm.get("control_delta", True) else "absolute", **arm}
    robots = arguments.get("robots", "Panda")
    robot = robots if isinstance(robots, str) else robots[0]
    return arguments | {"controller_configs": factory.refactor_composite_controller_config(arm, robot, ["right"])}


def _import_robosuite() -> Any:
    choose_backend()
    try:
        import robosuite
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "robosuite", "robosuite") from None
    return robosuite


def _usual_camera(env: Any) -> str:
    """robomimic's first camera of the environment."""
    return next((name for name in ("agentview", "shouldercamera0") if name in env.sim.model.camera_names), "frontview")


def _check_camera(env: Any, camera: str) -> None:
    if camera not in env.sim.model.camera_names:
        raise BadInputError(
            "camera", repr(camera), f"one of {', '.join(env.sim.model.camera_names)}", "choose from these"
        )
