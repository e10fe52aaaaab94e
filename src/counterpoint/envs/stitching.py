"""Data that no trajectory joins: a maze cut into two parts that overlap, start in the one, goal in the other.

Cells are ordered by their distance from the start. Cells at the middle distances are the overlap; every path from
the start to the goal crosses it, since distances grow by one a step::

    distance     0  1  2  3  4  5  6  7  8  9  10  11
    near part    x  x  x  x  x  x  x
    far part                 x  x  x  x  x  x  x   x

A trajectory stays in one of the parts, so that none is ever on both sides of the overlap. An agent that starts in
the near part and is sent into the far one has to put two of them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from counterpoint.data.goals import GoalEpisode
from counterpoint.envs.waypoints import Cell, MazeGrid
from counterpoint.errors import BadInputError

__all__ = ["StitchPlan", "joining_episodes", "plan_stitching", "refuse_joined"]


@dataclass(frozen=True)
class StitchPlan:
    """A maze cut in two overlapping parts.

    Attributes:
        start: The cell where evaluation starts.
        goal: The cell where it ends.
        near: Cells of the start's part.
        far: Cells of the goal's part.
    """

    start: Cell
    goal: Cell
    near: tuple[Cell, ...]
    far: tuple[Cell, ...]

    @property
    def overlap(self) -> tuple[Cell, ...]:
        """Cells of both parts."""
        return tuple(cell for cell in self.near if cell in self.far)


def plan_stitching(
    grid: MazeGrid, start: Cell | None = None, goal: Cell | None = None, *, overlap: int = 1
) -> StitchPlan:
    """Cut a maze.

    Args:
        grid: The maze.
        start: Where evaluation starts; the first free cell where `None`.
        goal: Where it ends; the cell farthest from the start (the first of them) where `None`.
        overlap: The overlap is as many cells to either side of the middle of the way.

    Raises:
        BadInputError: When start and goal are not free, connected and far enough from one another: the goal two
            cells beyond the overlap at least, so that being near the goal is not being in the overlap.
    """
    start = grid.free[0] if start is None else start
    if start not in grid.free:
        raise _unfit(f"the start {start}", "a free cell, as (row, column)")
    distances = grid.distances(start)
    goal = max(distances, key=lambda cell: (distances[cell], (-cell[0], -cell[1]))) if goal is None else goal
    if goal not in distances:
        raise _unfit(f"the goal {goal}", f"a cell that can be reached from {start}")
    middle = distances[goal] // 2
    first, last = middle - overlap, middle + overlap
    if first < 1 or distances[goal] < last + 2:
        raise _unfit(
            f"{distances[goal]} cells between start and goal, and an overlap of {2 * overlap + 1}",
            "the start outside the overlap and the goal two cells beyond it",
        )
    return StitchPlan(
        start=start,
        goal=goal,
        near=tuple(cell for cell in distances if distances[cell] <= last),
        far=tuple(grid.distances(goal, [cell for cell in distances if distances[cell] >= first])),
    )


def joining_episodes(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> list[int]:
    """Numbers of the episodes that were on both sides of the overlap, which none should be."""
    near, far = set(plan.near), set(plan.far)
    joining = []
    for number, episode in enumerate(episodes):
        visited = {(int(row), int(column)) for row, column in grid.cells_of(episode.achieved)}
        if visited - far and visited - near:
            joining.append(number)
    return joining


def refuse_joined(episodes: Iterable[GoalEpisode], grid: MazeGrid, plan: StitchPlan) -> None:
    """Prove that no single trajectory joins start and goal.

    Raises:
        BadInputError: When one does; the first is named.
    """
    joining = joining_episodes(episodes, grid, plan)
    if joining:
        raise BadInputError(
            f"episode {joining[0]}",
            found=f"a trajectory that was on both sides ({len(joining)} such episodes)",
            expected="trajectories that stay on the start's or on the goal's side of the overlap",
            mend="record the data with the suite `stitch`",
        )


def _unfit(found: str, expected: str) -> BadInputError:
    return BadInputError(
        "stitching", found=found, expected=expected, mend="choose other cells or less overlap"
    )
