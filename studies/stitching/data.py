"""Offline data for stitching and shortcuts: staircases across the grid, and layouts with a long and a short way.

A data set consists of distinct paths and of how often each occurs. Batches, which are uniform with replacement, are
drawn from the tables below, so that single transitions need not be stored or visited.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.data.transitions import Tail
from counterpoint.errors import require
from studies.gridworld import ACTIONS, GridWorld

Reals = NDArray[np.float64]
Staircase = Literal["alternating", "random"]
LETTERS = {action[0].upper(): number for number, action in enumerate(ACTIONS[:4])}
"""U, D, L and R as actions."""


@dataclass(frozen=True)
class Path:
    """A trajectory: n actions and n + 1 states."""

    states: tuple[int, ...]
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Paths:
    """A data set of distinct trajectories and how often each occurs.

    Attributes:
        grid: The grid.
        paths: The trajectories.
        counts: Number of occurrences of each trajectory.
    """

    grid: GridWorld
    paths: tuple[Path, ...]
    counts: tuple[int, ...]

    @property
    def transitions(self) -> int:
        """Number of transitions in all."""
        return sum(n * len(path.actions) for path, n in zip(self.paths, self.counts, strict=True))

    @cached_property
    def transition_counts(self) -> Float[Reals, "S A"]:
        """Number of times that each action was taken in each state."""
        table = np.zeros((self.grid.states, self.grid.actions))
        for path, n in zip(self.paths, self.counts, strict=True):
            np.add.at(table, (path.states[:-1], path.actions), n)
        return table

    @property
    def seen(self) -> Bool[NDArray[np.bool_], "S A"]:
        """True for actions that the data show in a state."""
        return self.transition_counts > 0

    def futures(self, discount: float, tail: Tail) -> Float[Reals, "S A S"]:
        """Return p(s, a, s+) of a uniform transition and the state k steps later, for geometric k within the episode.

        Args:
            discount: gamma; k = 1, 2, ... has probability (1 - gamma) gamma^(k - 1).
            tail: Rule for a k beyond the end of the episode.
        """
        table = np.zeros((self.grid.states, self.grid.actions, self.grid.states))
        for path, n in zip(self.paths, self.counts, strict=True):
            T = len(path.actions)
            for t, (state, action) in enumerate(zip(path.states[:-1], path.actions, strict=True)):
                share = (1 - discount) * discount ** np.arange(T - t)
                if tail == "renormalise":
                    share /= share.sum()
                elif tail == "clip":
                    share[-1] += 1 - share.sum()
                np.add.at(table[state, action], list(path.states[t + 1 :]), n * share)
        table /= table.sum()
        return table

    def together(self, start: int, goal: int) -> bool:
        """Return True if any trajectory visits both states, in either order."""
        return any({start, goal} <= set(path.states) for path in self.paths)

    def fewest_steps(self, start: int, goal: int) -> float:
        """Return the minimum number of steps from start to goal by transitions in the data; infinity if impossible."""
        frontier, steps, known = {start}, 0, {start}
        edges = {edge for path in self.paths for edge in pairwise(path.states)}
        while frontier and goal not in frontier:
            frontier = {after for before, after in edges if before in frontier} - known
            known |= frontier
            steps += 1
        return steps if frontier else float("inf")


def walk(grid: GridWorld, start: tuple[int, int], moves: str) -> Path:
    """Return the path of `moves` (letters U, D, L, R) from a cell (row, column)."""
    states, actions = [start[0] * grid.width + start[1]], [LETTERS[letter] for letter in moves]
    for action in actions:
        states.append(int(grid.next_state[states[-1], action]))
    return Path(tuple(states), tuple(actions))


CORNER_PAIRS = (
    ((0, 0), (0, 4)), ((0, 4), (0, 0)), ((4, 0), (4, 4)), ((4, 4), (4, 0)),
    ((0, 0), (4, 0)), ((4, 0), (0, 0)), ((0, 4), (4, 4)), ((4, 4), (0, 4)),
)  # fmt: skip
"""The eight (start, goal) pairs of corners on one edge of the 5 x 5 grid, as (row, column)."""

DIAGONALS = (((0, 0), "RD"), ((0, 4), "LD"), ((4, 0), "RU"), ((4, 4), "LU"))
"""Each corner and the two moves that lead from it to the opposite one."""


def staircase_data(style: Staircase, transitions: int, seed: int) -> Paths:
    """Return the "Z" trajectories of TD InfoNCE, Fig. 8: staircases of eight steps between opposite corners.

    The paper shows the data but does not define them. In this study the start is uniform over the four corners, and

    - `alternating` takes the two moves in turn, with a random first move for each trajectory;
    - `random` takes four of each in a random order that passes no other corner.

    Args:
        style: One of the two.
        transitions: Number of transitions, rounded up to whole trajectories.
        seed: Random seed.
    """
    grid, rng = GridWorld(), np.random.default_rng(seed)
    drawn: dict[tuple[int, str], int] = {}
    for _ in range(-(-transitions // 8)):
        corner = int(rng.integers(4))
        first, second = rng.permutation(list(DIAGONALS[corner][1]))
        if style == "alternating":
            moves = 4 * f"{first}{second}"
        else:
            moves = 4 * first + 4 * second
            while moves[:4] == 4 * moves[0]:  # along an edge into a corner
                moves = "".join(rng.permutation(list(moves)))
        drawn[corner, moves] = drawn.get((corner, moves), 0) + 1
    ordered = sorted(drawn.items())
    paths = tuple(walk(grid, DIAGONALS[corner][0], moves) for (corner, moves), _ in ordered)
    return Paths(grid, paths, tuple(count for _, count in ordered))


@dataclass(frozen=True)
class Layout:
    """A start and a goal with two ways between them.

    Attributes:
        name: Name in the figure and the table.
        start: (row, column).
        short: Moves of the short way.
        long: Moves of the long way.
        cut: Moves of the first piece of the short way.
    """

    name: str
    start: tuple[int, int]
    short: str
    long: str
    cut: int


LAYOUTS = (
    Layout("along an edge", (4, 0), "RRRR", "UUUURRRRDDDD", 2),
    Layout("between edges", (2, 0), "RRRR", "UURRRRDD", 2),
    Layout("centre to corner", (2, 2), "RRDD", "LLUURRRRDDDD", 2),
    Layout("corner to corner", (0, 0), "RDRDRDRD", "RRRRDLLLLDRRRRDD", 4),
)
"""The layouts. In the second, the long way is only twice as long; in the last, the two ways cross."""


def shortcut_data(layout: Layout, pieces: bool, transitions: int, seed: int, *, share: float = 0.05) -> Paths:
    """Return trajectories of the long way, and a share of the short one (TD InfoNCE, Fig. 9).

    Args:
        layout: The two ways.
        pieces: True if half of the short way's trajectories end at the cut and half begin there. Otherwise, all begin
            at the start and end at the goal.
        transitions: Number of transitions, rounded up to whole trajectories.
        seed: Random seed.
        share: Share of trajectories that take the short way or a piece of it.

    Raises:
        BadInputError: If the two ways do not end in one cell.
    """
    grid, rng = GridWorld(), np.random.default_rng(seed)
    long, whole = walk(grid, layout.start, layout.long), walk(grid, layout.start, layout.short)
    found = f"ways that end in {long.states[-1]} and {whole.states[-1]}"
    require(long.states[-1] == whole.states[-1], f"layout {layout.name!r}", found, "one goal", "correct the moves")
    cut = layout.cut
    short = (Path(whole.states[: cut + 1], whole.actions[:cut]), Path(whole.states[cut:], whole.actions[cut:]))
    paths = (long, *short) if pieces else (long, whole)
    odds = [1 - share, share / 2, share / 2] if pieces else [1 - share, share]
    lengths = np.array([len(path.actions) for path in paths])
    drawn = rng.choice(len(paths), size=transitions, p=odds)  # more than enough: each has a step or more
    enough = int(np.searchsorted(lengths[drawn].cumsum(), transitions)) + 1
    counts = np.bincount(drawn[:enough], minlength=len(paths))
    return Paths(grid, paths, tuple(int(count) for count in counts))
