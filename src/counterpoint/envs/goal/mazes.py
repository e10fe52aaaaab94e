"""Mazes as grids of cells, a controller that drives the PointMaze ball along shortest paths, and mazes in parts.

Cells are (row, column), row 0 at the top (largest y), as in gymnasium-robotics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import require

Cell = tuple[int, int]


@dataclass(frozen=True)
class MazeGrid:
    """The walls of a maze.

    Attributes:
        rows: The map, row by row; 1 is a wall.
        scale: Edge of a cell, in metres.
    """

    rows: tuple[tuple[Any, ...], ...]
    scale: float = 1.0

    @classmethod
    def of(cls, env: Any) -> MazeGrid:
        """Return the maze of an environment.

        Raises:
            BadInputError: If the environment is not a maze.
        """
        maze: Any = getattr(env.unwrapped, "maze", None)
        where, expected = f"env {type(env.unwrapped).__name__}", "a PointMaze or AntMaze environment"
        require(maze, where, "no maze, and so no cells", expected, "choose one of these")
        return cls(tuple(tuple(row) for row in maze.maze_map), float(maze.maze_size_scaling))

    @property
    def free(self) -> tuple[Cell, ...]:
        """Cells that are not walls, row by row."""
        return tuple((row, column) for row, cells in enumerate(self.rows) for column, c in enumerate(cells) if c != 1)

    def centre(self, cell: Cell) -> NDArray[np.float64]:
        """Return the middle of a cell, (x, y) in metres."""
        height, width = len(self.rows), len(self.rows[0])
        return np.array([cell[1] + 0.5 - width / 2, height / 2 - cell[0] - 0.5]) * self.scale

    def cells_of(self, points: NDArray[Any]) -> list[Cell]:
        """Return the cells of points [n, 2]."""
        height, width = len(self.rows), len(self.rows[0])
        scaled = np.asarray(points, np.float64).reshape(-1, 2) / self.scale
        rows, columns = np.floor(height / 2 - scaled[:, 1]), np.floor(scaled[:, 0] + width / 2)
        return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]

    def cell_of(self, point: NDArray[Any]) -> Cell:
        """Return the cell of one point."""
        return self.cells_of(point)[0]

    def distances(
        self,
        source: Cell,
        within: Collection[Cell] | None = None,
        neighbours: Callable[[Cell], Iterable[Cell]] | None = None,
    ) -> dict[Cell, int]:
        """Return the number of steps from a cell to every cell that can be reached from it, in the order of the search.

        Args:
            source: The cell at distance 0.
            within: Cells that may be entered; by default all free cells.
            neighbours: Function that returns the four neighbours of a cell in the order in which they are searched.
        """
        allowed = set(self.free if within is None else within)
        found, frontier = {source: 0}, deque([source])
        while frontier:
            cell = frontier.popleft()
            for other in (neighbours or _around)(cell):
                if other in allowed and other not in found:
                    found[other] = found[cell] + 1
                    frontier.append(other)
        return found

    def next_cells(self, goal: Cell, within: Collection[Cell] | None = None) -> dict[Cell, Cell]:
        """Return, for every cell from which the goal can be reached, the next cell on a shortest path to the goal."""
        distances = self.distances(goal, within)
        return {
            cell: next(other for other in (cell, *_around(cell)) if distances.get(other) == max(steps - 1, 0))
            for cell, steps in distances.items()
        }


def _around(cell: Cell) -> list[Cell]:
    """Return the four neighbours of a cell."""
    row, column = cell
    return [(row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)]


class WaypointController:
    """A controller that drives the PointMaze ball along a shortest path, from cell to cell and then to the goal.

    It has no memory: its action depends only on position, speed and goal. If the ball is outside the permitted cells,
    it is driven to the middle of the nearest permitted cell.

    Args:
        grid: The maze.
        within: Cells that may be entered; by default all free cells.

    Attributes:
        cells: The cells that may be entered.
    """

    # Action per metre of distance, and per m/s of speed. The ball's speed is limited to 5 m/s and its force to 1; it
    # begins to brake half a metre before the goal.
    stiffness, damping = 10.0, 1.0

    def __init__(self, grid: MazeGrid, within: Sequence[Cell] | None = None) -> None:
        self.grid = grid
        self.cells = tuple(grid.free if within is None else within)
        self._centres = np.stack([grid.centre(cell) for cell in self.cells])
        self._next: dict[Cell, dict[Cell, Cell]] = {}

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Begin episodes; the controller has no memory to reset."""

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return, for each row (environment), whether `act` reads its next observation: always True."""
        return [True] * len(rows)

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[np.float32]:
        """Return actions float32 [n, 2] for n rows, from "observation" [n, 4] and "desired_goal" [n, 2]."""
        del rows, explore
        pairs = zip(observation["observation"], observation["desired_goal"], strict=True)
        return np.stack([self.action(*pair) for pair in pairs])

    def action(self, observation: NDArray[Any], goal: NDArray[Any]) -> NDArray[np.float32]:
        """Return the action, float32 [2] in [-1, 1], for one state (x, y, vx, vy) and goal (x, y)."""
        here, speed = observation[:2], observation[2:4]
        pull = self.stiffness * (self.waypoint(here, goal) - here) - self.damping * speed
        return np.asarray(pull.clip(-1, 1), np.float32)

    def waypoint(self, here: NDArray[Any], goal: NDArray[Any]) -> NDArray[np.float64]:
        """Return the next point to drive to on the way from `here` to `goal`."""
        cell, last = self.grid.cell_of(here), self.grid.cell_of(goal)
        if cell == last:
            return np.asarray(goal, np.float64)
        if last not in self._next:
            self._next[last] = self.grid.next_cells(last, self.cells)
        if cell in self._next[last]:
            return self.grid.centre(self._next[last][cell])
        return np.asarray(self._centres[np.linalg.norm(self._centres - here, axis=1).argmin()])


@dataclass(frozen=True)
class StitchPlan:
    """A maze divided into parts, each of which overlaps with the next one.

    Attributes:
        start: The cell from which distances are counted, in the first part.
        goal: A cell of the last part.
        parts: Cells of each part, from the start's to the goal's.
    """

    start: Cell
    goal: Cell
    parts: tuple[tuple[Cell, ...], ...]

    @property
    def starts(self) -> tuple[Cell, ...]:
        """Cells where evaluation starts: the cells of the first part that no other part contains."""
        return tuple(cell for cell in self.parts[0] if cell not in self.parts[1])

    @property
    def goals(self) -> tuple[Cell, ...]:
        """The goal cells of evaluation: cells of the last part that are not in the previous part and do not touch it.

        So a ball in the cells that both parts share is never near the goal.
        """
        before = {other for cell in self.parts[-2] for other in (cell, *_around(cell))}
        return tuple(cell for cell in self.parts[-1] if cell not in before)


def plan_stitching(
    grid: MazeGrid, start: Cell | None = None, goal: Cell | None = None, *, parts: int = 2, overlap: int = 1
) -> StitchPlan:
    """Divide a maze into parts of equal length, by the distance in cells from a start.

    A part holds the connected cells around the shortest path from start to goal. Parts that are not neighbours share no
    cell, so no part contains a whole path from the first part to the last one.

    Args:
        grid: The maze.
        start: The cell from which distances are counted; by default the first free cell.
        goal: The cell where the last part ends; by default the first of the cells farthest from the start.
        parts: Number of parts.
        overlap: Number of cells on each side of the cut between two parts that both parts share.

    Raises:
        BadInputError: If start and goal are not free, connected and far enough apart: every part must have cells that
            no other part has, and the goal must be at least two cells beyond the last overlap.
    """
    where, hint = "stitching", "choose other cells, fewer parts or less overlap"
    start = grid.free[0] if start is None else start
    require(start in grid.free, where, f"the start {start}", "a free cell, as (row, column)", hint)
    distances = grid.distances(start)
    goal = max(distances, key=lambda cell: (distances[cell], (-cell[0], -cell[1]))) if goal is None else goal
    require(goal in distances, where, f"the goal {goal}", f"a cell that can be reached from {start}", hint)
    length, onwards, path = distances[goal], grid.next_cells(goal), [start]
    while path[-1] != goal:
        path.append(onwards[path[-1]])
    cuts = [length * number // parts for number in range(parts)]
    firsts = [0, *(cut - overlap for cut in cuts[1:])]
    lasts = [*(cut + overlap for cut in cuts[1:]), max(distances.values())]
    found = f"{length} cells between start and goal, {parts} parts, and overlaps of {2 * overlap + 1}"
    expected = (
        "the start outside the overlaps, cells of each part alone, and the goal two cells beyond the last overlap"
    )
    apart = all(after > before + 1 for before, after in zip(lasts, firsts[2:], strict=False))
    require(firsts[1] >= 1 and apart and length >= lasts[-2] + 2, where, found, expected, hint)
    bands = [
        [cell for cell in distances if first <= distances[cell] <= last]
        for first, last in zip(firsts, lasts, strict=True)
    ]
    return StitchPlan(
        start, goal, tuple(tuple(grid.distances(path[cut], band)) for cut, band in zip(cuts, bands, strict=True))
    )
