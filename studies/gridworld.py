"""A grid of cells with five actions: small enough that every occupancy measure is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.errors import require

ACTIONS = ("up", "down", "left", "right", "stay")
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]])

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rollouts:
    """E episodes of equal length T.

    Attributes:
        states: The states, [E, T + 1], including the last one.
        actions: The actions, [E, T].
    """

    states: NDArray[np.int16]
    actions: NDArray[np.int16]

    @property
    def length(self) -> int:
        """Number of transitions per episode, T."""
        return int(self.actions.shape[1])


@dataclass(frozen=True)
class GridWorld:
    """A grid of cells numbered row by row from the top left; a move into a wall changes nothing.

    Args:
        width: Number of columns, at least one.
        height: Number of rows, at least one.
    """

    width: int = 5
    height: int = 5

    def __post_init__(self) -> None:
        ok, found = min(self.width, self.height) > 0, f"{self.width} x {self.height} cells"
        require(ok, "grid", found, "at least one row and one column", "choose a width and a height of 1 or more")

    @property
    def states(self) -> int:
        """Number of cells, S."""
        return self.width * self.height

    @property
    def actions(self) -> int:
        """Number of actions, A = 5: up, down, left, right, stay."""
        return len(ACTIONS)

    @cached_property
    def coordinates(self) -> Int[Integers, "S 2"]:
        """Row and column of every state."""
        rows, columns = np.divmod(np.arange(self.states), self.width)
        return np.stack([rows, columns], axis=1)

    @cached_property
    def next_state(self) -> Int[Integers, "S A"]:
        """The state that each action leads to."""
        moved = self.coordinates[:, None] + MOVES
        moved = np.clip(moved, 0, [self.height - 1, self.width - 1])
        found: Integers = moved[..., 0] * self.width + moved[..., 1]
        return found

    @cached_property
    def transition_matrix(self) -> Float[Reals, "S A S"]:
        """The matrix p(s' | s, a): one 1 in each row, since the grid is deterministic."""
        return np.eye(self.states)[self.next_state]

    def uniform_policy(self) -> Float[Reals, "S A"]:
        """Return the same probability for every action in every state."""
        return np.full((self.states, self.actions), 1 / self.actions)

    def exact_occupancy(self, policy: Float[Reals, "S A"], discount: float) -> Float[Reals, "S A S"]:
        """Return the discounted occupancy measure of a policy, in closed form (Zheng et al., 2024, Eq. 3).

        p(s+ | s, a) = (1 - gamma) sum over t >= 1 of gamma^(t-1) Pr(s_t = s+ | s_0 = s, a_0 = a), which equals
        (1 - gamma) P (I - gamma P_pi)^-1. The present state counts only if the agent returns to it.

        Args:
            policy: pi(a | s), rows summing to 1.
            discount: gamma, 0 <= gamma < 1.

        Raises:
            BadInputError: If rows of the policy do not sum to 1 or the discount is out of range.
        """
        ok = policy.shape == (self.states, self.actions) and np.allclose(policy.sum(axis=1), 1.0)
        found = f"shape {policy.shape}, row sums {policy.sum(axis=-1).round(3).tolist()[:3]}..."
        expected = f"[{self.states}, {self.actions}] probabilities, each row summing to 1"
        require(ok, "policy", found, expected, "divide each row by its sum")
        require(0 <= discount < 1, "discount", discount, "0 <= discount < 1", "choose such a number")
        P = self.transition_matrix
        chain = np.einsum("sa,sat->st", policy, P)
        resolvent = np.linalg.inv(np.eye(self.states) - discount * chain)
        occupancy: Reals = (1 - discount) * P @ resolvent
        return occupancy

    def uniform_transitions(self, count: int, *, seed: int, episode_length: int | None = 100) -> Rollouts:
        """Record `count` transitions of the uniform policy, cut into episodes or as one trajectory.

        Args:
            count: Total number of transitions, a multiple of `episode_length`.
            seed: Random seed of starts and actions.
            episode_length: Number of transitions per episode; `None` for one trajectory that is never cut.

        Raises:
            BadInputError: If `count` is not a multiple of `episode_length`.
        """
        length = count if episode_length is None else episode_length
        nearest = max(1, count // max(1, length)) * max(1, length)
        found = f"{count} transitions in episodes of {length}"
        ok = min(count, length) > 0 and count == nearest
        require(ok, "count", found, "a positive multiple of the episode length", f"ask for {nearest}")
        rng = np.random.default_rng(seed)
        actions = rng.integers(self.actions, size=(count // length, length), dtype=np.int16)
        starts = rng.integers(self.states, size=len(actions), dtype=np.int16)
        return Rollouts(self._follow(starts, actions), actions)

    def _follow(self, starts: NDArray[np.int16], actions: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return the states [E, T + 1] under actions [E, T] that do not depend on the state.

        A long episode is cut into stretches of about sqrt(T) steps. For each stretch, the map from every first state to
        the last state is computed. Applied one after another, these maps give the first state of every stretch. Then
        all stretches are computed in parallel. The loops are over sqrt(T) steps, not T.
        """
        episodes, T = actions.shape
        stretch = max(1, int(np.ceil(np.sqrt(T)))) if T > 1000 else T
        pieces = -(-T // stretch)
        stay = ACTIONS.index("stay")
        padded = np.pad(actions, ((0, 0), (0, pieces * stretch - T)), constant_values=stay)
        cut = padded.reshape(episodes, pieces, stretch)
        table = self.next_state.astype(np.int16)
        at = np.empty((episodes, pieces), np.int16)
        at[:, 0] = starts
        if pieces > 1:
            ends = np.broadcast_to(np.arange(self.states, dtype=np.int16), (*cut.shape[:2], self.states))
            for t in range(stretch):
                ends = table[ends, cut[:, :, t, None]]
            for piece in range(1, pieces):
                at[:, piece] = ends[np.arange(episodes), piece - 1, at[:, piece - 1]]
        walked = np.empty((episodes, pieces, stretch), np.int16)
        for t in range(stretch):
            at = table[at, cut[:, :, t]]
            walked[:, :, t] = at
        states = np.empty((episodes, T + 1), np.int16)
        states[:, 0] = starts
        states[:, 1:] = walked.reshape(episodes, -1)[:, :T]
        return states
