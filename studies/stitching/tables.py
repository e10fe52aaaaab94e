"""The tables of the stitching study's page."""

from __future__ import annotations

from collections.abc import Callable

from studies.harness import kept, markdown, number, seeds
from studies.stitching.run import summary

WALKERS = {
    "td_infonce": "TD InfoNCE",
    "mc_infonce": "MC InfoNCE",
    "mc_limit": "MC InfoNCE, infinitely many steps",
    "untrained": "no training",
}
RULES = {"seen": "actions in the data", "all": "all actions"}


def stitching() -> str:
    """Return success and steps."""
    found, rows = kept("stitching", summary)["stitching"], []
    for method, name in WALKERS.items():
        for rule, allowed in RULES.items():
            row = [f"{name}, {allowed}"]
            for one in (found[style][method][rule] for style in ("alternating", "random")):
                interval = f" [{one['low']:.2f}, {one['high']:.2f}]" if "low" in one else ""
                row += [f"{one['success']:.2f}{interval}", number(one["steps"], 1, "none")]
            rows.append(row)
    heads = (f"{style}: {what}" for style in ("alternating", "random") for what in ("success", "steps"))
    return markdown(["method, rule", *heads], rows)


def pairs_solved() -> str:
    """Return the number of pairs, of eight, that each seed solved on alternating staircases."""
    found = kept("stitching", summary)["stitching"]["alternating"]
    rows = [
        [f"{WALKERS[method]}, {allowed}", seeds([8 * share for share in found[method][rule]["by_seed"]], 0)]
        for method in ("td_infonce", "mc_infonce")
        for rule, allowed in RULES.items()
    ]
    return markdown(["method, rule", "pairs solved of 8, seed by seed"], rows)


def shortcuts() -> str:
    """Return the number of runs that took each way."""
    found, rows = kept("stitching", summary)["shortcuts"], []
    for method in ("td_infonce", "mc_infonce", "mc_limit"):
        for rule, allowed in RULES.items():
            ways = [found[kind][method][rule] for kind in ("branching", "two pieces")]
            cells = [
                f"{w['took_short']} / {w['took_long']} / {w['n'] - w['took_short'] - w['took_long']}" for w in ways
            ]
            rows.append([f"{WALKERS[method]}, {allowed}", *cells])
    return markdown(["method, rule", "branching: short / long / neither", "two pieces: short / long / neither"], rows)


def layouts() -> str:
    """Return the steps of every seed, for short ways in two pieces and policies limited to actions in the data."""
    kinds = kept("stitching", summary)["shortcuts"]["two pieces"]
    td, mc = (kinds[method]["seen"]["layouts"] for method in ("td_infonce", "mc_infonce"))
    rows = [
        [
            name,
            str(one["short"]),
            str(one["long"]),
            *(", ".join(number(n, 0, "none") for n in way["steps"]) for way in (one, mc[name])),
        ]
        for name, one in td.items()
    ]
    return markdown(["layout", "short way", "long way", "TD, seed by seed", "MC, seed by seed"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "stitching": stitching,
    "seeds": pairs_solved,
    "shortcuts": shortcuts,
    "layouts": layouts,
}
