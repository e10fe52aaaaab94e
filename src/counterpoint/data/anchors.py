"""Anchors: steps t of episodes, with observations and actions around them, and negatives from nearby steps.

Premier-TACO, TACO, ATC, SPR, inverse dynamics, cloning and diffusion policies read the same samples: an anchor t,
observations at t + offset, the actions a_t ... a_{t+K-1}, and optionally negatives from a window around s_{t+K}. Each
kind of draw has its own random stream, keyed on (seed, step), so another choice of negatives does not change the
anchors.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from counterpoint.data.draws import Draw, Drawn, owners, sample_rng
from counterpoint.errors import require

Integers = NDArray[np.int64]

Balance = Literal["steps", "tasks"]
"""`steps`: all anchors are equally likely, so a large task counts more; `tasks`: a task is drawn first, uniformly."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NearNegatives:
    """The rule for negatives from a window around the positive s_{t+K} (Premier-TACO, section 3, Figure 3).

    The candidates are s_{t+K-W} ... s_{t+K+W} without s_{t+K}. The window is cut at the ends of the episode and never
    wraps around. (In the authors' code the window wraps around: early negatives come from the episode's end.)

    Attributes:
        window: W, in steps.
        exclude_anchor: Leave s_t out of the candidates. With K <= W, the window as printed in the paper contains s_t.
        every: Take all candidates (Appendix D, "sampling all") instead of one drawn uniformly.
    """

    window: int = 5
    exclude_anchor: bool = False
    every: bool = False

    @property
    def count(self) -> int:
        """N, the number of negatives per sample."""
        return 2 * self.window if self.every else 1


@dataclass(frozen=True)
class Anchors:
    """Anchor steps, sampled with replacement. Draws: `views` (offsets, then negatives), `offsets` and `actions`.

    Attributes:
        offsets: Observations at t + offset, in order; a repeated offset is a second view of the same observation.
            Before the episode's first step, that step is repeated and marked invalid.
        near: Negatives around the observation at the last offset.
        actions: K actions a_t ... a_{t+K-1}; 0 for none.
        first_action: Shift of the actions: they begin at a_{t+first_action}.
        past_end: Number of steps that actions may reach past the episode's last step. Past the end the last action is
            repeated, and before the first step the first action; repeated actions are marked invalid.
        balance: The probability with which each anchor is drawn; see `Balance`.
    """

    offsets: tuple[int, ...]
    near: NearNegatives | None = None
    actions: int = 0
    first_action: int = 0
    past_end: int = 0
    balance: Balance = "steps"
    draws: ClassVar = ("views", "offsets", "actions")

    def __post_init__(self) -> None:
        good = self.offsets and min(self.actions, self.past_end) >= 0
        require(good, "sampling", self, "at least one offset, no number below 0", "correct the settings")
        require(self.balance in get_args(Balance), "balance", repr(self.balance), "'steps' or 'tasks'", "choose one")
        if self.near is not None:
            require(self.near.window > 0, "window", self.near.window, "1 or more", "5 is the paper's")
            last = self.offsets[-1] >= 0
            require(last, "offsets", self.offsets, "a last offset of 0 or more", "put the positive's last")

    @property
    def reach(self) -> int:
        """Number of steps after t that an episode must have."""
        last_action = self.first_action + self.actions - 1 - self.past_end if self.actions else 0
        return max(*self.offsets, last_action, 0)

    @property
    def min_length(self) -> int:
        """Length of the shortest episode that has an anchor and, if negatives are drawn, a negative for the anchor."""
        if self.near is None:
            return self.reach + 1
        # A candidate always exists one step before the positive, unless that step is the anchor and is left out.
        alone = self.near.exclude_anchor and self.offsets[-1] <= 1
        return max(self.reach + 1, self.offsets[-1] + (2 if alone else 1), 2)

    def counts(self, lengths: Int[Integers, " E"]) -> Int[Integers, " E"]:
        """Return the number of anchors t = 0, 1, ... in episodes of these lengths."""
        # With W = 1 around s_{t+1} and s_t left out, an anchor whose positive is the last step has no candidate.
        near = self.near
        lonely = near is not None and near.exclude_anchor and near.window == 1 and self.offsets[-1] == 1
        counts = lengths - self.reach - lonely
        return np.where(lengths >= self.min_length, np.maximum(counts, 0), 0)

    def table(self, lengths: Integers, tasks: Integers) -> AnchorTable:
        """Prepare draws over episodes of these lengths and task numbers.

        Episodes too short for an anchor are left out, with one warning.

        Raises:
            BadInputError: When no episode is long enough.
        """
        table = AnchorTable(self, lengths, tasks)
        if table.skipped:
            need = f"at least {self.min_length} steps, which this objective's sampling needs"
            require(len(table), "episodes", f"none longer than {lengths.max()} steps", need, "use longer episodes")
            first, text = table.skipped[0], "%d of %d episodes are left out, the first is episode %d with %d steps: %s"
            _log.warning(text, len(table.skipped), len(lengths), first, lengths[first], f"expected {need}")
        return table


class AnchorTable:
    """A table of all anchors of the usable episodes, end to end, with the episodes sorted by task.

    Attributes:
        skipped: Episodes too short for a single anchor.
    """

    def __init__(self, index: Anchors, lengths: Integers, tasks: Integers) -> None:
        self._index, self._lengths, self._tasks = index, lengths, tasks
        counts = index.counts(lengths)
        usable = np.flatnonzero(counts)
        self.skipped: tuple[int, ...] = tuple(np.flatnonzero(counts == 0).tolist())
        self._episodes = usable[np.argsort(tasks[usable], kind="stable")]
        self._row, self._starts = owners(counts[self._episodes])
        last = np.flatnonzero(np.diff(tasks[self._episodes], append=-1))
        self._task_ends = (self._starts + counts[self._episodes])[last]

    def __len__(self) -> int:
        return len(self._row)

    def anchors(self, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw `count` anchors with replacement; return their episodes and steps, int64 [B] each."""
        if self._index.balance == "tasks":
            starts = np.concatenate([[0], self._task_ends[:-1]])
            task = rng.integers(len(starts), size=count)
            number = rng.integers(starts[task], self._task_ends[task])
        else:
            number = rng.integers(len(self), size=count)
        row = self._row[number]
        return self._episodes[row], number - self._starts[row]

    def draw(self, count: int, seed: int, step: int, wanted: Collection[str]) -> Drawn:
        """Draw the samples of one step; see `Table.draw`."""
        index = self._index
        episode, anchor = self.anchors(count, sample_rng(seed, step, "transitions: anchors"))
        last = self._lengths[episode][:, None] - 1
        at = anchor[:, None] + np.array(index.offsets)
        offsets, valid = np.maximum(at, 0), at >= 0
        values: dict[str, NDArray[Any]] = {"task": self._tasks[episode], "episode": episode, "step": anchor}
        values["sample"] = step * count + np.arange(count)
        views = offsets
        if index.near is not None:
            rng = sample_rng(seed, step, "transitions: near")
            near, near_valid = draw_near(index.near, anchor, offsets[:, -1], last[:, 0] + 1, rng)
            views, valid = np.concatenate([offsets, near], 1), np.concatenate([valid, near_valid], 1)
            values["near_valid"] = near_valid
        values["frames_valid"] = valid
        window = (anchor + index.first_action)[:, None] + np.arange(index.actions)
        actions = np.clip(window, 0, last)
        if index.actions:
            values["actions_valid"] = window == actions
        draws = {"views": views, "offsets": offsets, "actions": actions}
        return {name: Draw(episode, steps) for name, steps in draws.items()}, values


def uniform_choice(
    candidates: Bool[NDArray[np.bool_], "B C"], count: int, rng: np.random.Generator
) -> Int[Integers, "B count"]:
    """Choose `count` of each row's true columns, uniformly and with replacement."""
    rank = rng.integers(candidates.sum(1)[:, None], size=(len(candidates), count))
    chosen: Integers = (candidates.cumsum(1)[:, None] > rank[..., None]).argmax(-1)
    return chosen


def draw_near(
    near: NearNegatives,
    anchors: Int[Integers, " B"],
    positives: Int[Integers, " B"],
    lengths: Int[Integers, " B"],
    rng: np.random.Generator,
) -> tuple[Int[Integers, "B N"], Bool[NDArray[np.bool_], "B N"]]:
    """Draw negatives in the window around each positive, inside its episode.

    Args:
        near: The rule of the negatives.
        anchors: Steps t of the anchors.
        positives: Steps t + K of the positives, around which the windows lie.
        lengths: T, the length of each anchor's episode.
        rng: The random stream that picks one step of each window uniformly; unused if `near.every` is set.

    Returns:
        The steps of the negatives, and a mask that is True for real negatives. If `near.every` is set, steps of the
        window that may not be negatives, such as those outside the episode, are replaced by the negative nearest to
        the positive, and the mask is False there.
    """
    W = near.window
    distances = np.concatenate([np.arange(-W, 0), np.arange(1, W + 1)])
    steps = positives[:, None] + distances
    valid = (steps >= 0) & (steps < lengths[:, None])
    if near.exclude_anchor:
        valid &= steps != anchors[:, None]
    if near.every:
        nearest = np.where(valid, np.abs(distances), 2 * W).argmin(1)
        return np.where(valid, steps, np.take_along_axis(steps, nearest[:, None], 1)), valid
    chosen = uniform_choice(valid, 1, rng)
    return np.take_along_axis(steps, chosen, 1), np.ones((len(steps), 1), bool)
