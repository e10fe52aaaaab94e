"""Figures of a few-shot benchmark: how cloning goes on, task by task, and the methods side by side with intervals.

Colours are those colour-blind readers can tell apart (Okabe and Ito); line styles and rows of their own tell methods
apart without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.errors import import_extra
from studies.fewshot.summary import score_titles

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8a8a8a")
STYLES = ("-", "--", "-.", ":")
PANEL_COLUMNS = 4
MARKERS = {"last": "o", "best3": "D"}


def plot_all(result: Mapping[str, Any], out: Path) -> None:
    """`fewshot_curves.png` and `fewshot_scores.png` into a folder."""
    plot_curves(result, out / "fewshot_curves.png")
    plot_scores(result, out / "fewshot_scores.png")


def plot_curves(result: Mapping[str, Any], path: Path) -> None:
    """A panel a task: the mean over seeds of each evaluation, and the range of the seeds."""
    tasks = list(result["config"]["data"]["unseen_tasks"])
    columns = min(PANEL_COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    height = 2.5 * lines + 0.25 * -(-len(result["curves"]) // columns) + 0.4
    figure = _figure(3.1 * columns + 0.6, height)
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for panel in panels.flat[len(tasks) :]:
        panel.set_visible(False)
    for number, (panel, task) in enumerate(zip(panels.flat, tasks, strict=False)):
        for place, (row, cells) in enumerate(result["curves"].items()):
            runs = np.array(cells[task])  # [seeds, evaluations, (step, score)]
            steps, values = runs[0, :, 0], runs[:, :, 1]
            colour, style = COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)]
            panel.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.12, linewidth=0)
            panel.plot(steps, values.mean(0), style, color=colour, label=row, linewidth=1.6, marker="o", markersize=2.5)
        panel.set_title(task, fontsize=9)
        _plain(panel)
        if number % columns == 0:
            panel.set_ylabel(result["score"], fontsize=8)
        panel.set_xlabel("gradient steps of cloning", fontsize=8)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.savefig(path)


def plot_scores(result: Mapping[str, Any], path: Path) -> None:
    """A panel a task and one for all of them: a line a method, a dot for each kind of score with its interval."""
    tasks, rows = list(result["config"]["data"]["unseen_tasks"]), list(result["table"])
    columns = min(PANEL_COLUMNS, len(tasks) + 1)
    lines = -(-(len(tasks) + 1) // columns)
    longest = max(map(len, rows))
    figure = _figure(2.5 * columns + 0.075 * longest, (0.34 * len(rows) + 0.75) * lines + 0.4)
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for panel in panels.flat[len(tasks) + 1 :]:
        panel.set_visible(False)
    for panel, task in zip(panels.flat, [None, *tasks], strict=False):
        for place, row in enumerate(rows):
            for kind, marker in MARKERS.items():
                if task is None:
                    found, value = result["aggregate"][kind][row]["iqm"], "value"
                else:
                    found, value = result["table"][row][task][kind], "score"
                height = place + (0.14 if kind == "last" else -0.14)
                colour = COLOURS[place % len(COLOURS)]
                panel.hlines(height, found["low"], found["high"], color=colour, linewidth=1.4)
                face = colour if kind == "last" else "white"
                panel.plot(found[value], height, marker, color=colour, markerfacecolor=face, markersize=4.5)
        panel.set_title("all tasks (IQM)" if task is None else task, fontsize=9)
        panel.set_xlabel(result["score"], fontsize=8)
        _plain(panel)
    panels[0][0].set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
    for line in panels:
        line[0].set_yticklabels(rows, fontsize=8)
    figure.legend(
        handles=_legend(score_titles(result["curves"])), loc="outside lower center", ncols=2, fontsize=8, frameon=False
    )
    figure.savefig(path)


def _legend(titles: Mapping[str, str]) -> list[Any]:
    line = import_extra("matplotlib.lines", "report").Line2D
    faces = {"last": "#222222", "best3": "white"}
    return [
        line([], [], color="#222222", marker=marker, markerfacecolor=faces[kind], linestyle="", label=titles[kind])
        for kind, marker in MARKERS.items()
    ]


def _figure(width: float, height: float) -> Any:
    return import_extra("matplotlib.figure", "report").Figure(figsize=(width, height), dpi=120, layout="constrained")


def _plain(panel: Any) -> None:
    panel.tick_params(labelsize=8)
    panel.grid(color="#eeeeee", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#bbbbbb")
