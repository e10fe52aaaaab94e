"""Figures of a comparison with ICon: attention as images and as a number, separability, success."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studies.harness import Tree, file_name
from studies.icon.measures import Views
from studies.icon.trials import POSITIONS, TRAINED, UNTRAINED
from studies.plots import COLOURS, GREY, MARKERS, bar, curve, legend, names, panels, plain, save

WIDE = 8.6
"""Width of a page in inches."""
TITLE = 14
"""Maximum number of letters in a line above an image."""


def plot_all(result: Tree, rows: list[Tree], views: Mapping[str, Views], out: Path) -> dict[str, Path]:
    """Write every figure as a PNG.

    Args:
        result: The content of `icon.json`.
        rows: One row per trial.
        views: Task -> the held-out frames whose attention is shown.
        out: The folder.

    Returns:
        The files by name: `attention`, `separability`, `success`, `curves` if there are several checkpoints, and
        `maps:COLUMN`.
    """
    figures = {name: plot(result) for name, plot in FIGURES.items()}
    if all(len(one["steps"]) == 1 for by in result["stability"].values() for one in by.values()):
        del figures["curves"]
    for column in result["attention"]:
        figures[f"maps:{column}"] = _maps(result, rows, column, views[column.partition(" ")[0]])
    found = {}
    for name, figure in figures.items():
        kind, _, column = name.partition(":")
        own = "-" + file_name(column).translate(str.maketrans("_", "-", "()")) if column else ""
        found[name] = save(figure, out / f"icon_{kind}{own}.png")
    return found


def _maps(result: Tree, rows: list[Tree], column: str, views: Views) -> Any:
    """Plot held-out frames, the robot's mask, and each method's attention (Figure 6).

    Every seed has at least one frame, and the seeds show different frames, so that no seed is selected.
    """
    config = result["config"]
    found = {(one["method"], one["seed"]): one["inside"] for one in rows if one["column"] == column}
    looks = [(one["name"], one["name"], TRAINED) for one in config["methods"]]
    if UNTRAINED in found[config["reference"], config["seeds"][0]]:
        looks = [(UNTRAINED, config["reference"], UNTRAINED), *looks]
    each = max(1, len(views.frames) // len(config["seeds"]))
    cells = [
        (seed, (number * each + place) % len(views.frames))
        for number, seed in enumerate(config["seeds"])
        for place in range(each)
    ]
    maps = [
        [np.asarray(found[method, seed][state]["attention"][place]) for _, method, state in looks]
        for seed, place in cells
    ]
    even = [[one * len(one) / one.sum() for one in own] for own in maps]
    across, down = 2 + len(looks), len(cells)
    brightest = max(2.0, float(np.quantile(np.concatenate([one for own in even for one in own]), 0.995)))
    width = min(WIDE, 1.75 * across)
    figure, made = panels(down, across, width, width / across * down + 0.55)
    for row, own, (seed, place) in zip(made, even, cells, strict=True):
        mask = views.masks[place]
        row[0].imshow(views.frames[place])
        row[0].set_ylabel(f"seed {seed}", fontsize=9)
        row[1].imshow(mask, cmap="gray", vmin=0, vmax=1)
        for panel, attention in zip(row[2:], own, strict=True):
            grid = attention.reshape(round(len(attention) ** 0.5), -1)
            image = panel.imshow(grid, cmap="cividis", vmin=0, vmax=brightest, interpolation="nearest")
            _outline(panel, mask, grid.shape)
    for panel, title in zip(made[0], ("image", "robot", *(name for name, _, _ in looks)), strict=True):
        panel.set_title(textwrap.fill(title, TITLE), fontsize=9)
    for panel in made.flat:
        panel.set(xticks=[], yticks=[])
    scale = figure.colorbar(image, ax=made, location="bottom", aspect=50, pad=0.02, shrink=0.6)
    scale.set_label("attention on a token, 1 being an even spread; outlined: the robot", fontsize=8)
    scale.ax.tick_params(labelsize=8)
    return figure


def _outline(panel: Any, mask: Any, grid: tuple[int, ...]) -> None:
    """Plot the robot's outline over a map that has one value per token."""
    height, breadth = mask.shape
    if mask.any() and not mask.all():
        across = (np.arange(breadth) + 0.5) * grid[1] / breadth - 0.5
        down = (np.arange(height) + 0.5) * grid[0] / height - 0.5
        for colour, width in (("black", 1.8), ("white", 0.8)):  # visible on dark and on bright tokens
            panel.contour(across, down, mask.astype(float), levels=[0.5], colors=colour, linewidths=width)


def _attention(result: Tree) -> Any:
    """Plot the robot's share of the attention, and its share of the tokens."""
    columns = {column: found["methods"] for column, found in result["attention"].items()}
    figure, made = _bars(result, columns, "seeds", "share of attention on the robot", 1.2)
    for panel, (column, found) in zip(made, result["attention"].items(), strict=True):
        area = found["area"]["value"]
        panel.axvline(area, color=GREY, linestyle=":", linewidth=1.4, label="share of tokens (even attention)")
        plain(panel, column, "share of attention on the robot")
        panel.set_xlim(0, min(1.02, 1.05 * panel.get_xlim()[1]))  # an interval over seeds may go on past 1
    legend(figure, made[0])
    return figure


def _success(result: Tree) -> Any:
    """Plot success of the last checkpoint, with Wilson's interval."""
    figure, made = _bars(result, result["success"], "episodes", "success rate", 0.95)
    for panel in made:
        panel.set_xlim(-0.03, 1.03)
    return figure


def _bars(result: Tree, columns: Tree, interval: str, title: str, more: float) -> tuple[Any, list[Any]]:
    """Plot one panel per column and one line per method, with a tick per seed and the mean with its interval."""
    figure, made = _panels(columns, 0.42 * max(map(len, columns.values())) + more)
    for panel, (column, by) in zip(made, columns.items(), strict=True):
        for place, (method, own) in enumerate(by.items()):
            colour, marker = _look(result, method)
            panel.plot(own["by_seed"], [place] * len(own["by_seed"]), "|", color=colour, markersize=11)
            bar(panel, place, own[interval], colour, marker)
        names(panel, list(by))
        plain(panel, column, title)
    return figure, made


def _separability(result: Tree) -> Any:
    """Plot the balanced accuracy of a linear probe in every block, with intervals over seeds."""
    columns = result["separability"]
    figure, made = _panels(columns, 3.0)
    for panel, (column, found) in zip(made, columns.items(), strict=True):
        for place, (method, blocks) in enumerate(found.items()):
            colour, marker = _look(result, method)
            numbers = np.arange(1, len(blocks) + 1) + 0.06 * (place - (len(found) - 1) / 2)
            values = [one["value"] for one in blocks]
            panel.plot(numbers, values, "-", marker=marker, color=colour, label=method, markersize=5)
            if blocks[0]["low"] is not None:
                low, high = np.array([[one["low"], one["high"]] for one in blocks]).T
                panel.vlines(numbers, low, np.minimum(high, 1.0), color=colour, linewidth=1.2)
        plain(panel, column, "block", "balanced accuracy (0.5 is chance)", xticks=range(1, len(blocks) + 1))
    legend(figure, made[0])
    return figure


def _curves(result: Tree) -> Any:
    """Plot success over training: the mean of the seeds and their range."""
    columns = result["stability"]
    figure, made = _panels(columns, 2.9)
    for panel, (column, by) in zip(made, columns.items(), strict=True):
        for method, own in by.items():
            colour, marker = _look(result, method)
            curve(panel, own["steps"], own["rates"], colour, marker=marker, label=method, markersize=4)
        met = next(iter(by.values()))["conditions"]
        plain(panel, column, "gradient steps", f"success rate, {met} conditions", ylim=(-0.03, 1.03))
    legend(figure, made[0])
    return figure


def _look(result: Tree, method: str) -> tuple[str, str]:
    order = [one["name"] for one in result["config"]["methods"]]
    if method in (UNTRAINED, POSITIONS):
        return GREY, "x" if method == UNTRAINED else "."
    return COLOURS[order.index(method) % len(COLOURS)], MARKERS[order.index(method) % len(MARKERS)]


def _panels(columns: Tree, height: float) -> tuple[Any, list[Any]]:
    """Return one panel per column of the comparison, two in each row."""
    across = min(2, len(columns))
    down = -(-len(columns) // across)
    figure, made = panels(down, across, 5.4 if across == 1 else WIDE, height * down, used=len(columns))
    return figure, list(made.flat[: len(columns)])


FIGURES: dict[str, Callable[[Tree], Any]] = {
    "attention": _attention,
    "separability": _separability,
    "success": _success,
    "curves": _curves,
}
