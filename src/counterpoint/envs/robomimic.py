"""robosuite's tasks as `CameraEnv`s, as in robomimic's data sets.

A task is given by the path of a data set or by the name of an environment. A data set's `env_args` name its
environment, robot and controller. A data set's dynamics depend on its robosuite version, 1.2 to 1.5: see
`RobomimicEnv.versions`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv, Options, choose_cameras, seeded_numpy
from counterpoint.envs.rendering import choose_backend, import_mujoco, undisturbed
from counterpoint.errors import import_extra, require_known
from counterpoint.formats.hdf5.dialects import CONTROL_HZ, ROBOMIMIC_STATE
from counterpoint.formats.hdf5.files import HORIZONS, env_args, instruction_of

_HORIZON = 400  # steps per episode of tasks that robomimic's study does not list


class RobosuiteScene(CameraEnv):
    """A `CameraEnv` with robosuite's environment and renderer; a suite's class calls `_adopt`."""

    _env: Any

    def _adopt(self, make: Callable[[], Any]) -> None:
        import_mujoco()  # prepares mujoco before a graphics context is created
        with undisturbed():
            self._env = make()
        self._freed = weakref.finalize(self, _free, self._env)
        self._freed.atexit = False  # the graphics library may have ended before

    def close(self) -> None:
        """Free the graphics context."""
        self._freed()

    def _images(self) -> dict[str, Array]:
        size = self._rendered_size
        with own_context(self._env):
            shots = {name: self._env.sim.render(camera_name=name, height=size, width=size) for name in self.cameras}
        return {name: np.ascontiguousarray(shot[::-1]) for name, shot in shots.items()}  # from bottom-up to upright


@contextmanager
def own_context(env: Any) -> Iterator[None]:
    """Make the graphics context of robosuite's environment the current context, and keep it current.

    robosuite renders, and frees images on the graphics card, in whichever context is current. With two environments in
    a process, one environment would otherwise show and free the other environment's images. (The simulators before
    robosuite 1.4 choose their context themselves.)
    """
    with undisturbed():
        context = getattr(getattr(env.sim, "_render_context_offscreen", None), "gl_ctx", None)
        if context is not None:
            context.make_current()
        yield


def _free(env: Any) -> None:
    with own_context(env):
        env.close()


class RobomimicEnv(RobosuiteScene):
    """A robosuite task. The reward is robosuite's; success means that the task is solved at the current step.

    For each robot, the state holds the hand's position, the hand's quaternion and the gripper joints, as in the data
    sets.

    Args:
        task: A robomimic data set (the path of an HDF5 file), or an environment such as `Lift`, which has one Panda
            (two for `TwoArm...`) with robosuite's default controller.
        **options: See `Options`. By default the camera is `agentview` (`shouldercamera0` for TwoArmTransport), and the
            number of steps is robomimic's. Camera names of the data (`agentview_image`) work too.

    Attributes:
        versions: Versions of robosuite: `installed` and, if the data set stores it, `recorded`.
    """

    def __init__(self, task: str, **options: Unpack[Options]) -> None:
        about = _about(task)
        choose_backend()
        robosuite = import_extra("robosuite", "robosuite")
        env_name, kwargs = str(about["env_name"]), about["env_kwargs"]
        every, hint = sorted(robosuite.ALL_ENVIRONMENTS), "name one of these, or install the package that has it"
        found, expected = f"environment {env_name!r}", "a data set, or one of {}"
        require_known(env_name, every, f"robomimic/{task}", found, expected, hint)
        self._adopt(lambda: robosuite.make(env_name, **_modern(_arguments(kwargs), robosuite.__version__)))
        self.versions = {"installed": str(robosuite.__version__)}
        if about.get("env_version"):
            self.versions["recorded"] = str(about["env_version"])
        known = self._env.sim.model.camera_names
        usual = next((name for name in ("agentview", "shouldercamera0") if name in known), "frontview")
        chosen = choose_cameras(options.get("cameras"), (usual,))
        options["cameras"] = [name.removesuffix("_image") for name in chosen]
        self._begin(0)
        super().__init__(
            f"robomimic/{env_name}",
            str(kwargs.get("lang") or instruction_of(env_name)),
            action_dim=int(self._env.action_dim),
            state_dim=len(self.state()),
            control_hz=float(kwargs.get("control_freq", CONTROL_HZ)),
            horizon=HORIZONS.get(env_name, _HORIZON),
            known=known,
            **options,
        )

    def state(self) -> Array:
        """Return proprioception as described in the class: float32 [P]."""
        robots = sorted({key.split("_", 1)[0] for key in self._observed if key.endswith("_eef_pos")})
        parts = [self._observed.get(f"{robot}_{part}", ()) for robot in robots for part in ROBOMIMIC_STATE]
        return np.concatenate(parts).astype(np.float32)

    def _begin(self, seed: int) -> None:
        with own_context(self._env), seeded_numpy(seed):  # robosuite before 1.5 uses numpy's global generator
            self._env.rng = np.random.default_rng(seed)
            self._observed = self._env.reset()

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._observed, reward, _, _ = self._env.step(action.astype(np.float64).clip(-1.0, 1.0))
        return float(reward), bool(self._env._check_success()), False


def _about(task: str) -> dict[str, Any]:
    """Return the `env_args` of a data set, or `env_args` for an environment's name."""
    if "/" in task or task.endswith((".hdf5", ".h5")):
        return env_args(Path(task).expanduser())
    robots = ["Panda", "Panda"] if task.startswith("TwoArm") else ["Panda"]
    return {"env_name": task, "env_kwargs": {"robots": robots, "control_freq": CONTROL_HZ}}


def _arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the data set's arguments of robosuite's environment, changed to open no window and render no images."""
    dropped = [key for key in kwargs if key.startswith(("camera_", "render_")) or key in ("lang", "env_lang", "seed")]
    return {key: value for key, value in copy.deepcopy(kwargs).items() if key not in dropped} | {
        "has_renderer": False,
        "has_offscreen_renderer": True,
        "use_camera_obs": False,
        "use_object_obs": True,
        "ignore_done": True,
        "hard_reset": True,  # so that objects are placed with the generator that `reset` seeds
    }


def _modern(arguments: dict[str, Any], version: str) -> dict[str, Any]:
    """Convert the arguments to robosuite 1.5: an older data set's arm controller to one of the whole robot."""
    if version.startswith(("1.2", "1.3", "1.4")):
        return arguments
    arguments = arguments | {"renderer": "mujoco"}  # with any other renderer, a reset keeps the old graphics context
    arm = arguments.get("controller_configs")
    if not isinstance(arm, dict) or "body_parts" in arm:
        return arguments
    from robosuite.controllers.composite import composite_controller_factory as factory

    arm = {"input_type": "delta" if arm.get("control_delta", True) else "absolute", **arm}
    robots = arguments.get("robots", "Panda")
    robot = robots if isinstance(robots, str) else robots[0]
    return arguments | {"controller_configs": factory.refactor_composite_controller_config(arm, robot, ["right"])}
