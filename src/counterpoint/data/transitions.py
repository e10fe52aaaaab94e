"""Transitions of goal-reaching episodes, and the future states that serve as goals.

An episode of T transitions holds T + 1 states::

    state        s0   s1   s2  ...  sT-1   sT
    action       a0   a1   a2  ...  aT-1
    transition   0    1    2   ...  T-1        transition t = (s_t, a_t, s_{t+1})

The future of transition t is s_{t+k}, with k = 1, 2, ... drawn with probability (1 - gamma) gamma^(k - 1)
(TD InfoNCE, Eq. 3). Because the episode ends, the state exists only for k <= T - t; `Tail` names the rule for larger k.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import Draw, Drawn, owners, sample_rng
from counterpoint.errors import require

Integers = NDArray[np.int64]

Tail = Literal["renormalise", "clip", "reject"]
"""The rule for a future step beyond the end of its episode.

`renormalise` draws from the geometric distribution restricted to the episode, `clip` takes the last state instead,
`reject` discards the whole transition and draws another one (so that late transitions are rarer).
"""


class GoalMix(FrozenConfig):
    """Shares of three kinds of goals of a transition t of T, as in OGBench (Park et al., 2025, Appendix C).

    Attributes:
        current: Share of goals that are the transition's own state s_t (`p_curgoal`).
        future: Share of later states of the same episode (`p_trajgoal`).
        random: Share of states s_t of uniformly drawn transitions (`p_randomgoal`).
        geometric: Draw later states with the index's geometric distribution and its rule for the end of an episode.
            Otherwise the offset is a uniform number from 1 to T - t, rounded, so that the two ends are half as likely.
    """

    current: float = Field(default=0.0, ge=0, le=1)
    future: float = Field(default=0.0, ge=0, le=1)
    random: float = Field(default=0.0, ge=0, le=1)
    geometric: bool = True

    @model_validator(mode="after")
    def _shares(self) -> Self:
        total = self.current + self.future + self.random
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"shares of goals add up to {total:g}; they must add up to 1")
        return self


@dataclass(frozen=True)
class Transitions:
    """An index that draws transitions with replacement.

    Draws: `transition`, `next`, `future`, `random`, `sequence`, `subgoal`, the names of `goals`, and `NAME.target` for
    each of them.

    Attributes:
        discount: gamma of the geometric distribution of futures, in [0, 1).
        tail: The rule for futures beyond the end of an episode.
        sequence: K, the number of steps of the draw `sequence`, which ends at the transition. Before the episode's
            start, step 0 is repeated.
        goals: Mixtures of goals by name. A batch also holds `NAME.reached`: whether the goal is the transition's own
            state.
        subgoal: Number of steps to the draw `subgoal`, and to `NAME.target`, the state on the way to the goal NAME.
            Both stop at the episode's end, and the second at a goal of the same episode.
    """

    discount: float = 0.99
    tail: Tail = "renormalise"
    sequence: int = 0
    goals: Mapping[str, GoalMix] = field(default_factory=dict)
    subgoal: int = 1

    @property
    def draws(self) -> tuple[str, ...]:
        """Names of what can be drawn."""
        named = [name for goal in self.goals for name in (goal, f"{goal}.target")]
        return ("transition", "next", "future", "random", "sequence", "subgoal", *named)

    def __post_init__(self) -> None:
        require(0 <= self.discount < 1, "discount", self.discount, "0 <= discount < 1", "choose such a value")
        require(self.sequence >= 0, "sequence", self.sequence, "0 or more steps", "choose such a value")
        require(self.subgoal >= 1, "subgoal", self.subgoal, "1 or more steps", "choose such a value")

    def table(self, lengths: Integers, tasks: Integers) -> TransitionTable:
        """Prepare draws over episodes of these lengths and task numbers."""
        return TransitionTable(self, lengths)


class TransitionTable:
    """Draws of transitions and states over episodes of given lengths T >= 1, without loops over episodes."""

    def __init__(self, index: Transitions, lengths: Int[Integers, " E"]) -> None:
        require(len(lengths), "replay buffer", "no episode", "at least one", "add episodes first")
        self._index, self._lengths = index, np.asarray(lengths, np.int64)
        self._count = int(self._lengths.sum())
        if index.tail == "reject":
            self._weights = _accepted(index.discount, 1 << int(self._lengths.max()).bit_length())
            self._weight_ends = np.cumsum(self._weights[self._lengths])

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _transitions(self) -> tuple[Integers, Integers]:
        return owners(self._lengths)

    @cached_property
    def _states(self) -> tuple[Integers, Integers]:
        return owners(self._lengths + 1)

    def draw(self, count: int, seed: int, step: int, wanted: Collection[str]) -> Drawn:
        """Draw the samples of one step; see `Table.draw`. All draws use one stream of random numbers."""
        index, rng = self._index, sample_rng(seed, step, "replay batch")
        episode, at = self.transitions(count, rng)
        draws = {"transition": Draw(episode, at), "next": Draw(episode, at + 1)}
        values: dict[str, NDArray[Any]] = {}
        if "future" in wanted:
            offset = future_offsets(self._lengths[episode] - at, index.discount, index.tail, rng)
            draws["future"], values["future_offset"] = Draw(episode, at + offset), offset
        if "random" in wanted:
            draws["random"] = Draw(*self.states(count, rng))
        if index.sequence:
            steps = at[:, None] - np.arange(index.sequence - 1, -1, -1)
            draws["sequence"] = Draw(episode, np.maximum(steps, 0))
            values |= {"sequence_step": np.maximum(steps, 0), "sequence_valid": steps >= 0}
        last = self._lengths[episode]
        if "subgoal" in wanted:
            draws["subgoal"] = Draw(episode, np.minimum(at + index.subgoal, last))
        for name, mix in index.goals.items():
            if {name, f"{name}.target"} & set(wanted):
                goal, same = self.mixed(mix, episode, at, rng)
                stop = np.where(same, goal.steps, last)
                draws |= {name: goal, f"{name}.target": Draw(episode, np.minimum(at + index.subgoal, stop))}
                values[f"{name}.reached"] = (goal.episode == episode) & (goal.steps == at)
        return draws, values

    def mixed(
        self, mix: GoalMix, episode: Int[Integers, " B"], at: Int[Integers, " B"], rng: np.random.Generator
    ) -> tuple[Draw, NDArray[np.bool_]]:
        """Draw a goal of each transition from a mixture; also return whether it is of the transition's own episode.

        Random goals count as goals of another episode even where they are of the same one.
        """
        remaining = self._lengths[episode] - at
        if mix.geometric:
            offset = future_offsets(remaining, self._index.discount, self._index.tail, rng)
        else:
            offset = np.rint(1 + (remaining - 1) * (1 - rng.random(len(at)))).astype(np.int64)
        anywhere, place = self.transitions(len(at), rng)
        kind = rng.random(len(at))
        offset = np.where(kind < mix.current, 0, offset)
        same = kind < mix.current + mix.future
        return Draw(np.where(same, episode, anywhere), np.where(same, at + offset, place)), same

    def transitions(self, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw transitions uniformly; under `reject` with probability proportional to 1 - gamma^(T - t).

        The rule of `reject` is equivalent to drawing a transition uniformly and its future geometrically, and redrawing
        both until the future lies inside the episode. The probability that it does is 1 - gamma^(T - t).

        Returns:
            Episode and step of each transition, int64 [count].
        """
        if self._index.tail != "reject":
            return _locate(rng.integers(self._count, size=count), *self._transitions)
        ends = self._weight_ends
        drawn = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
        episode = np.minimum(drawn, len(ends) - 1)
        length = self._lengths[episode]
        # weights[m] is a sum over 1..m, so the first m whose sum exceeds the drawn share has the stated probability.
        remaining = np.searchsorted(self._weights, rng.random(count) * self._weights[length], side="right")
        return episode, length - np.minimum(remaining, length)

    def states(self, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw states uniformly, including each episode's last state: episode and step (0..T), int64 [count]."""
        return _locate(rng.integers(self._count + len(self._lengths), size=count), *self._states)


def future_offsets(
    remaining: Int[Integers, " B"], discount: float, tail: Tail, rng: np.random.Generator
) -> Int[Integers, " B"]:
    """Draw offsets k of future states, by the inverse of their distribution function.

    `renormalise`: P(k) = (1 - gamma) gamma^(k-1) / (1 - gamma^m) for k = 1..m. `clip`: min(k, m) for an unbounded k.
    `reject`: as `renormalise`, because an unbounded k that is known to be at most m has that distribution.
    `renormalise` and `reject` keep different transitions (`TransitionTable.transitions`).

    Args:
        remaining: m = T - t of each transition, at least 1.
        discount: gamma in [0, 1).
        tail: The rule at the end of an episode.
        rng: Random stream; one uniform number per transition.

    Returns:
        Offsets in 1..m.
    """
    rate = math.log(discount) if discount > 0 else -math.inf
    uniform = rng.random(len(remaining))
    mass = 1.0 if tail == "clip" else -np.expm1(rate * remaining)
    steps = np.minimum(np.log1p(-uniform * mass) / rate, remaining - 1)  # floats, which may exceed the largest integer
    return steps.astype(np.int64) + 1


def _locate(number: Integers, owner: Integers, starts: Integers) -> tuple[Integers, Integers]:
    episode = owner[number]
    return episode, number - starts[episode]


@lru_cache(maxsize=8)
def _accepted(discount: float, size: int) -> NDArray[np.float64]:
    """Return the sums of 1 - gamma^j over j = 1..m for m = 0..size."""
    rate = math.log(discount) if discount > 0 else -math.inf
    return np.concatenate([[0.0], np.cumsum(-np.expm1(rate * np.arange(1, size + 1)))])
