"""One trajectory: frames, actions, rewards and an instruction.

Step t holds the image o_t, its time, the action a_t taken there and the reward r_t of that action. No image follows the
last action.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError, require

Array = NDArray[Any]
_VOID = {"", "none", "null", "nan", "n/a", "na", "-", "unknown", "todo", "task", "no instruction"}
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's control and format characters (of zero width), and spaces

Segment = tuple[int, str]
"""A part of an episode with a task of its own: the number of its first step, and the task in words."""


def task_of(segments: Sequence[Segment]) -> str:
    """Return the task of a whole episode in words: the different tasks of its segments, in order."""
    return "; ".join(dict.fromkeys(words for _, words in segments if visible(words)))


def visible(text: str) -> str:
    """Return a text without the spaces, of any kind, and the characters of zero width around it."""
    first, end = 0, len(text)
    while first < end and unicodedata.category(text[first]) in _UNSEEN:
        first += 1
    while first < end and unicodedata.category(text[end - 1]) in _UNSEEN:
        end -= 1
    return text[first:end]


def says_nothing(instruction: str) -> bool:
    """Return whether an instruction is empty, shows nothing, or is a placeholder such as "none"."""
    return visible(instruction).casefold() in _VOID


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """The facts of an episode that are read without decoding a frame.

    Attributes:
        length: T, the number of steps (at least 1).
        instruction: The task in words; empty when the source has none, or a text that shows nothing.
        fps: Frames a second.
        success: True when the episode succeeded; `None` where the source does not say.
        segments: Parts with tasks of their own, in order; the first starts at step 0. Empty if there is only one task.
        wordings: Texts of the same task; each sample of a batch draws one of them, or has `instruction` if there are
            none.
    """

    length: int
    instruction: str
    fps: float
    success: bool | None = None
    segments: tuple[Segment, ...] = ()
    wordings: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not visible(self.instruction):
            object.__setattr__(self, "instruction", "")
        if self.segments:
            parts = tuple((first, words if visible(words) else "") for first, words in self.segments)
            object.__setattr__(self, "segments", parts)


@dataclass(frozen=True, slots=True)
class Episode:
    """An immutable trajectory, whose parts are checked when it is created.

    Attributes:
        frames: Images of each camera by its name, uint8 [T, H, W, 3], RGB in [0, 255].
        instruction: The task in words; empty when unknown.
        timestamps: Seconds since the start, float64 [T], strictly increasing.
        actions: float32 [T, A], or `None` (as for videos of people).
        state: Proprioception, float32 [T, S], or `None`.
        success: True when the episode succeeded; `None` where that is not recorded.
        rewards: Reward of each action, float32 [T], or `None`.
        environment_state: State of the surroundings, such as poses of objects, float32 [T, E], or `None`.
        segments: Parts with tasks of their own, in order; the first starts at step 0. Empty if there is only one task.
        depth: Depth images of each depth camera by its name, [T, H, W]: distances as uint16 in millimetres or as
            float32 in metres.

    Raises:
        BadInputError: When lengths disagree, a dtype or shape is wrong, a number is not finite, or segments are out of
            order.
    """

    frames: Mapping[str, Array]
    instruction: str
    timestamps: Array
    actions: Array | None = None
    state: Array | None = None
    success: bool | None = None
    rewards: Array | None = None
    environment_state: Array | None = None
    segments: tuple[Segment, ...] = ()
    depth: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", MappingProxyType(dict(self.frames)))
        object.__setattr__(self, "depth", MappingProxyType(dict(self.depth)))
        text, seen = isinstance(self.instruction, str), self.frames or self.state is not None
        require(text, "instruction", repr(self.instruction), "text", "give the instruction as a string")
        require(seen, "episode", "neither frames nor state", "at least one camera, or a state", "give frames")
        times, length, hint = self.timestamps, len(self.timestamps), "sort the frames by time"
        good = bool(times.ndim == 1 and length > 0 and np.isfinite(times).all() and (np.diff(times) > 0).all())
        expected = "at least one time, in seconds, finite and strictly increasing"
        require(good, "timestamps", f"{times.dtype} {times.shape}", expected, hint)
        firsts = [first for first, _ in self.segments]
        good = firsts == sorted(set(firsts)) and (not firsts or (firsts[0] == 0 and firsts[-1] < length))
        expected = f"the first at 0, in ascending order, below {length}"
        require(good, "segments", f"first steps {firsts}", expected, "correct the first steps")
        for camera, frames in self.frames.items():
            good = frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[-1] == 3 and len(frames) == length
            where, expected = f"frames[{camera!r}]", f"uint8 ({length}, H, W, 3)"
            require(good, where, f"{frames.dtype} {frames.shape}", expected, "give one RGB image in [0, 255] a step")
        for camera, depth in self.depth.items():
            good = depth.dtype in (np.uint16, np.float32) and depth.ndim == 3 and len(depth) == length
            where, expected = f"depth[{camera!r}]", f"uint16 (millimetres) or float32 (metres) ({length}, H, W)"
            require(good, where, f"{depth.dtype} {depth.shape}", expected, "give one depth image a step")
        for name, expected in (("actions", ", n"), ("state", ", n"), ("environment_state", ", n"), ("rewards", ",")):
            value = getattr(self, name)
            if value is not None:
                good = value.dtype == np.float32 and value.ndim == len(expected.split()) and len(value) == length
                found, hint = f"{value.dtype} {value.shape}", "give one vector (of rewards, one number) a step"
                require(good, name, found, f"float32 ({length}{expected})", hint)
                check_finite(name, value)

    def __len__(self) -> int:
        return len(self.timestamps)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields, with plain mappings, since a frozen mapping cannot be pickled."""
        parts = [getattr(self, item.name) for item in fields(self)]
        return Episode, tuple(dict(part) if isinstance(part, MappingProxyType) else part for part in parts)

    def __repr__(self) -> str:
        cameras = ", ".join(f"{name} {frames.shape[1]}x{frames.shape[2]}" for name, frames in self.frames.items())
        return f"Episode(T={len(self)}, {self.instruction!r}, cameras=[{cameras}])"


def check_finite(where: str, values: Array) -> None:
    """Refuse numbers [T, ...] if any is not finite; the error names the first step with such a number."""
    for step, *_ in np.argwhere(~np.isfinite(values))[:1]:
        found = f"a value that is not finite at step {step}"
        raise BadInputError(where, found, "finite numbers", "drop or repair the episode")


@dataclass(frozen=True)
class Spaces:
    """Shapes of an agent's observations, goals and actions.

    Attributes:
        observation: Shape of one observation: (O,) for a state, (H, W, C) for an image.
        goal: Shape of one goal.
        action: Dimensions of a continuous action in [-1, 1], or the number of discrete actions.
        discrete: True for discrete actions.
        success_distance: Goals nearer than this, in the units of the goal, count as reached; 0 means equality.
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
        commanded: The goal that the agent was to reach in the episode, [*G].
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
