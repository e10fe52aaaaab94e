"""One trajectory: frames, actions, rewards and an instruction.

An episode of T steps is laid out so, with the terminal observation only where the source has one::

    step          0    1    2   ...  T-1  (T)
    frames        o0   o1   o2  ...  oT-1 (oT)
    actions       a0   a1   a2  ...  aT-1
    rewards       r0   r1   r2  ...  rT-1
    timestamps    t0   t1   t2  ...  tT-1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError, require

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """The facts of an episode that are read without decoding a frame.

    Attributes:
        length: T, the number of steps (at least 1).
        instruction: The task in words; empty when the source has none.
        fps: Frames a second.
        success: True when the episode succeeded; `None` where the source does not say.
    """

    length: int
    instruction: str
    fps: float
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A frozen trajectory that is checked when it is made.

    Attributes:
        frames: Camera name -> uint8 [T, H, W, 3], RGB in [0, 255].
        instruction: The task in words; empty when unknown.
        timestamps: Seconds since the start, float64 [T], strictly increasing.
        actions: float32 [T, A], or `None` (videos of people have none).
        state: Proprioception, float32 [T, S], or `None`.
        terminal: Camera name -> uint8 [H, W, 3], the observation after the last action, where it exists.
        masks: Name -> bool [T], True where a step can be trusted.
        success: True when the episode succeeded; `None` where that is not recorded.
        rewards: Reward of each action, float32 [T], or `None`.

    Raises:
        BadInputError: When lengths disagree, a dtype or shape is wrong, or a number is not finite.
    """

    frames: Mapping[str, Array]
    instruction: str
    timestamps: Array
    actions: Array | None = None
    state: Array | None = None
    terminal: Mapping[str, Array] | None = None
    masks: Mapping[str, Array] = field(default_factory=dict)
    success: bool | None = None
    rewards: Array | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "terminal", "masks"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, MappingProxyType(dict(value)))
        text, seen = isinstance(self.instruction, str), self.frames or self.state is not None
        require(text, "instruction", repr(self.instruction), "text", "give the instruction as a string")
        require(seen, "episode", "neither frames nor state", "a camera or a state", "give frames={'camera': ...}")
        _check_timestamps(self.timestamps)
        length = len(self.timestamps)
        for camera, frames in self.frames.items():
            _check_frames(f"frames[{camera!r}]", frames, length)
        for camera, frame in (self.terminal or {}).items():
            _check_frames(f"terminal[{camera!r}]", frame[None], 1)
        for name, ndim in (("actions", 2), ("state", 2), ("rewards", 1)):
            value = getattr(self, name)
            if value is not None:
                _check_vectors(name, value, length, ndim)
        for name, mask in self.masks.items():
            good, found = mask.dtype == np.bool_ and mask.shape == (length,), f"{mask.dtype} {mask.shape}"
            require(good, f"masks[{name!r}]", found, f"bool ({length},)", "give one truth value a step")

    def __len__(self) -> int:
        return len(self.timestamps)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields: frozen mappings do not travel between processes, plain ones do."""
        values = (getattr(self, item.name) for item in fields(self))
        return Episode, tuple(dict(value) if isinstance(value, MappingProxyType) else value for value in values)

    def __repr__(self) -> str:
        cameras = ", ".join(f"{name} {frames.shape[1]}x{frames.shape[2]}" for name, frames in self.frames.items())
        return f"Episode(T={len(self)}, {self.instruction!r}, cameras=[{cameras}])"


def _check_timestamps(timestamps: Array) -> None:
    good = timestamps.ndim == 1 and len(timestamps) > 0 and np.isfinite(timestamps).all()
    good = good and (np.diff(timestamps) > 0).all()
    found = f"{timestamps.dtype} {timestamps.shape}, not strictly increasing and finite"
    require(good, "timestamps", found, "at least one time, in seconds, strictly increasing", "sort the frames by time")


def _check_frames(where: str, frames: Array, length: int) -> None:
    good = frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[-1] == 3 and len(frames) == length
    require(good, where, f"{frames.dtype} {frames.shape}", f"uint8 ({length}, H, W, 3)", "give one RGB image a step")


def _check_vectors(where: str, value: Array, length: int, ndim: int) -> None:
    good = value.dtype == np.float32 and value.ndim == ndim and len(value) == length
    expected = f"float32 ({length}{', n' if ndim == 2 else ','})"
    require(good, where, f"{value.dtype} {value.shape}", expected, "give one a step")
    check_finite(where, value)


def check_finite(where: str, values: Array) -> None:
    """Refuse numbers [T, ...] that are not all finite; the error names the first such step."""
    for step, *_ in np.argwhere(~np.isfinite(values))[:1]:
        raise BadInputError(where, f"a value not finite at step {step}", "finite numbers", "drop or repair it")


@dataclass(frozen=True)
class Spaces:
    """Shapes of an agent's observations, goals and actions.

    Attributes:
        observation: Shape of one observation: (O,) for a state, (H, W, C) for an image.
        goal: Shape of one goal.
        action: Dimensions of a continuous action in [-1, 1], or the number of discrete actions.
        discrete: True for discrete actions.
        success_distance: Goals nearer than this, in the goal's own units, count as reached; 0 means equality.
    """

    observation: tuple[int, ...]
    goal: tuple[int, ...]
    action: int
    discrete: bool = False
    success_distance: float = 0.0


@dataclass(frozen=True)
class GoalEpisode:
    """One episode of a goal-reaching task, as it is written to a data set.

    Attributes:
        observations: float32 [T + 1, O], or uint8 [T + 1, H, W, C].
        achieved: Goal coordinates of every state, [T + 1, *G].
        commanded: The goal it was to reach, [*G].
        actions: float32 [T, A] in [-1, 1], or int64 [T].
        rewards: float32 [T].
        success: bool [T], True where a transition ended at the goal; `None` where that is not recorded.
        terminated: True when the task ended with the last transition, not by a time limit.
    """

    observations: NDArray[Any]
    achieved: NDArray[Any]
    commanded: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[Any]
    success: NDArray[np.bool_] | None = None
    terminated: bool = False

    def __len__(self) -> int:
        return len(self.actions)
