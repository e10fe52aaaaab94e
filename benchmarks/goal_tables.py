"""The tables of `docs/results.md` about goal-reaching agents; `fill_results.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PAPER_FIG_2A = "not given in numbers"


def load(name: str) -> Any:
    """A result file, or `None` where it was not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; first column left, the others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def over_seeds(found: dict[str, Any]) -> str:
    """Mean, interval where there are seeds enough, and every seed's value."""
    mean = f"{found['mean']:.2f}"
    if found["low"] is None:
        return f"{mean} (one seed)"
    values = ", ".join(f"{value:.2f}" for value in found["values"])
    return f"{mean} [{found['low']:.2f}, {found['high']:.2f}] ({values})"


def goal_reaching(name: str) -> str:
    """Agents side by side in one environment."""
    found = load(f"goal_reaching_{name}")
    head = ["agent", "success", "success at the end", "closest distance, m", "minutes a run"]
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    rows = []
    for row, cells in found["rows"].items():
        minutes = sum(run["seconds"] for run in cells["runs"]) / len(cells["runs"]) / 60
        numbers = [over_seeds(cells[key]) for key in ("success", "success_at_end", "closest_distance")]
        rows.append([row, *numbers, f"{minutes:.1f}"])
    return table(head, rows)


def when_reached(name: str, share: float = 0.9) -> str:
    """Environment steps at which each seed's evaluation first reached a share of its goals."""
    found = load(f"goal_reaching_{name}")
    head = ["agent", f"steps to success {share}, each seed"]
    if found is None:
        return table(head, [["all", "not run"]])
    rows = []
    for row, cells in found["rows"].items():
        firsts = []
        for run in cells["runs"]:
            there = [point["step"] for point in run["curve"] if point["success"] >= share]
            firsts.append(f"{there[0]:,}" if there else "never")
        rows.append([row, ", ".join(firsts)])
    return table(head, rows)
