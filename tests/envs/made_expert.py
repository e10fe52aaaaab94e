"""A robosuite task made up: a bright robot goes down over a grey floor, and its seed decides how it fares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import Outcome

ROBOT, FLOOR = 240, 40


class MadeTask:
    """Solved at step 4, unless the seed says otherwise: see `fate`."""

    action_dim, state_dim, horizon = 7, 9, 12
    name, instruction = "robosuite/Lift", "lift the cube"
    troubles: tuple[str, ...] = ()

    def __init__(self, task: str, *, cameras: tuple[str, ...], size: int, **_: Any) -> None:
        self.task, self.cameras, self.size = task, tuple(cameras), size
        state = SimpleNamespace(flatten=lambda: np.array([self.steps, self.place], np.float64))
        model = SimpleNamespace(get_xml=lambda: "<mujoco/>")
        arm = SimpleNamespace(composite_controller_config={"type": "BASIC"})
        self.env = SimpleNamespace(robots=[arm], sim=SimpleNamespace(get_state=lambda: state, model=model))

    def reset(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        fates = ("well", "well", *self.troubles)
        self.fate = fates[int(rng.integers(len(fates)))]
        self.steps, self.place = 0, int(rng.integers(self.size // 2))
        self.broken = False

    def draw(self) -> Array:
        pictures = np.full((len(self.cameras), self.size, self.size, 3), FLOOR, np.uint8)
        pictures[self.draw_masks()] = ROBOT
        return pictures if len(self.cameras) > 1 else pictures[0]

    def draw_masks(self) -> Array:
        masks = np.zeros((len(self.cameras), self.size, self.size), np.bool_)
        for number, mask in enumerate(masks):
            left = self.place + 4 * number
            mask[: 8 + self.steps, left : left + 8] = True
        return masks

    def state(self) -> Array:
        state = np.full(9, self.steps / 10, np.float32)
        state[0] = np.nan if self.fate == "nan" and self.steps == 2 else self.place
        return state

    def expert(self) -> Array:
        return np.linspace(-1, 1, 7).astype(np.float32)

    def step(self, action: Array) -> Outcome:
        assert np.abs(action).max() <= 1
        self.steps += 1
        if self.fate == "raises" and self.steps == 3:
            raise RuntimeError("the constraint solver diverged")
        solved = self.fate != "fails" and self.steps >= 4
        return Outcome(float(solved), solved)

    def close(self) -> None:
        pass
