"""robosuite's tasks, and tasks of this library, as `CameraEnv`s with robot masks and scripted experts.

Models, controllers (OSC_POSE at 20 Hz, each robot's default configuration), sparse reward and success are robosuite's.
Differences are for speed, and so that a seed determines everything. Images come from `FastRenderer`. A reset moves the
objects and keeps the model (robosuite's soft reset), so that Lift's cube keeps its size; robosuite itself samples the
cube's edges from 4.0 to 4.4 cm for every new model. As by default in robosuite, Door has a handle that must be turned
(`use_latch`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import MujocoEnv, Options, Scene, seeded_numpy
from counterpoint.envs.rendering import import_mujoco
from counterpoint.envs.robosuite.experts import EXPERTS
from counterpoint.errors import MissingExtraError, require, require_known

CONTROL_HZ = 20.0
"""Actions per second."""

ROBOTS = ("Panda", "Kinova3", "IIWA")
"""The ICon paper's robots; as in robosuite, Kinova3 has a Robotiq 85 gripper and IIWA has a Robotiq 140 gripper."""


@dataclass(frozen=True, slots=True)
class RobosuiteSpec:
    """A task's instruction in words, its number of steps per episode, and its scene."""

    instruction: str
    horizon: int
    scene: Scene = "own"


TASKS = {
    "Lift": RobosuiteSpec("lift the cube", 200),
    "Door": RobosuiteSpec("open the door", 300),
    "Stack": RobosuiteSpec("stack the red cube on the green cube", 300),
    "CloseDrawer": RobosuiteSpec("close the drawer", 200),
    "OpenBox": RobosuiteSpec("open the box", 200),
    "SharedLift": RobosuiteSpec("lift the red cube", 200, "shared"),
    "SharedStack": RobosuiteSpec("stack the red cube on the green cube", 300, "shared"),
    "SharedCloseDrawer": RobosuiteSpec("close the drawer", 200, "shared"),
    "SharedOpenDrawer": RobosuiteSpec("open the drawer", 200, "shared"),
    "SharedOpenBox": RobosuiteSpec("open the box", 200, "shared"),
    "SharedCloseBox": RobosuiteSpec("close the box", 200, "shared"),
}
"""Name of a task -> the task.

Numbers of steps are those of the ICon paper's Table 4 (Wang et al. 2025); `SharedOpenDrawer` and `SharedCloseBox`,
which are not in it, have as many as their opposites.
"""


def robosuite_name(task: str, robot: str = "Panda") -> str:
    """Return SUITE/TASK of a task with a robot: `robosuite/Lift` for Panda, `robosuite/Lift-IIWA` for IIWA."""
    return f"robosuite/{task}" + ("" if robot == ROBOTS[0] else f"-{robot}")


def resolve_robosuite(task: str, robot: str | None = None) -> tuple[str, str]:
    """Return the task and the robot of a name: `Lift` (Panda), `Lift-IIWA`, or `Lift` and a separate `robot`.

    Raises:
        BadInputError: If task or robot is unknown, or two robots are named.
    """
    where, (name, _, named) = f"robosuite/{task}", task.partition("-")
    hint = "choose from these; a robot may follow, as in Lift-IIWA"
    require_known(name, TASKS, where, f"task {name!r}", hint=hint)
    require(not named or robot in (None, named), where, f"robot {robot!r} beside it", "one robot", "name it once")
    chosen = named or robot or ROBOTS[0]
    require_known(chosen, ROBOTS, where, f"robot {chosen!r}")
    return name, chosen


MASK_PARTS = {"arm": "robot", "gripper": "gripper", "mount": "fixed_mount"}
"""Part of the robot -> prefix of its bodies' names, before the robot's number, as in `gripper0_right_leftfinger`."""
CAMERAS = ("agentview", "robot0_eye_in_hand")
"""The usual cameras: third-person view and wrist."""


_ROUNDING = 1e-4  # tolerance beyond [-1, 1]
_OBJECTS = "object-state"  # robosuite's name of its observations of objects


class RobosuiteEnv(MujocoEnv):
    """A robosuite task with one robot, its scripted expert and the robot's masks.

    An action is seven numbers in [-1, 1]: displacement of the hand along the axes x, y, z of the robot's base (1 is 5
    cm from its present position), rotation about these axes (1 is 0.5 rad), and the gripper (above 0 closes it, below 0
    opens it).

    The state is nine numbers for every robot: position of the grip site in the world in metres (3), the hand's
    quaternion x, y, z, w (4), and positions of the two joints that the gripper's motors drive (2). These two are finger
    travel in metres for Panda, and knuckle angles in radians for the Robotiq grippers of Kinova3 and IIWA. The other
    four joints of a Robotiq gripper follow.

    The environment state is robosuite's `object-state`, which a real robot cannot read: poses of the objects and
    vectors from the hand. It has 10 numbers in Lift (the cube's position and quaternion, and the vector from hand to
    cube), 23 in Stack and 14 in Door. In the shared scene, it has 30 numbers for all tasks; see `SharedTask.poses`.

    After an error of the simulator, the next `reset` rebuilds the simulator.

    Args:
        task: A key of `TASKS`, such as `Lift`; a robot may follow, as in `Lift-IIWA`.
        robot: `Panda`, `Kinova3` or `IIWA`.
        mask_parts: Parts of the robot that its masks cover, from `MASK_PARTS`.
        **options: See `Options`; by default `CAMERAS` and the numbers of steps in the ICon paper's Table 4.

    Attributes:
        env: robosuite's environment.
    """

    hidden = (0,)  # collision geoms, which robosuite does not render
    packages = ("robosuite", "mujoco", "numpy")
    canary = "robosuite/Lift"
    _advised: Array | None = None

    def __init__(
        self,
        task: str,
        *,
        robot: str | None = None,
        mask_parts: Sequence[str] = tuple(MASK_PARTS),
        **options: Unpack[Options],
    ) -> None:
        self.task, self.robot = resolve_robosuite(task, robot)
        wrong = [repr(part) for part in mask_parts if part not in MASK_PARTS]
        expected = f"some of {', '.join(MASK_PARTS)}"
        require(mask_parts and not wrong, "mask_parts", ", ".join(wrong) or "none", expected, "choose from these")
        self.env = _make(self.task, self.robot)
        spec = TASKS[self.task]
        super().__init__(
            robosuite_name(self.task, self.robot),
            spec.instruction,
            action_dim=7,
            state_dim=9,
            environment_dim=int(self.env.observation_spec()[_OBJECTS].size),
            control_hz=CONTROL_HZ,
            horizon=spec.horizon,
            usual=CAMERAS,
            known=self.env.sim.model.camera_names,
            **options,
        )
        arm = self.env.robots[0]
        motors = arm._ref_joint_gripper_actuator_indexes[arm.arms[0]]
        joints = self.env.sim.model._model.actuator_trnid[motors, 0]
        self._fingers = self.env.sim.model._model.jnt_qposadr[joints]
        self._expert = EXPERTS[self.task](self.env)
        self._masked = robot_geoms(self.env.sim.model._model, mask_parts)
        self._begin(0)

    def state(self) -> Array:
        """Return proprioception as described in the class: float32 [9]."""
        hand = (self._observed["robot0_eef_pos"], self._observed["robot0_eef_quat"])
        return np.concatenate([*hand, self.env.sim.data.qpos[self._fingers]]).astype(np.float32)

    def environment_state(self) -> Array:
        """Return robosuite's observations of objects: float32 [E]."""
        return np.asarray(self._observed[_OBJECTS], np.float32)

    def masks(self) -> dict[str, Array]:
        """Return the pixels of the robot's `mask_parts` by camera, at the rendered size: bool [size, size]."""
        return {camera: self._masked[self.renderer.segment(camera)] for camera in self.cameras}

    @property
    def controller(self) -> dict[str, Any]:
        """The configuration of the robot's controller."""
        return dict(self.env.robots[0].composite_controller_config)

    def simulator_state(self) -> Array:
        """Return the simulator's whole state, as stored by robomimic: float64 [n]."""
        return np.asarray(self.env.sim.get_state().flatten())

    def expert(self) -> Array:
        """Return the scripted expert's action for the simulator's current state: float32 [7].

        The expert keeps track of the episode, so call this method before every step. Repeated calls before the same
        step return the same action.
        """
        if self._advised is None:
            self._advised = np.asarray(self._expert.act(), np.float32).clip(-1.0, 1.0)
        return self._advised.copy()

    def _begin(self, seed: int) -> None:
        with seeded_numpy(seed):
            self._observed = self.env.reset()
        self._expert.reset()
        self._advised = None

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        if np.abs(action).max() > 1.0 + _ROUNDING:
            raise self._bad_action(action)
        self._advised = None
        self._observed, reward, _, _ = self.env.step(action.astype(np.float64).clip(-1.0, 1.0))
        return float(reward), bool(self.env._check_success()), False

    def _scene(self) -> tuple[Any, Any]:
        return self.env.sim.model._model, self.env.sim.data._data


def robot_geoms(model: Any, parts: Sequence[str]) -> Array:
    """Return which of G geoms belong to `parts`: bool [G + 1]; the last entry, for pixels without a geom, is False."""
    found = [re.match(r"([a-z_]+)\d", model.body(number).name) for number in range(model.nbody)]
    owned = np.array([match is not None and match[1] in [MASK_PARTS[part] for part in parts] for match in found])
    return np.append(owned[model.geom_bodyid], False)


def _make(task: str, robot: str) -> Any:
    """Build robosuite's environment, without log messages about private settings and optional packages."""
    import_mujoco()
    logger = logging.getLogger("robosuite_logs")
    logger.addFilter(_important)
    try:
        import robosuite
        from robosuite.controllers import load_composite_controller_config

        import counterpoint.envs.robosuite.tasks  # noqa: F401 (registers our tasks)

        with seeded_numpy(0):  # robosuite samples sizes of objects when it creates them
            return robosuite.make(
                task,
                robots=robot,
                controller_configs=load_composite_controller_config(robot=robot),
                control_freq=CONTROL_HZ,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                renderer="mujoco",  # the other renderer imports a viewer
                ignore_done=True,
                hard_reset=False,
            )
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "robosuite", "robosuite") from None
    finally:
        logger.removeFilter(_important)


def _important(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
