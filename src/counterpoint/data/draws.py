"""Draws of F ordered frames from an instructed clip: DecisionNCE, AcTOL, and the baselines they are measured against.

Every rule is a frozen dataclass called with an episode's length and a random stream; none ever leaves [0, T-1].

Which steps a transition batch holds: anchors, and negatives near their positives, all drawn at once.

Each kind of draw has a stream of its own, keyed on (seed, batch number): other negatives leave the anchors alone.

What a goal-reaching agent needs from a replay buffer, as plain data, and how future steps are drawn.

An episode of T transitions holds T + 1 states::

    state        s0   s1   s2  ...  sT-1   sT
    action       a0   a1   a2  ...  aT-1
    transition   0    1    2   ...  T-1        transition t = (s_t, a_t, s_{t+1})

The future of transition t is s_{t+k}, with k = 1, 2, ... drawn with probability (1 - gamma) gamma^(k - 1)
(TD InfoNCE, Eq. 3). An episode ends, so only k <= T - t can be served; `Tail` names what to do about the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from counterpoint.data.spec import Drawn, NearNegatives, NStepSpec
from counterpoint.errors import BadInputError

__all__ = [
    "BATCH_KEYS",
    "AnchorTable",
    "Balance",
    "GoalDraws",
    "GoalEpisode",
    "GoalSpec",
    "GoalTransition",
    "LastFrame",
    "R3MFrames",
    "SortedFrames",
    "SortedUniform",
    "Spaces",
    "StartGoal",
    "Tail",
    "draw_near",
    "future_offsets",
]


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
        return Drawn.all_valid(start + (goal - start) * np.arange(self.frames, dtype=np.int64) // (self.frames - 1))


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


Integers = NDArray[np.int64]

Tail = Literal["renormalise", "clip", "reject"]
"""What becomes of a future step that lies beyond the end of its episode.

`renormalise` draws from the geometric distribution restricted to the episode, `clip` takes the last state instead,
`reject` gives the whole transition up and draws another one (so that late transitions are rarer).
"""

BATCH_KEYS = (
    "observation",
    "action",
    "next_observation",
    "next_goal",
    "goal",
    "future_goal",
    "future_offset",
    "random_goal",
    "reward",
    "terminated",
)


@dataclass(frozen=True)
class Spaces:
    """What an agent sees and does.

    Attributes:
        observation: Shape of one observation: (O,) for a state, (H, W, C) for a picture.
        goal: Shape of one goal.
        action: Dimensions of a continuous action in [-1, 1], or the number of discrete actions.
        discrete: Whether actions are discrete.
        success_distance: Goals nearer than this, in the goal's own units, count as reached; 0 asks for equality.
    """

    observation: tuple[int, ...]
    goal: tuple[int, ...]
    action: int
    discrete: bool = False
    success_distance: float = 0.0


@dataclass(frozen=True)
class GoalSpec:
    """The keys of a batch and the distribution of its future goals.

    Attributes:
        keys: Which of `BATCH_KEYS` the agent reads; nothing else is gathered.
        discount: gamma of the geometric distribution of futures, in [0, 1).
        tail: What becomes of futures beyond the end of an episode.
        sequence: K > 0 asks for `sequence_*` keys too: the K steps that end at the drawn transition.

    Raises:
        BadInputError: When a key is unknown or a number is out of its range.
    """

    keys: frozenset[str]
    discount: float = 0.99
    tail: Tail = "renormalise"
    sequence: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(self.keys - set(BATCH_KEYS))
        if unknown:
            raise BadInputError(
                "goal spec", f"the keys {unknown}", f"some of {list(BATCH_KEYS)}", "ask for keys a replay buffer has"
            )
        if not 0 <= self.discount < 1:
            raise BadInputError("discount", str(self.discount), "0 <= discount < 1", "choose such a value")
        if self.sequence < 0:
            raise BadInputError("sequence", str(self.sequence), "0 or more steps", "choose such a value")


@dataclass(frozen=True)
class GoalEpisode:
    """One episode of a goal-reaching task, as it is written to a data set.

    Attributes:
        observations: float32 [T + 1, O], or uint8 [T + 1, H, W, C].
        achieved: Goal coordinates of every state, [T + 1, *G].
        commanded: The goal it was to reach, [*G].
        actions: float32 [T, A] in [-1, 1], or int64 [T].
        rewards: float32 [T].
        success: bool [T], whether each transition ended at the goal; `None` where nobody said.
        terminated: Whether the task ended with the last transition (not by a time limit).
    """

    observations: NDArray[Any]
    achieved: NDArray[Any]
    commanded: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    success: NDArray[np.bool_] | None = None
    terminated: bool = False

    def __len__(self) -> int:
        return len(self.actions)


def future_offsets(remaining: Integers, discount: float, tail: Tail, rng: np.random.Generator) -> Integers:
    """Offsets k of future states, by the inverse of their distribution function.

    `renormalise`: P(k) = (1 - gamma) gamma^(k-1) / (1 - gamma^m) for k = 1..m. `clip`: min(k, m) of an unbounded k.
    `reject`: as `renormalise`, because an unbounded k that is known to be at most m has that distribution; what
    differs is which transitions survive, and that is `GoalDraws.transitions`' part.

    Args:
        remaining: m = T - t of each transition, int64 [B], at least 1.
        discount: gamma in [0, 1).
        tail: The rule at the end of an episode.
        rng: Where randomness comes from; one uniform number a transition.

    Returns:
        int64 [B], each in 1..m.
    """
    rate = math.log(discount) if discount > 0 else -math.inf
    uniform = rng.random(len(remaining))
    mass = 1.0 if tail == "clip" else -np.expm1(rate * remaining)
    steps = np.minimum(np.log1p(-uniform * mass) / rate, remaining - 1)  # floats that may exceed any integer
    return steps.astype(np.int64) + 1


class GoalDraws:
    """Draws of transitions and states over episodes of given lengths, each without a loop.

    Args:
        lengths: T of each episode, int64 [E], at least 1.
    """

    def __init__(self, lengths: Integers) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self._ends = np.cumsum(self.lengths)
        self._state_ends = self._ends + np.arange(1, len(self.lengths) + 1)
        self._kept: tuple[float, NDArray[np.float64]] | None = None

    @property
    def count(self) -> int:
        """Transitions in all."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def transitions(
        self, count: int, rng: np.random.Generator, *, discount: float = 0.0, tail: Tail = "renormalise"
    ) -> tuple[Integers, Integers]:
        """Transitions drawn uniformly; under `reject` with probability proportional to 1 - gamma^(T - t).

        The second is what is left when a transition is drawn uniformly, its future geometrically, and both are drawn
        anew until the future lies inside the episode: 1 - gamma^(T - t) is the probability that it does.

        Returns:
            Episode and step of each, int64 [count].
        """
        if tail != "reject":
            return self._locate(rng.integers(self.count, size=count), self._ends)
        weights = _accepted(discount, int(self.lengths.max()))
        if self._kept is None or self._kept[0] != discount:
            self._kept = (discount, np.cumsum(weights[self.lengths]))
        ends = self._kept[1]
        drawn = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
        episode = np.minimum(drawn, len(ends) - 1)
        length = self.lengths[episode]
        # weights[m] is the sum over 1..m, so the first m beyond the drawn share has the probability asked for.
        remaining = np.searchsorted(weights, rng.random(count) * weights[length], side="right")
        return episode, length - np.minimum(remaining, length)

    def states(self, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """States drawn uniformly, the last of each episode included: episode and step (0..T), int64 [count]."""
        return self._locate(rng.integers(int(self._state_ends[-1]), size=count), self._state_ends)

    @staticmethod
    def _locate(flat: Integers, ends: Integers) -> tuple[Integers, Integers]:
        episode = np.searchsorted(ends, flat, side="right")
        return episode, flat - np.where(episode > 0, ends[episode - 1], 0)


def _accepted(discount: float, longest: int) -> NDArray[np.float64]:
    """Entry m is the sum of 1 - gamma^j over j = 1..m, at least as far as m = `longest`."""
    return _accepted_table(discount, 1 << longest.bit_length())


@lru_cache(maxsize=8)
def _accepted_table(discount: float, size: int) -> NDArray[np.float64]:
    rate = math.log(discount) if discount > 0 else -math.inf
    return np.concatenate([[0.0], np.cumsum(-np.expm1(rate * np.arange(1, size + 1)))])
