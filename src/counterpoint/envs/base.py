"""The face of a simulated control task seen through a camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import Cameras

__all__ = ["ControlTask", "Outcome", "draw_each", "named_cameras"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step led to.

    Attributes:
        reward: Of the step.
        success: Whether the task is solved at this moment; always False where a suite has rewards alone.
        ended: Whether the episode is over before its time.
    """

    reward: float
    success: bool
    ended: bool = False


class ControlTask(Protocol):
    """A task with a camera or several. What follows `reset(seed)` depends on the seed and the actions alone.

    Attributes:
        name: `SUITE/TASK`.
        instruction: The task in words.
        action_dim: A; actions are float32 [A] in [-1, 1].
        state_dim: P, numbers of proprioception.
        horizon: Steps of an episode.
    """

    name: str
    instruction: str
    action_dim: int
    state_dim: int
    horizon: int

    def reset(self, seed: int) -> None:
        """Begin an episode."""

    def draw(self) -> Array:
        """What the camera sees: uint8 [size, size, 3], RGB, upright; several cameras: [C, size, size, 3]."""

    def state(self) -> Array:
        """Proprioception: float32 [P]."""

    def step(self, action: Array) -> Outcome:
        """Act once."""

    def close(self) -> None:
        """Free the graphics context."""


def named_cameras(camera: Cameras, usual: str) -> tuple[str, ...]:
    """Those named, or the usual one."""
    names = (camera,) if isinstance(camera, str) else tuple(camera or ())
    return names or (usual,)


def draw_each(draw: Callable[[str], Array], cameras: Sequence[str]) -> Array:
    """What `ControlTask.draw` returns, of one camera or of several."""
    pictures = [draw(camera) for camera in cameras]
    return np.stack(pictures) if len(pictures) > 1 else pictures[0]
