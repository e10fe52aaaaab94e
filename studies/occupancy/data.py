"""Counts of a data set of grid transitions, in tables small enough to draw batches from.

Methods of the occupancy study train on independent draws: (s, a, s', a') for temporal differences,
(s, a, s+) for Monte Carlo. A grid has few distinct tuples, so they are counted once and drawn from the counts. This has
exactly the same distribution as indexing ten million transitions, and needs no transitions in memory.

**The end of an episode.** A Monte Carlo positive lies k ~ Geometric(1 - gamma) steps ahead, k >= 1, which may be past
the last state of a truncated episode. Three rules (`TAILS`):

- `clip`: the last state replaces the states beyond the end;
- `renormalise`: k is drawn again until it fits, so that every transition counts the same;
- `reject`: both the transition and k are drawn again, so that late transitions count less.

No rule is free of bias, because the states beyond the end are not in the data. A temporal difference needs the action
taken at s' (SARSA). An episode does not have this action for its last transition, which is therefore left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.errors import require
from studies.gridworld import GridWorld, Rollouts

TAILS = ("clip", "renormalise", "reject")
BLOCK = 1 << 20
NEGLIGIBLE = 1e-8

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Counted:
    """One data set, counted; P = S * A state-action pairs, numbered `s * A + a`.

    Attributes:
        successors: How often (s', a') followed (s, a), [P, P].
        futures: For each rule of `TAILS`, the joint distribution of (s, a) and s+ in Monte Carlo draws, [P, S]; the sum
            of all entries is 1.
        next_state: The next state of each state and action of the grid, [S, A].
    """

    successors: Integers
    futures: dict[str, Reals]
    next_state: Integers

    @property
    def pairs(self) -> int:
        """Number of state-action pairs, P."""
        return len(self.successors)

    @property
    def states(self) -> int:
        """Number of states, S."""
        return len(self.next_state)

    @property
    def pair_states(self) -> Integers:
        """The state of each pair, [P]."""
        found: Integers = np.arange(self.pairs) // self.next_state.shape[1]
        return found

    def marginal(self) -> Reals:
        """Return p(s+), [S]: the share of each state among the next states that temporal differences use."""
        arrived = np.bincount(self.pair_states, weights=self.successors.sum(axis=0), minlength=self.states)
        found: Reals = arrived / arrived.sum()
        return found

    def save(self, path: Path) -> None:
        """Write an .npz file atomically: completely or not at all."""
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(
            partial, successors=self.successors, next_state=self.next_state, allow_pickle=False, **self.futures
        )
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Counted:
        """Read a file written by `save`."""
        with np.load(path) as found:
            return cls(found["successors"], {rule: found[rule] for rule in TAILS}, found["next_state"])


def count_data(grid: GridWorld, transitions: int, *, episode_length: int | None, discount: float, seed: int) -> Counted:
    """Record episodes of the uniform policy and count their transitions.

    Args:
        grid: The grid.
        transitions: Number of transitions.
        episode_length: Number of transitions per episode; `None` for one trajectory that is never cut.
        discount: gamma.
        seed: Random seed.
    """
    rollouts = grid.uniform_transitions(transitions, seed=seed, episode_length=episode_length)
    return Counted(successor_counts(grid, rollouts), future_tables(grid, rollouts, discount=discount), grid.next_state)


def successor_counts(grid: GridWorld, rollouts: Rollouts) -> Integers:
    """Return [P, P]: the number of times that each (s', a') followed each (s, a) within an episode.

    Raises:
        BadInputError: If episodes have only one transition, which no action follows.
    """
    found, expected = "episodes of one transition", "at least two, since the action at s' is needed"
    require(rollouts.length > 1, "rollouts", found, expected, "record longer episodes")
    pairs = _pairs(grid, rollouts)
    P = grid.states * grid.actions
    return _add(pairs[:, :-1], pairs[:, 1:], P, P).astype(np.int64)


def future_tables(grid: GridWorld, rollouts: Rollouts, *, discount: float) -> dict[str, Reals]:
    """Return the exact distribution of Monte Carlo draws under each rule of `TAILS`.

    They are sums over the lag k of how often each state lies k steps after each pair. Lags whose total weight is below
    1e-8 are left out.

    Args:
        grid: The grid.
        rollouts: Episodes.
        discount: gamma.

    Returns:
        A table [P, S] for each rule, whose entries sum to 1.
    """
    pairs, states = _pairs(grid, rollouts), rollouts.states
    T, P, S = rollouts.length, grid.states * grid.actions, grid.states
    horizon = T if discount == 0 else min(T, int(np.ceil(np.log(NEGLIGIBLE) / np.log(discount))))
    late = T - horizon  # before this position every lag fits
    left = np.arange(horizon, 0, -1)  # steps from each position after it to the end
    beyond: Reals = np.power(discount, left, dtype=np.float64)  # the weight of what lies past the end
    whole = 1 / (1 - beyond)  # what makes the lags that fit sum to 1
    reject, renormalise = np.zeros((P, S)), np.zeros((P, S))
    for lag in range(1, horizon + 1):
        weight = (1 - discount) * discount ** (lag - 1)
        stop = T - lag + 1
        early = _add(pairs[:, :late], states[:, lag : late + lag], P, S)
        tail = pairs[:, late:stop], states[:, late + lag :]
        reject += weight * (early + _add(*tail, P, S))
        renormalise += weight * (early + _add(*tail, P, S, whole[: stop - late]))
    last = np.broadcast_to(states[:, -1:], (len(states), horizon))
    clip = reject + _add(pairs[:, late:], last, P, S, beyond)
    return {rule: table / table.sum() for rule, table in zip(TAILS, (clip, renormalise, reject), strict=True)}


def conditional(joint: Float[Reals, "P S"], fallback: Float[Reals, " S"]) -> Float[Reals, "P S"]:
    """Return the rows of a joint table divided by their sums; empty rows become `fallback`."""
    total = joint.sum(axis=1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1.0), fallback)


def _pairs(grid: GridWorld, rollouts: Rollouts) -> NDArray[np.int16]:
    return rollouts.states[:, :-1] * np.int16(grid.actions) + rollouts.actions


def _add(
    rows: NDArray[np.int16], columns: NDArray[np.int16], R: int, C: int, weights: Float[Reals, " T"] | None = None
) -> Reals:
    """Return a table [R, C] of how often each row and column number occur together, weighted by position if given.

    Episodes are processed in blocks that fit into the cache.
    """
    total = np.zeros(R * C)
    E, T = rows.shape
    if T == 0:
        return total.reshape(R, C)
    high, wide = (max(1, BLOCK // max(1, T)), T) if T <= BLOCK else (1, BLOCK)
    for i in range(0, E, high):
        for j in range(0, T, wide):
            block = (slice(i, i + high), slice(j, j + wide))
            codes = rows[block].astype(np.int64) * C + columns[block]
            if weights is None:
                total += np.bincount(codes.ravel(), minlength=R * C)
            else:
                beside = np.broadcast_to(weights[block[1]], codes.shape)
                total += np.bincount(codes.ravel(), weights=beside.ravel(), minlength=R * C)
    return total.reshape(R, C)
