"""Figures of a comparison with ICon: attention as images and as a number, separability, success.

Colours are those colour-blind readers can tell apart (Okabe and Ito); markers tell methods apart without them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.errors import import_extra
from studies.harness import file_name
from studies.icon.measures import Views
from studies.icon.trials import TRAINED, UNTRAINED

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "D", "^", "v")
GREY, INK = "#767676", "#222222"
WIDE = 8.6
"""Inches across, of a page."""
TITLE = 14
"""Letters in a line above a image."""

Tree = Mapping[str, Any]


def plot_all(result: Tree, views: Mapping[str, Views], out: Path) -> dict[str, Path]:
    """Draw every figure as a PNG.

    Args:
        result: What `icon.json` holds.
        views: Task -> the held-out frames whose attention is shown.
        out: The folder.

    Returns:
        Name -> file: `attention`, `separability`, `success`, `curves` where there are several checkpoints, and
        `maps:COLUMN`.
    """
    drawn = {"attention": _attention(result), "separability": _separability(result), "success": _success(result)}
    if any(len(one["steps"]) > 1 for by in result["stability"].values() for one in by.values()):
        drawn["curves"] = _curves(result)
    for column in result["attention"]:
        drawn[f"maps:{column}"] = _maps(result, column, views[column.partition(" ")[0]])
    found = {}
    for name, figure in drawn.items():
        kind, _, column = name.partition(":")
        found[name] = out / f"icon_{kind}{'-' + _file(column) if column else ''}.png"
        figure.savefig(found[name])
    return found


def _maps(result: Tree, column: str, views: Views) -> Any:
    """Held-out frames, the robot's mask, and each method's attention (Figure 6), of the first seed."""
    methods = {
        run["method"]: run["inside"]
        for run in result["raw"].values()
        if run["column"] == column and run["seed"] == result["config"]["seeds"][0]
    }
    reference = result["config"]["reference"]
    maps = {name: inside[TRAINED]["attention"] for name, inside in methods.items()}
    if UNTRAINED in methods[reference]:
        maps = {UNTRAINED: methods[reference][UNTRAINED]["attention"]} | maps
    across, down = 2 + len(maps), len(views.frames)
    evenly = {name: np.asarray(rows) * _tokens(rows) / np.sum(rows, 1, keepdims=True) for name, rows in maps.items()}
    brightest = max(2.0, float(np.quantile(np.concatenate(list(evenly.values())), 0.995)))
    figure = _figure(min(WIDE, 1.75 * across), min(WIDE, 1.75 * across) / across * down + 0.55)
    panels = figure.subplots(down, across, squeeze=False)
    for row, (frame, mask) in enumerate(zip(views.frames, views.masks, strict=True)):
        panels[row][0].imshow(frame)
        panels[row][1].imshow(mask, cmap="gray", vmin=0, vmax=1)
        for place, (name, attention) in enumerate(evenly.items(), 2):
            grid = attention[row].reshape(round(attention.shape[1] ** 0.5), -1)
            shown = panels[row][place].imshow(grid, cmap="cividis", vmin=0, vmax=brightest, interpolation="nearest")
            _outline(panels[row][place], mask, grid.shape)
            if row == 0:
                panels[row][place].set_title(textwrap.fill(name, TITLE), fontsize=9)
    for place, title in enumerate(("image", "robot")):
        panels[0][place].set_title(title, fontsize=9)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    bar = figure.colorbar(shown, ax=panels, location="bottom", aspect=50, pad=0.02, shrink=0.6)
    bar.set_label("attention on a token, 1 being an even spread; outlined: the robot", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def _tokens(rows: Any) -> int:
    return len(rows[0])


def _outline(panel: Any, mask: Any, grid: tuple[int, ...]) -> None:
    """The robot's outline over a map that has a value a token."""
    height, breadth = mask.shape
    if mask.any() and not mask.all():
        across = (np.arange(breadth) + 0.5) * grid[1] / breadth - 0.5
        down = (np.arange(height) + 0.5) * grid[0] / height - 0.5
        for colour, width in (("black", 1.8), ("white", 0.8)):  # seen on dark and on bright tokens
            panel.contour(across, down, mask.astype(float), levels=[0.5], colors=colour, linewidths=width)


def _attention(result: Tree) -> Any:
    """Share of attention on the robot: a dot a seed, the mean with its interval over seeds, and the share of tokens."""
    columns = result["attention"]
    rows = max(len(found["methods"]) for found in columns.values())
    figure, panels = _panels(columns, 0.42 * rows + 1.2)
    for panel, (column, found) in zip(panels, columns.items(), strict=True):
        for place, (method, own) in enumerate(found["methods"].items()):
            colour, marker = _look(result, method)
            panel.plot(own["by_seed"], [place] * len(own["by_seed"]), "|", color=colour, markersize=11)
            _bar(panel, place, own["seeds"], colour, marker)
        area = found["area"]["value"]
        panel.axvline(area, color=GREY, linestyle=":", linewidth=1.4, label="share of tokens (even attention)")
        _named(panel, column, found["methods"])
        panel.set_xlabel("share of attention on the robot", fontsize=8)
        panel.set_xlim(0, min(1.02, 1.05 * panel.get_xlim()[1]))  # an interval over seeds may go on past 1
    _legend(figure, panels)
    return figure


def _success(result: Tree) -> Any:
    """Success of the last checkpoint: a tick a seed, the mean with Wilson's interval."""
    columns = result["success"]
    rows = max(map(len, columns.values()))
    figure, panels = _panels(columns, 0.42 * rows + 0.95)
    for panel, (column, by) in zip(panels, columns.items(), strict=True):
        for place, (method, own) in enumerate(by.items()):
            colour, marker = _look(result, method)
            panel.plot(own["by_seed"], [place] * len(own["by_seed"]), "|", color=colour, markersize=11)
            _bar(panel, place, own["episodes"], colour, marker)
        _named(panel, column, by)
        panel.set_xlabel("success rate", fontsize=8)
        panel.set_xlim(-0.03, 1.03)
    return figure


def _separability(result: Tree) -> Any:
    """Balanced accuracy of a linear probe in every block, with intervals over seeds."""
    columns = result["separability"]
    figure, panels = _panels(columns, 3.0)
    for panel, (column, found) in zip(panels, columns.items(), strict=True):
        for place, (method, blocks) in enumerate(found.items()):
            colour, marker = _look(result, method)
            numbers = np.arange(1, len(blocks) + 1) + 0.06 * (place - (len(found) - 1) / 2)
            values = np.array([one["value"] for one in blocks])
            panel.plot(numbers, values, "-", marker=marker, color=colour, label=method, markersize=5)
            ends = [[one["low"], one["high"]] for one in blocks]
            if ends[0][0] is not None:
                low, high = np.array(ends).T
                panel.vlines(numbers, low, np.minimum(high, 1.0), color=colour, linewidth=1.2)
        panel.set_title(column, fontsize=9)
        panel.set_xticks(range(1, len(blocks) + 1))
        panel.set_xlabel("block", fontsize=8)
        panel.set_ylabel("balanced accuracy (0.5 is chance)", fontsize=8)
        _plain(panel)
    _legend(figure, panels)
    return figure


def _curves(result: Tree) -> Any:
    """Success over training: the mean of the seeds and their range."""
    columns = result["stability"]
    figure, panels = _panels(columns, 2.9)
    for panel, (column, by) in zip(panels, columns.items(), strict=True):
        for method, own in by.items():
            colour, marker = _look(result, method)
            rates = np.array(own["rates"])
            panel.fill_between(own["steps"], rates.min(0), rates.max(0), color=colour, alpha=0.13, linewidth=0)
            panel.plot(own["steps"], rates.mean(0), "-", marker=marker, color=colour, label=method, markersize=4)
        met = next(iter(by.values()))["conditions"]
        panel.set_title(column, fontsize=9)
        panel.set_xlabel("gradient steps", fontsize=8)
        panel.set_ylabel(f"success rate, {met} conditions", fontsize=8)
        panel.set_ylim(-0.03, 1.03)
        _plain(panel)
    _legend(figure, panels)
    return figure


def _legend(figure: Any, panels: list[Any]) -> None:
    """Below the panels, where it hides nothing."""
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize=8, frameon=False)


def _look(result: Tree, method: str) -> tuple[str, str]:
    names = [one["name"] for one in result["config"]["methods"]]
    if method == UNTRAINED:
        return GREY, "x"
    return COLOURS[names.index(method) % len(COLOURS)], MARKERS[names.index(method) % len(MARKERS)]


def _bar(panel: Any, height: float, found: Tree, colour: str, marker: str) -> None:
    if found["low"] is not None:
        panel.hlines(height, found["low"], found["high"], color=colour, linewidth=1.6)
    panel.plot(found["value"], height, marker, color=colour, markersize=6)


def _named(panel: Any, column: str, names: Any) -> None:
    panel.set_yticks(range(len(names)), list(names), fontsize=8)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_title(column, fontsize=9)
    _plain(panel)


def _panels(columns: Any, height: float) -> tuple[Any, list[Any]]:
    """A panel a column of the comparison, two side by side."""
    across = min(2, len(columns))
    down = -(-len(columns) // across)
    figure = _figure(5.4 if across == 1 else WIDE, height * down)
    panels = figure.subplots(down, across, squeeze=False)
    for panel in panels.flat[len(columns) :]:
        panel.set_visible(False)
    return figure, list(panels.flat[: len(columns)])


def _figure(width: float, height: float) -> Any:
    return import_extra("matplotlib.figure", "report").Figure(figsize=(width, height), dpi=150, layout="constrained")


def _plain(panel: Any) -> None:
    panel.tick_params(labelsize=8, colors=INK)
    panel.grid(color="#eeeeee", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#bbbbbb")


def _file(column: str) -> str:
    return file_name(column).translate(str.maketrans(" ", "-", "()"))
