"""Figures of a few-shot study: success during cloning for each task, and the methods' scores with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoint.errors import import_extra
from studies.fewshot.summary import score_titles
from studies.harness import Tree
from studies.plots import COLOURS, INK, bar, curve, legend, names, panels, plain, save

STYLES = ("-", "--", "-.", ":")
PANEL_COLUMNS = 4
KINDS = {"last": ("o", 0.14, None), "best3": ("D", -0.14, "white")}
"""Marker, distance below the line, and fill of each kind of score."""


def plot_all(result: Tree, out: Path) -> None:
    """Write `fewshot_curves.png` and `fewshot_scores.png` into a folder."""
    save(curves(result), out / "fewshot_curves.png")
    save(scores(result), out / "fewshot_scores.png")


def curves(result: Tree) -> Any:
    """Plot one panel per task: the mean over seeds of each evaluation, and the range of the seeds."""
    tasks, rows = result["config"]["data"]["unseen_tasks"], result["curves"]
    columns = min(PANEL_COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    height = 2.5 * lines + 0.25 * -(-len(rows) // columns) + 0.4
    figure, made = panels(lines, columns, 3.1 * columns + 0.6, height, used=len(tasks), sharex=True, sharey=True)
    for panel, task in zip(made.flat, tasks, strict=False):
        for place, (row, cells) in enumerate(rows.items()):
            steps = [step for step, _ in cells[task][0]]
            values = [[score for _, score in run] for run in cells[task]]
            look = {"label": row, "marker": "o", "markersize": 2.5}
            curve(panel, steps, values, COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)], **look)
        plain(panel, task, "gradient steps of cloning", result["score"] if panel in made[:, 0] else "")
    legend(figure, made[0][0], columns)
    return figure


def scores(result: Tree) -> Any:
    """Plot one panel per task and one for all tasks, with one line per method.

    A line has a dot with its interval for each kind of score. If no run has more than one evaluation, the two kinds are
    equal and plotted as one dot.
    """
    tasks, rows = result["config"]["data"]["unseen_tasks"], list(result["table"])
    several = any(len(run) > 1 for by in result["curves"].values() for runs in by.values() for run in runs)
    kinds = KINDS if several else {"last": (KINDS["last"][0], 0.0, None)}
    columns = min(PANEL_COLUMNS, len(tasks) + 1)
    lines = -(-(len(tasks) + 1) // columns)
    width, height = 2.5 * columns + 0.075 * max(map(len, rows)), (0.34 * len(rows) + 0.75) * lines + 0.4
    figure, made = panels(lines, columns, width, height, used=len(tasks) + 1, sharex=True, sharey=True)
    for panel, task in zip(made.flat, [None, *tasks], strict=False):
        for place, row in enumerate(rows):
            for kind, (marker, below, fill) in kinds.items():
                found = result["aggregate"][kind][row]["iqm"] if task is None else result["table"][row][task][kind]
                colour = COLOURS[place % len(COLOURS)]
                bar(panel, place + below, found, colour, marker, markersize=4.5, markerfacecolor=fill or colour)
        plain(panel, task or "all tasks (IQM)", result["score"])
    names(made[0][0], rows)
    line, titles = import_extra("matplotlib.lines", "report").Line2D, score_titles(result["curves"])
    handles = [
        line([], [], color=INK, marker=marker, markerfacecolor=fill or INK, linestyle="", label=titles[kind])
        for kind, (marker, _, fill) in kinds.items()
    ]
    legend(figure, made[0][0], 2, handles=handles)
    return figure
