"""Which steps a transition batch holds: anchors, and negatives near their positives, all drawn at once.

Each kind of draw has a stream of its own, keyed on (seed, batch number): other negatives leave the anchors alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from counterpoint.data.nstep import NearNegatives, NStepSpec

__all__ = ["AnchorTable", "Balance", "draw_near"]

Balance = Literal["steps", "tasks"]
"""`steps`: every anchor alike, so that a task counts by its size; `tasks`: every task alike, then its anchors."""

Places = NDArray[np.int64]


@dataclass(frozen=True)
class AnchorTable:
    """All anchors of the usable episodes, end to end, episodes sorted by task.

    Attributes:
        episodes: int64 [E], the usable episodes.
        ends: int64 [E], how many anchors these and those before have together.
        task_ends: int64 [M], the same by task, of the tasks that have any.
    """

    episodes: Int[Places, " E"]
    ends: Int[Places, " E"]
    task_ends: Int[Places, " M"]

    @classmethod
    def of(cls, spec: NStepSpec, lengths: Int[Places, " F"], tasks: Int[Places, " F"]) -> AnchorTable:
        """The table of F episodes with these lengths and task numbers."""
        counts = spec.anchors(lengths)
        usable = np.flatnonzero(counts)
        episodes = usable[np.argsort(tasks[usable], kind="stable")]
        ends = np.cumsum(counts[episodes])
        last_of_task = np.flatnonzero(np.diff(tasks[episodes], append=-1))
        return cls(episodes, ends, ends[last_of_task])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def draw(
        self, count: int, balance: Balance, rng: np.random.Generator
    ) -> tuple[Int[Places, " B"], Int[Places, " B"]]:
        """Episodes and steps of `count` anchors, with replacement."""
        if balance == "tasks":
            starts = np.concatenate([[0], self.task_ends[:-1]])
            task = rng.integers(len(starts), size=count)
            place = rng.integers(starts[task], self.task_ends[task])
        else:
            place = rng.integers(len(self), size=count)
        row = np.searchsorted(self.ends, place, side="right")
        starts_of_row = np.concatenate([[0], self.ends[:-1]])[row]
        return self.episodes[row], place - starts_of_row


def draw_near(
    near: NearNegatives,
    anchors: Int[Places, " B"],
    positives: Int[Places, " B"],
    lengths: Int[Places, " B"],
    rng: np.random.Generator,
) -> tuple[Int[Places, "B N"], Bool[NDArray[np.bool_], "B N"]]:
    """Steps of negatives in the window around each positive, inside its episode.

    Args:
        near: The rule.
        anchors: t.
        positives: t + K, around which the window lies.
        lengths: T of each one's episode.
        rng: For one candidate of each, uniformly.

    Returns:
        Steps, and which of them are candidates; where `near.every` asks for more than there are, the nearest
        candidate is repeated and marked False.
    """
    W = near.window
    distances = np.concatenate([np.arange(-W, 0), np.arange(1, W + 1)])
    steps = positives[:, None] + distances
    valid = (steps >= 0) & (steps < lengths[:, None])
    if near.exclude_anchor:
        valid &= steps != anchors[:, None]
    if near.every:
        nearest = np.where(valid, np.abs(distances), 2 * W).argmin(1)
        filler = np.take_along_axis(steps, nearest[:, None], 1)
        return np.where(valid, steps, filler), valid
    # The r-th candidate of each row, r uniform.
    rank = rng.integers(valid.sum(1))
    chosen = (valid.cumsum(1) > rank[:, None]).argmax(1)
    return np.take_along_axis(steps, chosen[:, None], 1), np.ones((len(steps), 1), bool)
