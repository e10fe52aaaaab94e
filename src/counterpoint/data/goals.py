"""What a goal-reaching agent needs from a replay buffer, as plain data, and how future steps are drawn.

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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["BATCH_KEYS", "GoalDraws", "GoalEpisode", "GoalSpec", "Spaces", "Tail", "future_offsets"]

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
                "goal spec",
                found=f"the keys {unknown}",
                expected=f"some of {list(BATCH_KEYS)}",
                mend="ask for keys a replay buffer has",
            )
        if not 0 <= self.discount < 1:
            raise BadInputError(
                "discount", found=str(self.discount), expected="0 <= discount < 1", mend="choose such a value"
            )
        if self.sequence < 0:
            raise BadInputError(
                "sequence", found=str(self.sequence), expected="0 or more steps", mend="choose such a value"
            )


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
