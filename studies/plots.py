"""Parts that the figures of all studies share: a palette, panels, plain axes, legends, curves and intervals.

The palette is Okabe and Ito's, which colour-blind readers can distinguish. Markers, line styles and separate rows
distinguish methods without colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.errors import import_extra

BLUE, VERMILLION, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#767676", "#bbbbbb"
COLOURS = (BLUE, VERMILLION, GREEN, PINK, AMBER, SKY, INK, GREY)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "x")


def panels(rows: int, columns: int, width: float, height: float, *, used: int | None = None, **options: Any) -> Any:
    """Return a figure and its panels [rows][columns].

    Args:
        rows: Number of rows of panels.
        columns: Number of columns of panels.
        width: Width of the figure in inches.
        height: Height of the figure in inches.
        used: Number of visible panels, counted row by row; all by default.
        options: Options of `Figure.subplots`.
    """
    figure = import_extra("matplotlib.figure", "report").Figure(figsize=(width, height), dpi=130, layout="constrained")
    made = figure.subplots(rows, columns, squeeze=False, **options)
    for panel in made.flat[used:] if used is not None else ():
        panel.set_visible(False)
    return figure, made


def plain(panel: Any, title: str = "", x: str = "", y: str = "", **options: Any) -> None:
    """Give a panel light axes, small labels and `Axes.set` options."""
    panel.set_title(title, fontsize=9)
    panel.set_xlabel(x, fontsize=8)
    panel.set_ylabel(y, fontsize=8)
    panel.set(**options)
    panel.tick_params(labelsize=8, colors=INK)
    panel.grid(color="#eeeeee", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(PALE)


def legend(figure: Any, panel: Any, columns: int = 3, **options: Any) -> None:
    """Put a panel's legend below all panels, so that it hides nothing."""
    if "handles" not in options:
        options["handles"], options["labels"] = panel.get_legend_handles_labels()
    columns = min(columns, len(options["handles"]))
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False, **options)


def curve(panel: Any, x: Sequence[float], runs: Any, colour: str, style: str = "-", **options: Any) -> None:
    """Plot the mean of runs [seeds, steps] on top of their range."""
    values = np.asarray(runs, float)
    panel.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.13, linewidth=0)
    panel.plot(x, values.mean(0), style, color=colour, linewidth=1.6, **options)


def bar(panel: Any, height: float, found: Mapping[str, Any], colour: str, marker: str, **options: Any) -> None:
    """Plot a number with its interval, if it has one, on a line of its own."""
    if found["low"] is not None:
        panel.hlines(height, found["low"], found["high"], color=colour, linewidth=1.5)
    value = next(found[key] for key in ("value", "score", "mean", "ratio") if key in found)
    panel.plot(value, height, marker, color=colour, **({"markersize": 6} | options))


def names(panel: Any, rows: Sequence[str]) -> None:
    """Name the lines of a panel of bars, the first on top."""
    panel.set_yticks(range(len(rows)), list(rows), fontsize=8)
    panel.set_ylim(len(rows) - 0.5, -0.5)


def save(figure: Any, path: Path) -> Path:
    """Write a figure as an SVG without a date and with constant names, so that equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with import_extra("matplotlib", "report").rc_context({"svg.hashsalt": "counterpoint"}):
        figure.savefig(path, **({"metadata": {"Date": None}} if path.suffix == ".svg" else {}))
    return path
