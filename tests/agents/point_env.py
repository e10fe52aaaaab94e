"""A goal environment without a simulator: a point in a square that moves by its action."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from counterpoint.data.episode import Spaces
from counterpoint.envs.goal.env import EnvConfig
from counterpoint.errors import BadInputError

STEPS = 10
SPACES = Spaces(observation=(2,), goal=(2,), action=2, success_distance=0.2)
CONFIG = EnvConfig(name="point")


class PointEnv(gymnasium.Env[dict[str, Any], NDArray[Any]]):
    """Ten steps of .3 at most in each direction; goals are positions.

    Args:
        lose: What befalls the worker at the third step of an episode: `die`, `hang`, `refuse`, `speechless` or nothing.
    """

    def __init__(self, lose: str = "") -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._lose = lose

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._steps = 0
        return self._seen(), self._info()

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._lose and self._steps == 3:
            if self._lose == "die":
                os._exit(1)
            if self._lose == "speechless":
                raise SpeechlessError
            if self._lose == "refuse":
                raise BadInputError("action", "NaN", "finite numbers", "look at it")
            time.sleep(60)
        moved = self._position + 0.3 * np.asarray(action, np.float32)
        self._position = np.clip(moved, -1, 1).astype(np.float32)
        info = self._info()
        return self._seen(), float(info["is_success"]) - 1, False, self._steps >= STEPS, info

    def _seen(self) -> dict[str, NDArray[Any]]:
        position = self._position.copy()
        return {"observation": position, "achieved_goal": position.copy(), "desired_goal": self._goal.copy()}

    def _info(self) -> dict[str, Any]:
        distance = float(np.linalg.norm(self._position - self._goal))
        return {"distance": distance, "is_success": distance < SPACES.success_distance}


def make_point() -> PointEnv:
    return PointEnv()


def make_dying() -> PointEnv:
    return PointEnv("die")


def make_hanging() -> PointEnv:
    return PointEnv("hang")


def make_refusing() -> PointEnv:
    return PointEnv("refuse")


class SpeechlessError(Exception):
    """An error that does not pickle."""

    def __reduce__(self) -> str:
        raise TypeError("not to be sent")


def make_speechless() -> PointEnv:
    return PointEnv("speechless")


def make_dead_on_arrival() -> PointEnv:
    if multiprocessing.parent_process() is not None:  # in a process of its own
        os._exit(1)
    return PointEnv()


class Straight:
    """Walks straight to the goal."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None: ...

    def looks(self, rows: Sequence[int]) -> list[bool]:
        return [True] * len(rows)

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        offset = observation["desired_goal"] - observation["observation"]
        moved: NDArray[Any] = np.clip(offset / 0.3, -1, 1).astype(np.float32)
        return moved
