"""A robosuite task made up: a bright robot goes down over a grey floor, and its seed decides how it fares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv

ROBOT, FLOOR = 240, 40


class MadeTask(CameraEnv):
    """Solved at step 4, unless the seed says otherwise: see `fate`."""

    steps_allowed = 12
    troubles: tuple[str, ...] = ()

    def __init__(self, task: str, *, cameras: tuple[str, ...], size: int, **_: Any) -> None:
        super().__init__(
            "robosuite/Lift",
            "lift the cube",
            cameras=cameras,
            size=size,
            action_dim=7,
            state_dim=9,
            environment_dim=2,
            control_hz=20,
            horizon=self.steps_allowed,
        )
        self.task = task
        model = SimpleNamespace(get_xml=lambda: "<mujoco/>")
        self.controller = {"type": "BASIC"}
        self.env = SimpleNamespace(sim=SimpleNamespace(model=model))

    def _begin(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        fates = ("well", "well", *self.troubles)
        self.fate = fates[int(rng.integers(len(fates)))]
        self.steps, self.place = 0, int(rng.integers(self.size // 2))
        self.broken = False

    def _images(self) -> dict[str, Array]:
        return {
            camera: np.where(mask[..., None], ROBOT, FLOOR).repeat(3, axis=-1).astype(np.uint8)
            for camera, mask in self.masks().items()
        }

    def masks(self) -> dict[str, Array]:
        masks = {camera: np.zeros((self.size, self.size), np.bool_) for camera in self.cameras}
        for number, mask in enumerate(masks.values()):
            left = self.place + 4 * number
            mask[: 8 + self.steps, left : left + 8] = True
        return masks

    def state(self) -> Array:
        state = np.full(9, self.steps / 10, np.float32)
        state[0] = np.nan if self.fate == "nan" and self.steps == 2 else self.place
        return state

    def environment_state(self) -> Array:
        return np.array([self.place, self.steps], np.float32)

    def describe_rendering(self) -> dict[str, Any]:
        return {"canary": "made"}

    def simulator_state(self) -> Array:
        return np.array([self.steps, self.place], np.float64)

    def expert(self) -> Array:
        return np.linspace(-1, 1, 7).astype(np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        assert np.abs(action).max() <= 1
        self.steps += 1
        if self.fate == "raises" and self.steps == 3:
            raise RuntimeError("the constraint solver diverged")
        solved = self.fate != "fails" and self.steps >= 4
        return float(solved), solved, False
