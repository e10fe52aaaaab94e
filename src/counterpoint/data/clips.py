"""Draws of F ordered frames from an instructed clip: DecisionNCE, AcTOL, and the baselines they are measured against.

Every rule is a frozen dataclass called with an episode's length and a random stream; none ever leaves [0, T-1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.sampling import Drawn

__all__ = ["GoalTransition", "LastFrame", "R3MFrames", "SortedFrames", "SortedUniform", "StartGoal"]


def _steps(*indices: int) -> NDArray[np.int64]:
    return np.array(indices, dtype=np.int64)


@dataclass(frozen=True)
class StartGoal:
    """DecisionNCE's segments (section 3.2): a start uniform over steps with a successor, a goal uniform after it.

    Eq. 8 as printed sums to (h-1)/h, because a start at the last frame has no goal; here the start is uniform over
    the first T-1 steps. With more than two frames, frame i stands at start + floor(m i / (F-1)) (Eq. 24 and 25);
    a segment of m < F-1 steps therefore repeats frames.

    Attributes:
        frames: F >= 2; 2 is the paper's method, 5 and 9 its ablations with 4 and 8 steps.
    """

    frames: int = 2
    min_length: ClassVar[int] = 2

    @property
    def count(self) -> int:
        """F."""
        return self.frames

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Steps from start to goal."""
        start = int(rng.integers(0, length - 1))
        goal = int(rng.integers(start + 1, length))
        return Drawn.all_valid(
            start + (goal - start) * np.arange(self.frames, dtype=np.int64) // (self.frames - 1)
        )


@dataclass(frozen=True)
class SortedUniform:
    """The rule of DecisionNCE's released code: F distinct steps, uniform over the clip, sorted.

    Against `StartGoal` at T=20 the mean segment is 7.0 steps, not 5.5, and single steps are drawn .10 of the time,
    not .187.
    """

    frames: int = 2

    @property
    def count(self) -> int:
        """F."""
        return self.frames

    @property
    def min_length(self) -> int:
        """F: the steps are distinct."""
        return self.frames

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """F sorted distinct steps."""
        return Drawn.all_valid(np.sort(rng.choice(length, self.frames, replace=False)).astype(np.int64))


@dataclass(frozen=True)
class SortedFrames:
    """AcTOL's frames: F distinct steps, sorted; a clip shorter than F gives all of its steps and padding.

    Padding repeats the last step and is marked invalid, so that no clip is lost (the authors' code drops it).
    """

    frames: int = 10
    min_length: ClassVar[int] = 2

    @property
    def count(self) -> int:
        """F."""
        return self.frames

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Up to F sorted distinct steps, then padding."""
        have = min(self.frames, length)
        steps = np.sort(rng.choice(length, have, replace=False)).astype(np.int64)
        indices = np.concatenate([steps, np.full(self.frames - have, steps[-1], dtype=np.int64)])
        return Drawn(indices, np.arange(self.frames) < have)


@dataclass(frozen=True)
class LastFrame:
    """The last step alone: what CLIP aligns with the instruction when the goal frame stands for the clip."""

    count: ClassVar[int] = 1
    min_length: ClassVar[int] = 1

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Step T-1."""
        return Drawn.all_valid(_steps(length - 1))


@dataclass(frozen=True)
class GoalTransition:
    """VIP's and LIV's five frames: o_0, o_g, o_t, o_{t+1} of a random segment, and the clip's last frame.

    The start is uniform, the goal uniform after it, t uniform in [start, goal]; o_{t+1} never passes the goal.
    The reward of the transition is 0 where t is the goal and -1 elsewhere: `indices[2] == indices[1]`.
    """

    count: ClassVar[int] = 5
    min_length: ClassVar[int] = 2

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Steps (start, goal, t, t+1, T-1)."""
        start = int(rng.integers(0, length - 1))
        goal = int(rng.integers(start + 1, length))
        step = int(rng.integers(start, goal + 1))
        return Drawn.all_valid(_steps(start, goal, step, min(step + 1, goal), length - 1))


@dataclass(frozen=True)
class R3MFrames:
    """R3M's five frames: one of the first fifth, one of the last fifth, and three in order between the clip's ends.

    Attributes:
        share: The share of the clip that counts as its beginning and as its end.
    """

    share: float = 0.2
    count: ClassVar[int] = 5
    min_length: ClassVar[int] = 3

    def __call__(self, length: int, rng: np.random.Generator) -> Drawn:
        """Steps (o_0, o_g, s_0, s_1, s_2) with s_0 < s_1 < s_2."""
        edge = max(1, int(self.share * length))
        first = int(rng.integers(0, edge))
        last = int(rng.integers(length - edge, length))
        middle = np.sort(rng.choice(length, 3, replace=False))
        return Drawn.all_valid(_steps(first, last, *middle))
