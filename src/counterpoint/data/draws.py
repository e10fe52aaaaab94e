"""Random streams, and the drawing of clips: F ordered frames of an episode, together with its instruction.

DecisionNCE, AcTOL and their baselines read clips. An epoch takes the clips in a random order. Every picked step lies in
[0, T-1].
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

Integers = NDArray[np.int64]


def sample_rng(seed: int, step: int, name: str) -> np.random.Generator:
    """Return a random stream that depends only on the arguments; all random numbers of a run come from such streams.

    Args:
        seed: The run's seed, or an episode's; 0 or more.
        step: Number of the step, the episode or the sample for which numbers are drawn.
        name: The purpose of the stream; streams of different names are independent of each other.
    """
    key = np.array([np.uint64(seed), np.uint64(step)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, zlib.crc32(name.encode())]))


def sample_seed(seed: int, step: int, name: str, *, bits: int = 63) -> int:
    """Return a seed below 2^bits for a generator of torch or of a simulator: the first number of `sample_rng`'s stream.

    The arguments are those of `sample_rng`.
    """
    return int(sample_rng(seed, step, name).integers(2**bits))


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> Integers:
    """Return the order of an epoch: a permutation of `count` items that depends only on `seed` and `epoch`."""
    return sample_rng(seed, epoch, "epoch order").permutation(count)


def hold_out(tasks: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split episodes by task; return the numbers of the training episodes and of the held-out episodes.

    Args:
        tasks: The task of each episode.
        share: Share of each task's episodes that is held out, rounded. A task with two or more episodes holds out at
            least one, never all. 0 holds nothing out.
        seed: Random seed of the choice.
    """
    out: set[int] = set()
    groups: dict[str, list[int]] = {}
    for episode, task in enumerate(tasks):
        groups.setdefault(task, []).append(episode)
    for number, own in enumerate(groups.values()):
        count = min(max(1, round(share * len(own))), len(own) - 1) if share else 0
        out.update(sample_rng(seed, number, "hold-out").permutation(own)[:count].tolist())
    return [episode for episode in range(len(tasks)) if episode not in out], sorted(out)


def cross_folds(
    tasks: Sequence[str], recordings: Sequence[Hashable], folds: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Deal episodes into folds for cross-fitting: each task evenly, and all episodes of a recording into one fold.

    Args:
        tasks: The task of each episode.
        recordings: The recording that each episode is a part of.
        folds: Maximum number of folds.
        seed: Random seed of the deal.

    Returns:
        The numbers of each fold's episodes, ascending. Episodes of a task with only one recording are in no fold, since
        nothing would be left to learn the task from. Empty folds are left out.
    """
    parts: dict[Hashable, list[int]] = {}
    for episode, recording in enumerate(recordings):
        parts.setdefault(recording, []).append(episode)
    groups: dict[str, list[Hashable]] = {}
    for task, recording in zip(tasks, recordings, strict=True):
        groups.setdefault(task, []).append(recording)
    dealt: list[list[int]] = [[] for _ in range(folds)]
    of_recording: dict[Hashable, int] = {}
    for number, own in enumerate(groups.values()):
        distinct = list(dict.fromkeys(own))
        if len(distinct) < 2:
            continue
        had = Counter(of_recording[one] for one in distinct if one in of_recording)
        for at in sample_rng(seed, number, "folds").permutation(len(distinct)).tolist():
            recording = distinct[at]
            if recording not in of_recording:
                fold = min(range(folds), key=lambda fold: (had[fold], len(dealt[fold])))
                of_recording[recording] = fold
                had[fold] += 1
                dealt[fold] += parts[recording]
    return tuple(tuple(sorted(fold)) for fold in dealt if fold)


def owners(counts: Integers) -> tuple[Integers, Integers]:
    """Return the episode of each item, and the first item of each episode.

    Items are numbered end to end, and episode e has `counts[e]` of them. A look-up in the first array takes a fiftieth
    of the time of a binary search.
    """
    return np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts


@dataclass(frozen=True)
class Draw:
    """Drawn steps: each sample has steps of one episode.

    Attributes:
        episode: The episode of each sample, int64 [B].
        steps: The steps of each sample, int64 [B, ...].
    """

    episode: Int[Integers, " B"]
    steps: Int[Integers, B * steps]


Drawn = tuple[dict[str, Draw], dict[str, NDArray[Any]]]
"""Draws by name, and values [B, ...] that enter the batch as they are."""


class Table(Protocol):
    """The samples that an index (a rule such as `Clips`) finds in the episodes of one store."""

    def __len__(self) -> int:
        """Number of samples per epoch."""

    def draw(self, count: int, seed: int, step: int, wanted: Collection[str]) -> Drawn:
        """Draw `count` samples for training step `step`.

        The result depends only on the arguments. It includes at least the draws that `wanted` names.
        """


class Pick(Protocol):
    """A rule that picks F steps of each clip; it is plain data and can be compared."""

    @property
    def count(self) -> int:
        """F, the number of steps picked from a clip."""

    @property
    def min_length(self) -> int:
        """Length of the shortest clip that the rule is defined on."""

    def __call__(self, lengths: Int[Integers, " B"], rng: np.random.Generator) -> Int[Integers, "B F"]:
        """Pick F steps of each of B clips; -1 marks padding."""


@dataclass(frozen=True)
class Clips:
    """An index that draws one clip per sample; its draw is `clip`.

    Attributes:
        pick: The rule that picks steps of a clip.
        per_instruction: Take one clip of each distinct instruction per epoch, as the authors of DecisionNCE do.
    """

    pick: Pick
    per_instruction: bool = False
    draws: ClassVar = ("clip",)

    def table(self, lengths: Integers, tasks: Integers) -> ClipTable:
        """Prepare draws over episodes of these lengths and task numbers.

        Raises:
            BadInputError: When a clip is too short for the pick.
        """
        short, least = np.flatnonzero(lengths < self.pick.min_length), f"at least {self.pick.min_length}"
        if len(short):
            where = f"episode {short[0]}" + (f" and {len(short) - 1} more" if len(short) > 1 else "")
            hint = f"set data.min_length = {self.pick.min_length}, or use fewer frames a clip"
            raise BadInputError(where, f"{lengths[short[0]]} frames", least, hint)
        return ClipTable(self, lengths, tasks)


class ClipTable:
    """The N clips of one store: sample g of a run is number g mod N in the random order of epoch g div N."""

    def __init__(self, index: Clips, lengths: Integers, tasks: Integers) -> None:
        self._index, self._lengths, self._tasks = index, lengths, tasks
        self._by_task = np.argsort(tasks, kind="stable")
        self._counts = np.unique(tasks, return_counts=True)[1]

    def __len__(self) -> int:
        return len(self._counts if self._index.per_instruction else self._lengths)

    def draw(self, count: int, seed: int, step: int, wanted: Collection[str]) -> Drawn:
        """Draw the samples of one step; see `Table.draw`."""
        sample = step * count + np.arange(count)
        epoch, place = np.divmod(sample, len(self))
        episode = np.empty(count, np.int64)
        for number in np.unique(epoch).tolist():
            episode[epoch == number] = self._epoch(seed, number)[place[epoch == number]]
        length = self._lengths[episode]
        steps = self._index.pick(length, sample_rng(seed, step, "clip"))
        valid = steps >= 0
        steps = np.where(valid, steps, steps.max(1, keepdims=True))
        about = {"episode": episode, "sample": sample, "length": length, "instruction_id": self._tasks[episode]}
        return {"clip": Draw(episode, steps)}, {"clip.indices": steps, "clip.valid": valid, **about}

    def _epoch(self, seed: int, epoch: int) -> Integers:
        order = epoch_order(len(self), seed, epoch)
        if not self._index.per_instruction:
            return order
        chosen = sample_rng(seed, epoch, "clip of each instruction").integers(self._counts)
        clips: Integers = self._by_task[np.cumsum(self._counts) - self._counts + chosen][order]
        return clips


def _distinct(count: int, lengths: Integers, rng: np.random.Generator) -> Integers:
    """Choose `count` sorted distinct steps of each clip, uniformly; -1 pads clips that have fewer."""
    padding = np.iinfo(np.int64).max
    chosen = np.empty((len(lengths), 0), np.int64)
    for number in range(count):
        step = rng.integers(np.maximum(lengths - number, 1))  # counts the steps not chosen yet
        for taken in chosen.T:
            step += step >= taken
        chosen = np.sort(np.column_stack([chosen, np.where(number < lengths, step, padding)]), 1)
    return np.where(chosen == padding, -1, chosen)


@dataclass(frozen=True)
class StartGoal:
    """DecisionNCE's segments (section 3.2): a random start and a random later goal.

    The start is uniform over the first T-1 steps, the goal is uniform over the steps after the start. (The
    probabilities of Eq. 8 as printed sum to (h-1)/h, because a start at the last frame has no goal.) With more than two
    frames, frame i is start + floor(m i / (F-1)), where m = goal - start (Eq. 24 and 25); a segment of m < F-1 steps
    therefore repeats frames.

    Attributes:
        frames: Number of frames F >= 2: 2 in the paper's method, 5 and 9 in its ablations with 4 and 8 steps.
    """

    frames: int = 2
    min_length: ClassVar[int] = 2

    @property
    def count(self) -> int:
        """F, the number of steps picked from a clip."""
        return self.frames

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick F steps from start to goal."""
        start = rng.integers(lengths - 1)[:, None]
        goal = rng.integers(start + 1, lengths[:, None])
        return start + (goal - start) * np.arange(self.frames) // (self.frames - 1)


@dataclass(frozen=True)
class SortedUniform:
    """The rule of DecisionNCE's released code: F distinct steps, uniform over the clip, sorted.

    Compared with `StartGoal` at T=20, the mean segment has 7.0 steps instead of 5.5, and segments of a single step have
    probability .10 instead of .187.
    """

    frames: int = 2

    @property
    def count(self) -> int:
        """F, the number of steps picked from a clip."""
        return self.frames

    @property
    def min_length(self) -> int:
        """Length of the shortest clip: F steps, since they are distinct."""
        return self.frames

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick F sorted distinct steps."""
        return _distinct(self.frames, lengths, rng)


@dataclass(frozen=True)
class SortedFrames:
    """AcTOL's frames: F distinct steps, sorted; a clip shorter than F gives all of its steps and padding.

    Padding repeats the last step and is marked invalid, so that no clip is lost (the authors' code drops short clips).
    """

    frames: int = 10
    min_length: ClassVar[int] = 2

    @property
    def count(self) -> int:
        """F, the number of steps picked from a clip."""
        return self.frames

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick up to F sorted distinct steps, then padding."""
        return _distinct(self.frames, lengths, rng)


@dataclass(frozen=True)
class LastFrame:
    """The last step only: CLIP aligns this step with the instruction if the goal frame represents the clip."""

    count: ClassVar[int] = 1
    min_length: ClassVar[int] = 1

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick step T-1."""
        return lengths[:, None] - 1


@dataclass(frozen=True)
class GoalTransition:
    """VIP's and LIV's five frames: o_0, o_g, o_t, o_{t+1} of a random segment, and the clip's last frame.

    The start (o_0) is uniform, the goal (o_g) is uniform after the start, and t is uniform in [start, goal]. If t is
    the goal, o_{t+1} is o_t. The reward of the transition is 0 if t is the goal (`indices[2] == indices[1]`), otherwise
    -1.
    """

    count: ClassVar[int] = 5
    min_length: ClassVar[int] = 2

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick five steps of each clip: the segment's start and goal, t and t + 1 between them, and the last, T - 1."""
        start = rng.integers(lengths - 1)
        goal = rng.integers(start + 1, lengths)
        step = rng.integers(start, goal + 1)
        return np.stack([start, goal, step, np.minimum(step + 1, goal), lengths - 1], 1)


@dataclass(frozen=True)
class R3MFrames:
    """R3M's five frames: one of the first 20 %, one of the last 20 %, and three in order from the whole clip.

    Attributes:
        share: The share of the clip that counts as its start, and the share that counts as its end.
    """

    share: float = 0.2
    count: ClassVar[int] = 5
    min_length: ClassVar[int] = 3

    def __call__(self, lengths: Integers, rng: np.random.Generator) -> Integers:
        """Pick steps (o_0, o_g, s_0, s_1, s_2) with s_0 < s_1 < s_2."""
        edge = np.maximum(1, (self.share * lengths).astype(np.int64))
        ends = np.stack([rng.integers(edge), rng.integers(lengths - edge, lengths)], 1)
        return np.concatenate([ends, _distinct(3, lengths, rng)], 1)
