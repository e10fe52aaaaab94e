"""The figure of representation interpolation: states in the maze, dark near the start, light near the goal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.errors import import_extra

TITLES = {
    "parametric": "parametric",
    "non_parametric": "non-parametric",
    "straight_line": "straight line in x, y\n(no encoder)",
}
COLOURS, START, WALL = "viridis", "#222222", "#c8c8c8"


def plot_interpolation(
    methods: Mapping[str, Any],
    positions: Float[NDArray[np.floating[Any]], "V 2"],
    maze: MazeGrid,
    path: Path,
    *,
    most: int = 4,
) -> None:
    """A row a pair, a column a method (TD InfoNCE, Fig. 13).

    Args:
        methods: One encoder's part of what `interpolation_study` returns.
        positions: x and y of the validation states.
        maze: Where the walls are.
        path: Of the image.
        most: Pairs to draw, the first ones.
    """
    pairs = next(iter(methods.values()))["pairs"][:most]
    size = (2.9 * len(methods), 2.6 * len(pairs) + 0.5)
    figure = import_extra("matplotlib.figure", "report").Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(len(pairs), len(methods), squeeze=False)
    for column, (method, content) in enumerate(methods.items()):
        for row, pair in enumerate(content["pairs"][:most]):
            panel = panels[row][column]
            _walls(panel, maze)
            x, y = positions[pair["visited"]].T
            panel.plot(x, y, color="#999999", linewidth=0.8, zorder=1)
            panel.scatter(
                x, y, c=np.linspace(0, 1, len(x)), cmap=COLOURS, s=34, edgecolors=START, linewidths=0.5, zorder=2
            )
            (sx, sy), (gx, gy) = positions[[pair["start"], pair["goal"]]]
            panel.plot(sx, sy, "s", color=START, markersize=8, zorder=3)
            panel.plot(gx, gy, "*", color="white", markeredgecolor=START, markersize=15, zorder=3)
            told = f"in order {pair['in_order']:.2f}, covered {pair['covered']:.2f}"
            panel.set_xlabel(told, fontsize=8)
            if row == 0:
                panel.set_title(TITLES[method], fontsize=9)
    figure.savefig(path)


def _walls(panel: Any, maze: MazeGrid) -> None:
    """Walls in grey, north on top."""
    free = set(maze.free)
    for row, cells in enumerate(maze.rows):
        for column in range(len(cells)):
            if (row, column) not in free:
                left, bottom = maze.centre((row, column)) - maze.scale / 2
                panel.bar(left, maze.scale, maze.scale, bottom=bottom, align="edge", color=WALL, linewidth=0)
    height, width = len(maze.rows) * maze.scale / 2, len(maze.rows[0]) * maze.scale / 2
    panel.set(xlim=(-width, width), ylim=(-height, height), xticks=[], yticks=[], aspect="equal")
