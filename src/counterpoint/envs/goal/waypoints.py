"""Mazes as grids of cells, shortest paths in them, and a controller that follows these paths with the PointMaze ball.

Cells are (row, column), row 0 at the top (largest y), as in gymnasium-robotics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["Cell", "MazeGrid", "WaypointController"]

Cell = tuple[int, int]

_WALL = 1
_NEIGHBOURS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@dataclass(frozen=True)
class MazeGrid:
    """Where the walls of a maze are.

    Attributes:
        rows: The map, row by row; 1 is a wall.
        scale: Edge of a cell, in metres.
    """

    rows: tuple[tuple[Any, ...], ...]
    scale: float = 1.0

    @classmethod
    def of(cls, env: Any) -> MazeGrid:
        """The maze of an environment.

        Raises:
            BadInputError: When it is no maze.
        """
        maze = getattr(env.unwrapped, "maze", None)
        if maze is None:
            raise BadInputError(
                f"env {type(env.unwrapped).__name__}",
                "no maze, and so no cells",
                "a PointMaze or AntMaze environment",
                "choose one of these",
            )
        return cls(tuple(tuple(row) for row in maze.maze_map), float(maze.maze_size_scaling))

    @property
    def free(self) -> tuple[Cell, ...]:
        """Cells that are no wall, row by row."""
        return tuple(
            (row, column) for row, cells in enumerate(self.rows) for column, cell in enumerate(cells) if cell != _WALL
        )

    def centre(self, cell: Cell) -> NDArray[np.float64]:
        """The middle of a cell, (x, y) in metres."""
        row, column = cell
        height, width = len(self.rows), len(self.rows[0])
        return np.array([column + 0.5 - width / 2, height / 2 - row - 0.5]) * self.scale

    def cells_of(self, points: NDArray[Any]) -> NDArray[np.int64]:
        """(row, column) of points [..., 2]: int64 [..., 2]."""
        height, width = len(self.rows), len(self.rows[0])
        scaled = np.asarray(points, np.float64) / self.scale
        return np.stack([np.floor(height / 2 - scaled[..., 1]), np.floor(scaled[..., 0] + width / 2)], axis=-1).astype(
            np.int64
        )

    def cell_of(self, point: NDArray[Any]) -> Cell:
        """The cell of one point."""
        row, column = self.cells_of(point)
        return int(row), int(column)

    def distances(self, source: Cell, within: Collection[Cell] | None = None) -> dict[Cell, int]:
        """Steps from a cell to every cell that can be reached from it.

        Args:
            source: Where to begin.
            within: Cells that may be entered; all free ones where `None`.
        """
        allowed = set(self.free if within is None else within)
        found, frontier = {source: 0}, deque([source])
        while frontier:
            row, column = frontier.popleft()
            for down, right in _NEIGHBOURS:
                cell = (row + down, column + right)
                if cell in allowed and cell not in found:
                    found[cell] = found[row, column] + 1
                    frontier.append(cell)
        return found

    def path(self, start: Cell, goal: Cell, within: Collection[Cell] | None = None) -> list[Cell]:
        """A shortest path, both ends included.

        Raises:
            BadInputError: When there is none.
        """
        distances = self.distances(goal, within)
        if start not in distances:
            raise BadInputError(
                "maze",
                f"no way from cell {start} to cell {goal}",
                "cells that are connected",
                "choose free cells, as (row, column)",
            )
        path = [start]
        while path[-1] != goal:
            path.append(self._nearer(path[-1], distances))
        return path

    def next_cells(self, goal: Cell, within: Collection[Cell] | None = None) -> dict[Cell, Cell]:
        """For every cell from which the goal can be reached, the next one on a shortest path to it."""
        distances = self.distances(goal, within)
        return {cell: cell if cell == goal else self._nearer(cell, distances) for cell in distances}

    @staticmethod
    def _nearer(cell: Cell, distances: dict[Cell, int]) -> Cell:
        row, column = cell
        around = [(row + down, column + right) for down, right in _NEIGHBOURS]
        return next(other for other in around if distances.get(other) == distances[cell] - 1)


class WaypointController:
    """Drives the PointMaze ball: to the middle of the next cell of a shortest path, in the last cell to the goal.

    It has no memory: its action depends on position, speed and goal alone. Where a ball has strayed from the
    cells it may enter, it makes for the middle of the nearest one.

    Args:
        grid: The maze.
        within: Cells that may be entered; all free ones where `None`.
        stiffness: Action per metre of distance.
        damping: Action per metre a second of speed; with these defaults the ball, whose speed is limited to
            5 m/s and whose force to 1, begins to brake half a metre before the goal.
    """

    def __init__(
        self, grid: MazeGrid, within: Sequence[Cell] | None = None, *, stiffness: float = 10.0, damping: float = 1.0
    ) -> None:
        self.grid = grid
        self._cells = tuple(grid.free if within is None else within)
        self._centres = np.stack([grid.centre(cell) for cell in self._cells])
        self._stiffness, self._damping = stiffness, damping
        self._next: dict[Cell, dict[Cell, Cell]] = {}

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Begin episodes; there is nothing to forget."""

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return that every observation is read."""
        return [True] * len(rows)

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[np.float32]:
        """Return actions for n rows: "observation" [n, 4] and "desired_goal" [n, 2] to float32 [n, 2]."""
        del rows, explore
        pairs = zip(observation["observation"], observation["desired_goal"], strict=True)
        return np.stack([self.action(*pair) for pair in pairs])

    def action(self, observation: NDArray[Any], goal: NDArray[Any]) -> NDArray[np.float32]:
        """The action for one situation: (x, y, vx, vy) and (x, y) to float32 [2] in [-1, 1]."""
        here, speed = observation[:2], observation[2:4]
        pull = self._stiffness * (self.waypoint(here, goal) - here) - self._damping * speed
        action: NDArray[np.float32] = np.clip(pull, -1, 1).astype(np.float32)
        return action

    def waypoint(self, here: NDArray[Any], goal: NDArray[Any]) -> NDArray[np.float64]:
        """Where to make for, from a point on the way to another."""
        cell, last = self.grid.cell_of(here), self.grid.cell_of(goal)
        if cell == last:
            return np.asarray(goal, np.float64)
        if last not in self._next:
            self._next[last] = self.grid.next_cells(last, self._cells)
        following = self._next[last].get(cell)
        if following is not None:
            return self.grid.centre(following)
        nearest: NDArray[np.float64] = self._centres[np.linalg.norm(self._centres - here, axis=1).argmin()]
        return nearest
