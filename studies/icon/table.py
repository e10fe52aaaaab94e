"""The tables of a comparison with ICon in Markdown, the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.harness import markdown
from studies.icon.paper import METHODS, PAPER, paper_number
from studies.icon.trials import UNTRAINED

Tree = Mapping[str, Any]
NOT_RUN = "not run"


def tables(result: Tree) -> str:
    """Success beside the paper's, stability, attention on the robot, separability, and what to know of them.

    Args:
        result: What `icon.json` holds.
    """
    config = result["config"]
    parts = [
        f"**{config['title']}**: {len(config['seeds'])} training seeds, {config['evaluation']['episodes']} initial "
        f"conditions, the same ones for all, {config['data']['demonstrations']} demonstrations a task.",
        "Success of the last checkpoint; in brackets the 95 % interval of Wilson, episodes of all seeds pooled, and "
        "after it the deviation between seeds; below it the paper's, over its own demonstrations:\n\n"
        + _success(result),
    ]
    if differences := _differences(result):
        parts.append(
            f"Difference in success from {config['reference']}, paired by seed and condition:\n\n{differences}"
        )
    if any(len(one["steps"]) > 1 for by in result["stability"].values() for one in by.values()):
        parts.append(f"Stability of training (the paper's Figure 4):\n\n{_stability(result)}")
    parts.append(
        f"Attention of the class token on the robot, camera {config['measures']['camera']}, "
        f"{config['data']['validation']} held-out episodes:\n\n{_attention(result)}"
    )
    parts.append(
        "Balanced accuracy of a linear probe, robot's tokens against the others, block by block (0.5 is chance):\n\n"
        + _separability(result)
    )
    if result["pace"] is not None:
        speed = ", ".join(f"{method} {1000 * one:.0f} ms" for method, one in result["pace"]["seconds_a_step"].items())
        parts.append(f"A gradient step: {speed}; {result['pace']['steps']} were made by every method.")
    parts += [f"Note: {note}." for note in config["notes"]]
    if result["simulator_errors"]:
        parts.append(f"Episodes in which the simulator raised, counted as failed: {result['simulator_errors']}.")
    return "\n\n".join(parts) + "\n"


def success_rows(result: Tree) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """The table of success: its head, and of each task, run or not, the task and a cell for each method.

    A cell is what was measured and what the paper reports; either may be empty.
    """
    methods = [one["name"] for one in result["config"]["methods"]]
    methods += [name for name in METHODS if name not in methods]
    ran = {column: column.partition(" ")[0] for column in result["success"]}
    rows = [(column, task, result["success"][column]) for column, task in ran.items()]
    rows += [(task, task, {}) for task in PAPER if task not in ran.values()]
    told = []
    for column, task, by in rows:
        cells = [(column, "")]
        for method in methods:
            paper = paper_number(task, method, alone="(alone)" in column)
            own = by.get(method)
            ours = NOT_RUN if own is None else f"{interval(own['episodes'])} ± {own['deviation']:.2f}"
            cells.append((ours, "" if paper is None else f"paper {paper}"))
        told.append(cells)
    return ["task", *methods], told


def interval(found: Tree, digits: int = 2) -> str:
    """A number with its interval, where it has one."""
    if found["value"] is None:
        return "-"
    if found["low"] is None:
        return f"{found['value']:.{digits}f}"
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _success(result: Tree) -> str:
    head, rows = success_rows(result)
    return markdown(head, [["<br>".join(filter(None, cell)) for cell in row] for row in rows])


def _differences(result: Tree) -> str:
    rows = [
        [column, method, interval(own["difference"]["seeds"]), interval(own["difference"]["episodes"])]
        for column, by in result["success"].items()
        for method, own in by.items()
        if "difference" in own
    ]
    head = ["task", "method", "interval over seeds", "over conditions"]
    return markdown(head, rows) if rows else ""


def _stability(result: Tree) -> str:
    rows = [
        [
            column,
            method,
            interval(own["maximum"]),
            f"{interval(own['mean_of_best'])} (of {own['best_of']})",
            interval(own["relative_drop"]),
            str(own["conditions"]),
        ]
        for column, by in result["stability"].items()
        for method, own in by.items()
    ]
    return markdown(["task", "method", "maximum", "mean of the best", "relative drop", "conditions"], rows)


def _attention(result: Tree) -> str:
    rows = []
    for column, found in result["attention"].items():
        for method, own in found["methods"].items():
            apart = own.get("difference")
            rows.append(
                [
                    column,
                    method,
                    interval(own["seeds"], 3),
                    interval(found["area"], 3),
                    interval(own["ratio"]),
                    "" if apart is None or method == UNTRAINED else interval(apart["seeds"], 3),
                    "" if apart is None or method == UNTRAINED else interval(apart["episodes"], 3),
                ]
            )
    reference = result["config"]["reference"]
    head = ["task", "method", "share of attention", "share of tokens", "ratio"]
    return markdown([*head, f"more than {reference}, over seeds", "over episodes"], rows)


def _separability(result: Tree) -> str:
    rows, blocks = [], 0
    for column, found in result["separability"].items():
        for method, own in found.items():
            rows.append([column, method, *(interval(block) for block in own)])
            blocks = max(blocks, len(own))
    return markdown(["task", "method", *(f"block {number + 1}" for number in range(blocks))], rows)
