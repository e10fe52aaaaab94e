"""What the adapter uses of RLBench and PyRep, made up: a gripper that goes where it is told, no simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from counterpoint.data.episode import Array

HANDLES = {"Panda_link1_visual": 39, "Panda_leftfinger_visual": 34, "workspace": 7, "microwave": 300}
HOME = np.array((0.25, 0.0, 1.4, 0.0, 1.0, 0.0, 0.0))
GOAL = 0.9  # metres of height below which the made task is solved


class InvalidActionError(Exception):
    pass


class CameraConfig:
    def __init__(self) -> None:
        self.rgb = self.depth = self.mask = self.masks_as_one_channel = True
        self.image_size = (128, 128)


class ObservationConfig:
    names = ("front", "wrist", "left_shoulder", "right_shoulder", "overhead")

    def __init__(self) -> None:
        for name in self.names:
            setattr(self, f"{name}_camera", CameraConfig())
        self.joint_positions = self.joint_velocities = self.gripper_pose = self.gripper_open = True

    def __getattr__(self, name: str) -> Any:
        """What `__init__` sets by name, for type checkers."""
        raise AttributeError(name)

    def set_all(self, value: bool) -> None:
        for name in self.names:
            camera = getattr(self, f"{name}_camera")
            camera.rgb = camera.depth = camera.mask = value
        self.joint_positions = self.joint_velocities = self.gripper_pose = self.gripper_open = value


class MoveArmThenGripper:
    def __init__(self, arm_action_mode: Any, gripper_action_mode: Any) -> None:
        self.modes = (arm_action_mode, gripper_action_mode)


class TaskEnvironment:
    def __init__(self, config: ObservationConfig, count: int) -> None:
        self.config, self.count, self.variation = config, count, 0
        self.actions: list[Array] = []

    def variation_count(self) -> int:
        return self.count

    def set_variation(self, number: int) -> None:
        self.variation = number

    def reset(self) -> tuple[list[str], Any]:
        self.pose, self.opened, self.actions = HOME.copy(), 1.0, []
        self.pose[:2] += np.random.uniform(-0.1, 0.1, 2)
        return [f"close drawer {self.variation}", "shut it"], self.observe()

    def step(self, action: Array) -> tuple[Any, float, bool]:
        assert np.shape(action) == (8,)
        assert np.isclose(np.linalg.norm(action[3:7]), 1.0)
        if np.linalg.norm(action[:3] - self.pose[:3]) > 0.5:
            raise InvalidActionError("too far")
        self.actions.append(action)
        self.pose, self.opened = np.array(action[:7]), float(action[7] > 0.5)
        solved = bool(self.pose[2] < GOAL)
        return self.observe(), float(solved), solved

    def observe(self) -> Any:
        seen: dict[str, Any] = {}
        for number, name in enumerate(self.config.names):
            camera = getattr(self.config, f"{name}_camera")
            height, width = camera.image_size
            handles = np.full((height, width), HANDLES["microwave"])
            handles[0], handles[1], handles[2] = (
                HANDLES["Panda_link1_visual"],
                HANDLES["workspace"],
                HANDLES["Panda_leftfinger_visual"],
            )
            seen[f"{name}_rgb"] = np.full((height, width, 3), number, np.uint8) if camera.rgb else None
            # RLBench gets there by fractions of 255, which leave the whole number by a little.
            seen[f"{name}_mask"] = (handles / 255 * 255 + 1e-5) if camera.mask else None
        low = {"joint_positions": np.arange(7.0), "gripper_pose": self.pose.copy(), "gripper_open": self.opened}
        for name, value in low.items():
            seen[name] = value if getattr(self.config, name) else None
        return SimpleNamespace(**seen)


class Environment:
    made: ClassVar[list[Environment]] = []

    def __init__(self, *, action_mode: Any, obs_config: ObservationConfig, headless: bool) -> None:
        self.action_mode, self.config, self.headless, self.running = action_mode, obs_config, headless, False
        self.made.append(self)

    def launch(self) -> None:
        self.running = True

    def get_task(self, task: Any) -> TaskEnvironment:
        assert self.running
        return TaskEnvironment(self.config, 3 if task == "CloseDrawer" else 1)

    def shutdown(self) -> None:
        self.running = False


class Shape:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_name(self) -> str:
        return self.name

    def get_handle(self) -> int:
        return HANDLES[self.name]


def robot(*names: str) -> Any:
    tree = [Shape(name) for name in names]
    return lambda: SimpleNamespace(get_objects_in_tree=lambda *, object_type: tree)


@contextmanager
def rlbench_simulated() -> Iterator[None]:
    """`rlbench` and `pyrep` can be imported as far as the adapter needs them, and are gone afterwards."""
    tasks = ("CloseMicrowave", "CloseDrawer", "OpenBox", "TakeLidOffSaucepan", "PutRubbishInBin")
    contents: dict[str, dict[str, Any]] = {
        "rlbench": {},
        "rlbench.action_modes": {},
        "rlbench.action_modes.action_mode": {"MoveArmThenGripper": MoveArmThenGripper},
        "rlbench.action_modes.arm_action_modes": {"EndEffectorPoseViaIK": lambda: "ik"},
        "rlbench.action_modes.gripper_action_modes": {"Discrete": lambda: "discrete"},
        "rlbench.backend": {},
        "rlbench.backend.exceptions": {"InvalidActionError": InvalidActionError},
        "rlbench.environment": {"Environment": Environment},
        "rlbench.observation_config": {"ObservationConfig": ObservationConfig},
        "rlbench.tasks": {name: name for name in tasks},
        "pyrep": {},
        "pyrep.const": {"ObjectType": SimpleNamespace(SHAPE="shape")},
        "pyrep.robots": {},
        "pyrep.robots.arms": {},
        "pyrep.robots.arms.panda": {"Panda": robot("Panda_link1_visual", "workspace")},
        "pyrep.robots.end_effectors": {},
        "pyrep.robots.end_effectors.panda_gripper": {"PandaGripper": robot("Panda_leftfinger_visual")},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module
    Environment.made.clear()
    try:
        yield
    finally:
        for name in contents:
            del sys.modules[name]
