"""Five tasks of RLBench behind the face of `ControlTask`, with the robot's masks.

RLBench (James et al. 2020) runs in CoppeliaSim, which PyPI does not have; nor has it RLBench or PyRep (its package
`pyrep` is another). Install CoppeliaSim 4.1 for Linux, set `COPPELIASIM_ROOT`, `LD_LIBRARY_PATH` and
`QT_QPA_PLATFORM_PLUGIN_PATH` as PyRep's readme says, then, beside the extra `rlbench` with what these need of PyPI::

    pip install git+https://github.com/stepjam/PyRep.git git+https://github.com/stepjam/RLBench.git

This adapter is written against RLBench's sources and tested on a stand-in of its interface. Nobody has run it in
CoppeliaSim here: its pictures, masks and dynamics are unverified. For demonstrations run RLBench's own
`tools/dataset_generator.py`, at 256 by 256 pixels; `open_dataset` reads what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats.rlbench.unpickle import from_action, to_state
from counterpoint.data.store import Cameras
from counterpoint.envs.base import Outcome
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["CAMERAS", "TASKS", "RLBenchSpec", "RLBenchTask"]

CAMERAS = ("front", "wrist")
"""ICon's two of RLBench's five."""

_KNOWN_CAMERAS = (*CAMERAS, "left_shoulder", "right_shoulder", "overhead")
_ROBOT = "Panda"  # how the names of the arm's and the gripper's shapes begin


@dataclass(frozen=True, slots=True)
class RLBenchSpec:
    """What the library knows of a task.

    Attributes:
        task_class: RLBench's class, in `rlbench.tasks`.
        horizon: Steps of an episode (ICon, Table 4).
    """

    task_class: str
    horizon: int


TASKS: Mapping[str, RLBenchSpec] = MappingProxyType(
    {
        "close_microwave": RLBenchSpec("CloseMicrowave", 150),
        "close_drawer": RLBenchSpec("CloseDrawer", 200),
        "open_box": RLBenchSpec("OpenBox", 200),
        "take_lid_off_saucepan": RLBenchSpec("TakeLidOffSaucepan", 200),
        "put_rubbish_in_bin": RLBenchSpec("PutRubbishInBin", 300),
    }
)
"""RLBench's name of a task -> what is known of it."""


class RLBenchTask:
    """One task with the Panda arm.

    What follows `reset(seed)` depends on the seed and the actions, as far as CoppeliaSim's physics repeat themselves.

    An action is where the gripper shall be at its end, seven numbers as `counterpoint.data.formats.rlbench.unpickle`
    tells; RLBench moves the arm there by inverse kinematics (`EndEffectorPoseViaIK`), then opens or closes the
    gripper (`Discrete`). A pose that inverse kinematics cannot reach from where the arm is leaves it there: the step
    is spent.

    RLBench counts success as a reward of 1. A process can run one simulation at a time.

    Args:
        task: One of `TASKS`.
        cameras: One of RLBench's cameras or several; `CAMERAS` by default.
        size: Height and width of the pictures, in pixels; 256 in the paper.
        horizon: Steps of an episode; the paper's by default.
        variation: RLBench's number of the task's variation. Close Drawer has three, for its three drawers; the others
            have one.

    Attributes:
        robot_handles: CoppeliaSim's numbers of the robot's shapes, as in the masks.

    Raises:
        BadInputError: When task, camera or variation is unknown.
        MissingExtraError: When RLBench or PyRep is not installed.
    """

    action_dim = 7
    state_dim = 14

    def __init__(
        self, task: str, *, cameras: Cameras = None, size: int = 256, horizon: int | None = None, variation: int = 0
    ) -> None:
        spec = _known(task)
        self.cameras = _check_cameras(cameras)
        self.name, self.size, self.horizon = f"rlbench/{task}", size, horizon or spec.horizon
        self._environment = _environment(self.cameras, size)
        self._unreachable = _import("rlbench.backend.exceptions").InvalidActionError
        self._environment.launch()
        try:
            self._task = self._environment.get_task(getattr(_import("rlbench.tasks"), spec.task_class))
            if not 0 <= variation < self._task.variation_count():
                raise BadInputError(
                    "variation",
                    f"{variation}",
                    f"0 to {self._task.variation_count() - 1}, of {task}",
                    "choose one of these",
                )
            self._task.set_variation(variation)
            self.robot_handles = _robot_handles()
            self.reset(0)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> None:
        """Place the objects by `seed`."""
        with _seeded(seed):
            descriptions, self._seen = self._task.reset()
        self.instruction = str(descriptions[0])

    def draw(self) -> Array:
        """uint8 [size, size, 3], or [C, size, size, 3]: RGB, upright."""
        pictures = [np.asarray(getattr(self._seen, f"{camera}_rgb"), np.uint8) for camera in self.cameras]
        return np.stack(pictures) if len(pictures) > 1 else pictures[0]

    def draw_masks(self) -> Array:
        """Where the pictures show the robot: bool [C, size, size], also of one camera."""
        # RLBench computes an object's number of fractions of 255, so it is rounded.
        masks = [np.rint(getattr(self._seen, f"{camera}_mask")) for camera in self.cameras]
        return np.isin(np.stack(masks), self.robot_handles)

    def state(self) -> Array:
        """Joint angles, pose and opening of the gripper: float32 [14], see `rlbench_poses.to_state`."""
        seen = self._seen
        joints, pose = np.asarray(seen.joint_positions, float), np.asarray(seen.gripper_pose, float)
        return to_state(joints, pose, np.asarray(seen.gripper_open, float))

    def step(self, action: Array) -> Outcome:
        """Move the gripper where the action says.

        Raises:
            BadInputError: When the action has not seven finite numbers.
        """
        checked = _check_action(action, self.name)
        try:
            self._seen, reward, ended = self._task.step(from_action(checked))
        except self._unreachable:
            return Outcome(0.0, False)
        return Outcome(float(reward), float(reward) >= 1.0, bool(ended))

    def close(self) -> None:
        """End the simulation."""
        self._environment.shutdown()


def _known(task: str) -> RLBenchSpec:
    if task not in TASKS:
        raise BadInputError(f"rlbench/{task}", f"task {task!r}", f"one of {', '.join(TASKS)}", "choose from these")
    return TASKS[task]


def _check_cameras(cameras: Cameras) -> tuple[str, ...]:
    names = (cameras,) if isinstance(cameras, str) else tuple(cameras or CAMERAS)
    for name in names:
        if name not in _KNOWN_CAMERAS:
            raise BadInputError("camera", repr(name), f"one of {', '.join(_KNOWN_CAMERAS)}", "choose from these")
    return names


def _check_action(action: Array, where: str) -> Array:
    """float64 [7]. Where it leads is for inverse kinematics to say: poses have no bounds."""
    checked = np.asarray(action, np.float64)
    if checked.shape != (RLBenchTask.action_dim,) or not np.isfinite(checked).all():
        raise BadInputError(
            f"{where}: action",
            np.array2string(checked, precision=3, threshold=16),
            f"{RLBenchTask.action_dim} finite numbers: position, rotation, gripper",
            "act with a policy that was trained on this suite",
        )
    return checked


def _environment(cameras: tuple[str, ...], size: int) -> Any:
    """RLBench's environment, not yet launched: inverse kinematics, and what the policies see, nothing else."""
    modes = "rlbench.action_modes"
    arm = _import(f"{modes}.arm_action_modes").EndEffectorPoseViaIK()
    gripper = _import(f"{modes}.gripper_action_modes").Discrete()
    seen = _import("rlbench.observation_config").ObservationConfig()
    seen.set_all(False)
    seen.joint_positions = seen.gripper_pose = seen.gripper_open = True
    for name in cameras:
        camera = getattr(seen, f"{name}_camera")
        camera.rgb = camera.mask = camera.masks_as_one_channel = True
        camera.image_size = (size, size)
    return _import("rlbench.environment").Environment(
        action_mode=_import(f"{modes}.action_mode").MoveArmThenGripper(arm, gripper), obs_config=seen, headless=True
    )


def _robot_handles() -> tuple[int, ...]:
    """Of the running simulation: the arm's and the gripper's shapes, known by their names."""
    shape = _import("pyrep.const").ObjectType.SHAPE
    arm = _import("pyrep.robots.arms.panda").Panda()
    gripper = _import("pyrep.robots.end_effectors.panda_gripper").PandaGripper()
    shapes = (part for whole in (arm, gripper) for part in whole.get_objects_in_tree(object_type=shape))
    return tuple(sorted({part.get_handle() for part in shapes if part.get_name().startswith(_ROBOT)}))


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{(error.name or module).partition('.')[0]}, which comes from GitHub with CoppeliaSim "
            "(counterpoint.envs.rlbench says how),",
            "rlbench",
        ) from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """numpy's global generator, from which RLBench draws, set to `seed` and put back afterwards."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
