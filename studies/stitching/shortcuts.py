"""Shortcuts in skewed data (TD InfoNCE, section 4.4, Fig. 5 and 9, Appendix D.4).

Nearly all trajectories take the long way. The short one either branches off at the start, so that some trajectories
walk it whole, or is there only in two pieces that no trajectory joins. Both ways of the first kind can be compared by
looking at whole trajectories; the second asks for dynamic programming.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.stitching.data import LAYOUTS, shortcut_data, walk
from studies.stitching.trials import Case

SHORTCUTS = ("branching", "two pieces")


def shortcut_cases(kind: str, transitions: int, seeds: Iterable[int]) -> list[Case]:
    """Every layout under every seed.

    Args:
        kind: One of `SHORTCUTS`.
        transitions: Of each data set.
        seeds: Of the data.
    """
    cases = []
    for number, layout in enumerate(LAYOUTS):
        for seed in seeds:
            data = shortcut_data(layout, kind == "two pieces", transitions, seed=1000 * number + seed)
            way = walk(data.grid, layout.start, layout.long).states
            cases.append(Case(layout.name, seed, data, ((way[0], way[-1]),)))
    return cases


def shortcut_summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Per layout: the lengths of both ways, the steps taken under each seed, and how many always took the short way.

    Args:
        records: Of one method, rule and kind. Steps are `None` where the goal was not reached.
    """
    layouts = {}
    for layout in LAYOUTS:
        own = [record for record in records if record["case"] == layout.name]
        steps = [record["steps"] for record in own]
        always = [record["steps"] for record in own if record["reached"] == 1]
        layouts[layout.name] = {
            "short": len(layout.short),
            "long": len(layout.long),
            "steps": steps,
            "reached": [record["reached"] for record in own],
            "took_short": sum(found == len(layout.short) for found in always),
            "took_long": sum(found == len(layout.long) for found in always),
            "n": len(own),
        }
    totals = {key: sum(one[key] for one in layouts.values()) for key in ("took_short", "took_long", "n")}
    return {**totals, "layouts": layouts}
