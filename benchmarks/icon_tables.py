"""The tables of `docs/results.md` on ICon, diffusion policies and robosuite, for `fill_results.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from goal_tables import load, table


def interval(found: Mapping[str, Any] | None, digits: int = 2) -> str:
    """A number and its interval."""
    if found is None or found["value"] is None:
        return "not defined"
    if found["low"] is None:
        return f"{found['value']:.{digits}f}"
    low, value, high = (f"{found[key]:.{digits}f}" for key in ("low", "value", "high"))
    return f"{value} [{low}, {high}]"


def seeds_of(values: list[float], digits: int = 2) -> str:
    """Every seed's number."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def success() -> str:
    """Success of the last checkpoint."""
    found = load("icon_cpu")
    head = ["task", "method", "success, episodes of all seeds", "seeds", "over seeds"]
    head.append("more than the reference, over seeds")
    if found is None:
        return table(head, [["all", *["not run"] * 5]])
    rows = []
    for task, methods in found["success"].items():
        for method, about in methods.items():
            more = about.get("difference")
            rows.append(
                [
                    task,
                    method,
                    interval(about["episodes"]),
                    seeds_of(about["by_seed"]),
                    interval(about["seeds"]),
                    "" if more is None else interval(more["seeds"]),
                ]
            )
    return table(head, rows)


def attention() -> str:
    """Share of the class token's attention that lies on the robot."""
    found = load("icon_cpu")
    head = ["method", "share of attention on the robot", "seeds", "over its share of tokens"]
    head.append("more than the reference, over seeds")
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    rows = []
    for cell in found["attention"].values():
        for method, about in cell["methods"].items():
            more = about.get("difference")
            rows.append(
                [
                    method,
                    interval(about["seeds"], 3),
                    seeds_of(about["by_seed"], 3),
                    interval(about["ratio"]),
                    "" if more is None else interval(more["seeds"], 3),
                ]
            )
        rows.append(["share of tokens", interval(cell["area"], 3), "", "1", ""])
    return table(head, rows)


def separability() -> str:
    """Balanced accuracy of a linear probe on the tokens of each layer."""
    found = load("icon_cpu")
    if found is None:
        return table(["method", "layers"], [["all", "not run"]])
    (cell,) = found["separability"].values()
    layers = len(next(iter(cell.values())))
    head = ["method", *(f"after block {layer + 1}" for layer in range(layers))]
    return table(head, [[method, *(interval(one, 3) for one in about)] for method, about in cell.items()])


def robosuite_experts() -> str:
    """How often the scripted experts solve a scene."""
    found = load("robosuite_experts")
    head = ["task and robot", "solved", "episodes", "steps, median", "steps, most"]
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    rows = [
        [
            name,
            interval(cell["success"]),
            f"{cell['success']['n']}",
            f"{cell['steps_median']:.0f}" if cell["steps_median"] is not None else "",
            f"{cell['steps_most']}" if cell["steps_most"] is not None else "",
        ]
        for name, cell in found["cells"].items()
    ]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "icon success": success,
    "icon attention": attention,
    "icon separability": separability,
    "robosuite experts": robosuite_experts,
}
