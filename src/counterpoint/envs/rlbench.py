"""Five tasks of RLBench as `CameraEnv`s, with the robot's masks.

RLBench (James et al. 2020), PyRep and CoppeliaSim 4.1 are not on PyPI. Install CoppeliaSim as PyRep's README says, then
run::

    pip install git+https://github.com/stepjam/PyRep.git git+https://github.com/stepjam/RLBench.git

This adapter is written from RLBench's source code and tested on a mock of RLBench's interface, not in CoppeliaSim: its
images, masks and dynamics are unverified. To record demonstrations, use RLBench's `tools/dataset_generator.py` at 256
by 256 pixels; `open_dataset` reads its output.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Unpack

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv, Options, seeded_numpy
from counterpoint.errors import MissingExtraError, require, require_known
from counterpoint.formats.rlbench.poses import from_action, to_state

CAMERAS = ("front", "wrist")
"""The two of RLBench's five cameras that the ICon paper uses."""
CONTROL_HZ = 20.0
"""Actions per second of RLBench's demonstrations."""

_KNOWN_CAMERAS = (*CAMERAS, "left_shoulder", "right_shoulder", "overhead")
_ROBOT = "Panda"  # prefix of the names of the arm's and the gripper's shapes

TASKS = {
    "close_microwave": 150,
    "close_drawer": 200,
    "open_box": 200,
    "take_lid_off_saucepan": 200,
    "put_rubbish_in_bin": 300,
}
"""Name of a task in RLBench -> number of steps per episode (ICon, Table 4)."""


class RLBenchEnv(CameraEnv):
    """One task with the Panda arm.

    An action is the gripper's pose at the end of the step, seven numbers as in `counterpoint.formats.rlbench.poses`.
    RLBench moves the arm there by inverse kinematics (`EndEffectorPoseViaIK`), then opens or closes the gripper
    (`Discrete`). If inverse kinematics cannot reach the pose, the arm does not move, and the step still counts.

    RLBench gives a reward of 1 for success. The same seed gives the same episode, as far as CoppeliaSim's physics are
    deterministic. A process can run one simulation at a time.

    Args:
        task: One of `TASKS`.
        variation: Index of the task's variation in RLBench. Close Drawer has three variations, for its three drawers;
            every other task has one.
        **options: See `Options`. The defaults are the ICon paper's: `CAMERAS`, images of 256 pixels, and the numbers of
            steps in `TASKS`.

    Attributes:
        robot_handles: CoppeliaSim's handles (numbers) of the robot's shapes, which identify the robot in RLBench's
            masks.
    """

    usual_size = 256

    def __init__(self, task: str, *, variation: int = 0, **options: Unpack[Options]) -> None:
        require_known(task, TASKS, f"rlbench/{task}", f"task {task!r}")
        super().__init__(
            f"rlbench/{task}",
            "",
            action_dim=7,
            state_dim=14,
            control_hz=CONTROL_HZ,
            horizon=TASKS[task],
            usual=CAMERAS,
            known=_KNOWN_CAMERAS,
            **options,
        )
        self._environment = _environment(self.cameras, self._rendered_size)
        self._unreachable = _import("rlbench.backend.exceptions").InvalidActionError
        self._environment.launch()
        try:
            task_class = getattr(_import("rlbench.tasks"), task.title().replace("_", ""))
            self._task = self._environment.get_task(task_class)
            count = self._task.variation_count()
            require(0 <= variation < count, "variation", variation, f"0 to {count - 1}, of {task}", "choose from these")
            self._task.set_variation(variation)
            self.robot_handles = _robot_handles()
            self._begin(0)
        except BaseException:
            self.close()
            raise

    def state(self) -> Array:
        """Return joint angles, and pose and opening of the gripper: float32 [14]; see `poses.to_state`."""
        parts = (self._seen.joint_positions, self._seen.gripper_pose, self._seen.gripper_open)
        return to_state(*(np.asarray(part, float) for part in parts))

    def masks(self) -> dict[str, Array]:
        """Return the robot's pixels by camera, at the rendered size: bool [size, size]."""
        # RLBench computes an object's number from fractions of 255, so the number must be rounded.
        numbers = {camera: np.rint(getattr(self._seen, f"{camera}_mask")) for camera in self.cameras}
        return {camera: np.isin(number, self.robot_handles) for camera, number in numbers.items()}

    def close(self) -> None:
        """End the simulation."""
        self._environment.shutdown()

    def _begin(self, seed: int) -> None:
        with seeded_numpy(seed):
            descriptions, self._seen = self._task.reset()
        self.instruction = str(descriptions[0])

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        try:
            self._seen, reward, ended = self._task.step(from_action(action.astype(np.float64)))
        except self._unreachable:
            return 0.0, False, False
        return float(reward), float(reward) >= 1.0, bool(ended)

    def _images(self) -> dict[str, Array]:
        return {camera: np.array(getattr(self._seen, f"{camera}_rgb"), np.uint8) for camera in self.cameras}


def _environment(cameras: tuple[str, ...], size: int) -> Any:
    """Build RLBench's environment without launching it, with inverse kinematics and only the observations needed."""
    seen = _import("rlbench.observation_config").ObservationConfig()
    seen.set_all(False)
    seen.joint_positions = seen.gripper_pose = seen.gripper_open = True
    for name in cameras:
        camera = getattr(seen, f"{name}_camera")
        camera.rgb = camera.mask = camera.masks_as_one_channel = True
        camera.image_size = (size, size)
    mode = _import("rlbench.action_modes.action_mode").MoveArmThenGripper(
        _import("rlbench.action_modes.arm_action_modes").EndEffectorPoseViaIK(),
        _import("rlbench.action_modes.gripper_action_modes").Discrete(),
    )
    return _import("rlbench.environment").Environment(action_mode=mode, obs_config=seen, headless=True)


def _robot_handles() -> tuple[int, ...]:
    """Return the numbers of the arm's and the gripper's shapes in the running simulation."""
    shape = _import("pyrep.const").ObjectType.SHAPE
    arm = _import("pyrep.robots.arms.panda").Panda()
    gripper = _import("pyrep.robots.end_effectors.panda_gripper").PandaGripper()
    shapes = (part for whole in (arm, gripper) for part in whole.get_objects_in_tree(object_type=shape))
    return tuple(sorted({part.get_handle() for part in shapes if part.get_name().startswith(_ROBOT)}))


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        origin = "which comes from GitHub with CoppeliaSim (counterpoint.envs.rlbench says how),"
        raise MissingExtraError(f"{package}, {origin}", "rlbench") from None
