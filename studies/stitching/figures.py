"""Figures of the stitching study: trajectories of the data, and the paths that TD and MC take, on the grid.

Starts are squares and goals are stars; dashed paths never arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from studies.gridworld import GridWorld
from studies.harness import Rows, Tree
from studies.plots import BLUE, GREY, INK, PALE, VERMILLION, panels, save
from studies.stitching.data import Paths
from studies.stitching.trials import Case


def plot_all(cases: Mapping[str, Sequence[Case]], rows: Rows, out: Path) -> None:
    """Write `stitching_<style>.png` and `shortcuts_<kind>.png`, all of the first seed.

    Args:
        cases: Data sets by experiment.
        rows: One row per trial.
        out: The folder.
    """
    for experiment, own in cases.items():
        first = [case for case in own if case.seed == own[0].seed]
        walks: dict[tuple[str, str], list[Tree]] = {}
        for row in rows:
            for record in row["records"] if row["experiment"] == experiment else ():
                if record["seed"] == own[0].seed:
                    walks.setdefault((row["method"], record["rule"]), []).append(record)
        kind, plot = ("stitching", _stitching) if len(first[0].pairs) > 1 else ("shortcuts", _shortcuts)
        save(plot(first, walks), out / f"{kind}_{experiment.replace(' ', '_')}.png")


ROWS = (
    ("td_infonce", "seen", "TD InfoNCE\nactions in the data", BLUE),
    ("td_infonce", "all", "TD InfoNCE\nall actions", BLUE),
    ("mc_infonce", "seen", "MC InfoNCE\nactions in the data", VERMILLION),
    ("mc_infonce", "all", "MC InfoNCE\nall actions", VERMILLION),
)


def _stitching(cases: Sequence[Case], walks: Mapping[tuple[str, str], Rows]) -> Any:
    """Plot one column per (start, goal) pair and one row per method and rule, with the data on the left (Fig. 4, 8)."""
    (case,) = cases
    figure, made = _panels(len(ROWS), len(case.pairs) + 1)
    for row, (method, rule, title, colour) in enumerate(ROWS):
        if row < 2:  # the two diagonals apart
            _ways(made[row][0], case.data, falling=row == 0)
        else:
            made[row][0].set_visible(False)
        for panel, record in zip(made[row][1:], walks[method, rule], strict=True):
            _walk(panel, case.data.grid, record, colour)
        made[row][1].set_ylabel(title, fontsize=8)
    made[0][0].set_title("the data", fontsize=9)
    return figure


def _shortcuts(cases: Sequence[Case], walks: Mapping[tuple[str, str], Rows]) -> Any:
    """Plot one row per layout, with the data on the left, then methods and rules (Fig. 5 and 9)."""
    figure, made = _panels(len(cases), len(ROWS) + 1)
    for row, case in enumerate(cases):
        _ways(made[row][0], case.data)
        _ends(made[row][0], case.data.grid, *case.pairs[0])
        made[row][0].set_ylabel(case.name, fontsize=8)
        for panel, (method, rule, _, colour) in zip(made[row][1:], ROWS, strict=True):
            (record,) = [one for one in walks[method, rule] if one["case"] == case.name]
            _walk(panel, case.data.grid, record, colour)
    for panel, title in zip(made[0], ("the data", *(title for _, _, title, _ in ROWS)), strict=True):
        panel.set_title(title, fontsize=9)
    return figure


def _panels(rows: int, columns: int) -> Any:
    return panels(rows, columns, 1.35 * columns + 0.3, 1.45 * rows + 0.3)


def _grid(panel: Any, grid: GridWorld) -> None:
    """Plot cells with their borders, row 0 on top."""
    for edge in range(grid.width + 1):
        panel.axvline(edge - 0.5, color="#dddddd", linewidth=0.6, zorder=0)
    for edge in range(grid.height + 1):
        panel.axhline(edge - 0.5, color="#dddddd", linewidth=0.6, zorder=0)
    panel.set(xlim=(-0.5, grid.width - 0.5), ylim=(grid.height - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
    panel.spines[:].set_color(PALE)


def _locations(grid: GridWorld, states: Sequence[int]) -> Float[NDArray[np.float64], "T 2"]:
    return grid.coordinates[list(states)][:, ::-1].astype(np.float64)


def _ways(panel: Any, data: Paths, falling: bool | None = None) -> None:
    """Plot trajectories, common ones darker and wider; trajectories in the same cells are plotted next to each other.

    Args:
        panel: The panel.
        data: The trajectories.
        falling: True for only those between upper left and lower right, False for only the others; all by default.
    """
    _grid(panel, data.grid)
    shown = [
        (way, count)
        for way, count in zip(data.paths, data.counts, strict=True)
        if falling in (None, way.states[0] in (0, data.grid.states - 1))
    ]
    few = len(shown) < 10
    for number, (way, count) in enumerate(shown):
        common = few and count > sum(data.counts) / 2
        apart = 0.13 * np.array([np.cos(2.4 * number), np.sin(2.4 * number)])
        x, y = _locations(data.grid, way.states).T + apart[:, None]
        colour = INK if common else GREY
        panel.plot(x, y, color=colour, linewidth=2.2 if common else 1.1, alpha=1.0 if few else 0.2)
        if few:
            _arrow(panel, x, y, colour)


def _walk(panel: Any, grid: GridWorld, record: Mapping[str, Any], colour: str) -> None:
    """Plot a path with its start, its goal and the number of its steps."""
    _grid(panel, grid)
    states = list(dict.fromkeys(record["states"])) if not record["reached"] else record["states"]
    if len(states) > 1:
        x, y = _locations(grid, states).T
        panel.plot(x, y, color=colour, linewidth=2.2, linestyle="-" if record["reached"] else "--")
        _arrow(panel, x, y, colour)
    _ends(panel, grid, record["start"], record["goal"])
    title = f"{record['steps']:.0f} steps" if record["reached"] else "never arrives"
    panel.set_xlabel(title, fontsize=8, color=colour, labelpad=2)


def _arrow(panel: Any, x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> None:
    """Plot an arrow head in the middle of the last step."""
    panel.annotate(
        "",
        xy=((x[-2] + 3 * x[-1]) / 4, (y[-2] + 3 * y[-1]) / 4),
        xytext=(x[-2], y[-2]),
        arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0},
    )


def _ends(panel: Any, grid: GridWorld, start: int, goal: int) -> None:
    (sx, sy), (gx, gy) = _locations(grid, (start, goal))
    panel.plot(sx, sy, "s", color=INK, markersize=6, zorder=3)
    panel.plot(gx, gy, "*", color="white", markeredgecolor=INK, markersize=12, zorder=3)
