"""The tables of OGBench's page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from studies.harness import estimate, kept, markdown, number
from studies.ogbench.run import OURS, TASKS, THEIRS, summary


def success(name: str) -> str:
    """Return, by data set and agent, our success, that of OGBench's code, their difference, and ours by task."""
    found = kept(name, summary)
    rows = []
    for dataset, agents in found["cells"].items():
        for agent, cell in agents.items():
            ours = cell[OURS]
            theirs = estimate(cell[THEIRS], share=True) if THEIRS in cell else "no such agent"
            gap = estimate(found["agree"][dataset].get(agent)) if THEIRS in cell else ""
            tasks = [number(value) for value in ours["tasks"].values()]
            rows.append([dataset, agent, estimate(ours, share=True), theirs, gap, *tasks])
    tasks = [f"task {task}" for task in range(1, TASKS + 1)]
    return markdown(["data set", "agent", "here", "OGBench's code, same data", "here minus OGBench's", *tasks], rows)


TABLES: dict[str, Callable[[], str]] = {"ogbench cpu": partial(success, "ogbench_cpu")}
