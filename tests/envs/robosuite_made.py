"""What the adapters use of robosuite and LIBERO, made up: a counter for a simulator, images with a red floor."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.episode import Array
from studies.fewshot.libero import LIBERO_10

CAMERAS = ("frontview", "agentview", "robot0_eye_in_hand")


class MadeSim:
    model = SimpleNamespace(camera_names=CAMERAS)

    def render(self, *, camera_name: str, height: int, width: int) -> Array:
        """As OpenGL gives it: the floor, which is seen at the bottom, comes first."""
        image = np.full((height, width, 3), CAMERAS.index(camera_name), np.uint8)
        image[0] = (255, 0, 0)
        return image


class MadeEnv:
    """Solved after three steps; where objects lie is drawn from both generators that robosuite has had."""

    action_dim = 7

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.sim, self.closed, self.rng = arguments, MadeSim(), False, np.random.default_rng()
        self.steps, self.actions = 0, []  # type: tuple[int, list[Array]]
        self.place = np.zeros(4)

    def reset(self) -> dict[str, Array]:
        self.steps, self.actions = 0, []
        self.place = np.concatenate([self.rng.random(2), np.random.random(2)])
        return self.seen()

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, dict[str, Any]]:
        self.steps += 1
        self.actions.append(action)
        return self.seen(), float(self._check_success()), False, {}

    def _check_success(self) -> bool:
        return self.steps >= 3

    def close(self) -> None:
        self.closed = True

    def seen(self) -> dict[str, Array]:
        return {
            "robot0_joint_pos": np.full(7, 1.0 + self.steps),
            "robot0_gripper_qpos": np.full(2, 2.0 + self.steps),
            "robot0_eef_pos": np.full(3, 3.0 + self.steps),
            "robot0_eef_quat": self.place,
            "cube_pos": np.zeros(3),
        }


class MadeLiberoEnv(MadeEnv):
    """`OffScreenRenderEnv`."""

    def seed(self, seed: int) -> None:
        np.random.seed(seed)
        random.seed(seed)

    def set_init_state(self, state: Array) -> dict[str, Array]:
        self.place = state[:4]
        return self.seen()

    def check_success(self) -> bool:
        return self.steps >= 8

    def _check_success(self) -> bool:
        return self.check_success()


def make_robosuite(monkeypatch: pytest.MonkeyPatch) -> list[MadeEnv]:
    """Put a made-up robosuite in the place of the real one; returns the environments it will have made."""
    made: list[MadeEnv] = []
    robosuite: Any = ModuleType("robosuite")
    robosuite.__version__, robosuite.ALL_ENVIRONMENTS = "1.5.1", {"Lift", "ToolHang", "TwoArmLift"}

    def make(env_name: str, **arguments: Any) -> MadeEnv:
        made.append(MadeEnv(env_name=env_name, **arguments))
        return made[-1]

    robosuite.make = make
    monkeypatch.setitem(sys.modules, "robosuite", robosuite)
    return made


def make_libero(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[MadeLiberoEnv]:
    """Put a made-up LIBERO with `libero_10` and its files in the place of the real one."""
    made: list[MadeLiberoEnv] = []
    tasks = [
        SimpleNamespace(
            name=task.name,
            language=task.text,
            problem_folder="libero_10",
            bddl_file=f"{task.name}.bddl",
            init_states_file=f"{task.name}.pruned_init",
        )
        for task in LIBERO_10
    ]
    (folder / "init_states" / "libero_10").mkdir(parents=True)
    for number, task in enumerate(tasks):
        states = np.arange(5.0)[:, None] + np.full((5, 6), 100.0 * number)
        torch.save(states, folder / "init_states" / "libero_10" / task.init_states_file)

    class Benchmark:
        def get_task_names(self) -> list[str]:
            return [task.name for task in tasks]

        def get_task(self, number: int) -> Any:
            return tasks[number]

    def environment(**arguments: Any) -> MadeLiberoEnv:
        made.append(MadeLiberoEnv(**arguments))
        return made[-1]

    modules: dict[str, Any] = {
        name: ModuleType(name) for name in ("libero", "libero.libero", "libero.libero.benchmark", "libero.libero.envs")
    }
    modules["libero.libero"].get_libero_path = lambda kind: str(folder / kind)
    modules["libero.libero.benchmark"].get_benchmark_dict = lambda: {"libero_10": Benchmark}
    modules["libero.libero.envs"].OffScreenRenderEnv = environment
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made
