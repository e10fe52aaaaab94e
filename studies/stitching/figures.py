"""Figures of the off-policy study: trajectories of the data, and the paths that TD and MC take, on the grid.

Blue is TD, orange is MC, as in a palette that colour-blind readers can tell apart (Okabe and Ito); the data are grey.
Starts are squares and goals are stars, so that nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.errors import import_extra
from studies.gridworld import GridWorld
from studies.stitching.data import Paths
from studies.stitching.trials import Case

TD, MC, DATA, DARK = "#0072B2", "#D55E00", "#8a8a8a", "#222222"
Records = Sequence[Mapping[str, Any]]


def plot_all(cases: Mapping[str, Sequence[Case]], records: Mapping[tuple[str, str], Records], out: Path) -> None:
    """`stitching_<style>.png` and `shortcuts_<kind>.png`, all of the first seed.

    Args:
        cases: By experiment.
        records: By experiment and method, of both rules.
        out: A folder.
    """
    for experiment, own in cases.items():
        first = [case for case in own if case.seed == own[0].seed]
        chosen = {
            (method, rule): [
                one for one in records[experiment, method] if one["rule"] == rule and one["seed"] == own[0].seed
            ]
            for method in ("td_infonce", "mc_infonce")
            for rule in ("seen", "all")
        }
        stem = experiment.replace(" ", "_")
        if len(first[0].pairs) > 1:
            plot_stitching(first[0], chosen, out / f"stitching_{stem}.png")
        else:
            plot_shortcuts(first, chosen, out / f"shortcuts_{stem}.png")


ROWS = (
    ("td_infonce", "seen", "TD InfoNCE\nactions in the data", TD),
    ("td_infonce", "all", "TD InfoNCE\nall actions", TD),
    ("mc_infonce", "seen", "MC InfoNCE\nactions in the data", MC),
    ("mc_infonce", "all", "MC InfoNCE\nall actions", MC),
)


def plot_stitching(case: Case, records: Mapping[tuple[str, str], Records], path: Path) -> None:
    """A column a (start, goal) pair; the data on the left, methods and rules below each other (Fig. 4 and 8)."""
    pairs = case.pairs
    figure, panels = _panels(len(ROWS), len(pairs) + 1)
    for row, (method, rule, title, colour) in enumerate(ROWS):
        left = panels[row][0]
        if row < 2:  # the two diagonals apart
            _grid(left, case.data.grid)
            _ways(left, case.data, falling=row == 0)
            left.set_title("the data" if row == 0 else "", fontsize=9)
        else:
            left.set_visible(False)
        for column, record in enumerate(records[method, rule]):
            panel = panels[row][column + 1]
            _grid(panel, case.data.grid)
            _walk(panel, case.data.grid, record, colour)
            if column == 0:
                panel.set_ylabel(title, fontsize=8)
    figure.savefig(path)


def plot_shortcuts(cases: Sequence[Case], records: Mapping[tuple[str, str], Records], path: Path) -> None:
    """A row a layout; the data on the left, then methods and rules (Fig. 5 and 9)."""
    figure, panels = _panels(len(cases), len(ROWS) + 1)
    for row, case in enumerate(cases):
        data = panels[row][0]
        _grid(data, case.data.grid)
        _ways(data, case.data)
        _ends(data, case.data.grid, *case.pairs[0])
        data.set_ylabel(case.name, fontsize=8)
        if row == 0:
            data.set_title("the data", fontsize=9)
        for column, (method, rule, title, colour) in enumerate(ROWS):
            panel = panels[row][column + 1]
            _grid(panel, case.data.grid)
            (record,) = [one for one in records[method, rule] if one["case"] == case.name]
            _walk(panel, case.data.grid, record, colour)
            if row == 0:
                panel.set_title(title, fontsize=9)
    figure.savefig(path)


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    size = (1.35 * columns + 0.3, 1.45 * rows + 0.3)
    figure = import_extra("matplotlib.figure", "report").Figure(figsize=size, dpi=120, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _grid(panel: Any, grid: GridWorld) -> None:
    """Cells with their borders; row 0 on top."""
    for edge in range(grid.width + 1):
        panel.axvline(edge - 0.5, color="#dddddd", linewidth=0.6, zorder=0)
    for edge in range(grid.height + 1):
        panel.axhline(edge - 0.5, color="#dddddd", linewidth=0.6, zorder=0)
    panel.set(xlim=(-0.5, grid.width - 0.5), ylim=(grid.height - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
    panel.spines[:].set_color("#bbbbbb")


def _places(grid: GridWorld, states: Sequence[int]) -> Float[NDArray[np.float64], "T 2"]:
    """x and y of states."""
    return grid.coordinates[list(states)][:, ::-1].astype(np.float64)


def _ways(panel: Any, data: Paths, falling: bool | None = None) -> None:
    """Trajectories, the common ones dark and wide; ways that share cells are set apart.

    Args:
        panel: To draw on.
        data: The trajectories.
        falling: Only those that lead down to the right and back, or only the others; all where not given.
    """
    shown = [
        (way, count)
        for way, count in zip(data.paths, data.counts, strict=True)
        if falling in (None, way.states[0] in (0, data.grid.states - 1))
    ]
    few = len(shown) < 10
    for number, (way, count) in enumerate(shown):
        common = few and count > sum(data.counts) / 2
        apart = 0.13 * np.array([np.cos(2.4 * number), np.sin(2.4 * number)])
        x, y = _places(data.grid, way.states).T + apart[:, None]
        colour = DARK if common else DATA
        panel.plot(x, y, color=colour, linewidth=2.2 if common else 1.1, alpha=1.0 if few else 0.2)
        if few:
            _arrow(panel, x, y, colour)


def _walk(panel: Any, grid: GridWorld, record: Mapping[str, Any], colour: str) -> None:
    """The path, its start and goal, and how many steps it took."""
    states = list(dict.fromkeys(record["states"])) if not record["reached"] else record["states"]
    if len(states) > 1:
        x, y = _places(grid, states).T
        panel.plot(x, y, color=colour, linewidth=2.2, linestyle="-" if record["reached"] else "--")
        _arrow(panel, x, y, colour)
    _ends(panel, grid, record["start"], record["goal"])
    told = f"{record['steps']:.0f} steps" if record["reached"] else "never arrives"
    panel.set_xlabel(told, fontsize=8, color=colour, labelpad=2)


def _arrow(panel: Any, x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> None:
    """A head in the middle of the last step."""
    panel.annotate(
        "",
        xy=((x[-2] + 3 * x[-1]) / 4, (y[-2] + 3 * y[-1]) / 4),
        xytext=(x[-2], y[-2]),
        arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0},
    )


def _ends(panel: Any, grid: GridWorld, start: int, goal: int) -> None:
    (sx, sy), (gx, gy) = _places(grid, (start, goal))
    panel.plot(sx, sy, "s", color=DARK, markersize=6, zorder=3)
    panel.plot(gx, gy, "*", color="white", markeredgecolor=DARK, markersize=12, zorder=3)
