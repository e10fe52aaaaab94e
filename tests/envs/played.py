"""What a step of a `CameraEnv` led to, and its images as one array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv


class Outcome(NamedTuple):
    reward: float
    success: bool
    ended: bool = False


def act(env: CameraEnv, action: Array) -> Outcome:
    """Step, and leave the observation and the truncation out."""
    _, reward, ended, _, info = env.step(action)
    return Outcome(reward, info.get("is_success", False), ended)


def images(env: CameraEnv) -> Array:
    """uint8 [C, size, size, 3]."""
    return np.stack(list(env.images().values()))


def masks(env: CameraEnv) -> Array:
    """bool [C, size, size]."""
    return np.stack(list(env.masks().values()))  # type: ignore[attr-defined]
