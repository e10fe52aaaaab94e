"""The whole off-policy study (stitching and shortcuts), with the tables and figures of `docs/studies/stitching.md`.

    python benchmarks/offpolicy.py --run runs/stitching [--out benchmarks/results/offpolicy.json]

A folder that an interrupted run left is finished. A table of the page stands between `<!-- table NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.stitching.run import StitchingConfig, stitching_study

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "studies" / "stitching.md"
FIGURES = ("stitching_alternating", "stitching_random", "shortcuts_branching", "shortcuts_two_pieces")
METHODS = {
    "td_infonce": "TD InfoNCE",
    "mc_infonce": "MC InfoNCE",
    "mc_limit": "MC InfoNCE, infinitely many steps",
    "untrained": "no training",
}
RULES = {"seen": "actions in the data", "all": "all actions"}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; first column left, the others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def stitching(found: dict[str, Any]) -> str:
    """Success and steps."""
    rows = []
    for method, name in METHODS.items():
        for rule, allowed in RULES.items():
            row = [f"{name}, {allowed}"]
            for style in ("alternating", "random"):
                one = found["stitching"][style][method][rule]
                interval = f" [{one['low']:.2f}, {one['high']:.2f}]" if "low" in one else ""
                row.append(f"{one['success']:.2f}{interval}")
                row.append("none" if one["steps"] is None else f"{one['steps']:.1f}")
            rows.append(row)
    return markdown(["method, rule", "alternating: success", "steps", "random: success", "steps"], rows)


def seeds(found: dict[str, Any]) -> str:
    """Each seed's share of the eight pairs, alternating staircases."""
    rows = []
    for method in ("td_infonce", "mc_infonce"):
        for rule, allowed in RULES.items():
            shares = found["stitching"]["alternating"][method][rule]["by_seed"]
            solved = ", ".join(f"{8 * share:.0f}" for share in shares)
            rows.append([f"{METHODS[method]}, {allowed}", solved])
    return markdown(["method, rule", "pairs solved of 8, seed by seed"], rows)


def shortcuts(found: dict[str, Any]) -> str:
    """How many runs took which way."""
    rows = []
    for method in ("td_infonce", "mc_infonce", "mc_limit"):
        for rule, allowed in RULES.items():
            row = [f"{METHODS[method]}, {allowed}"]
            for kind in ("branching", "two pieces"):
                one = found["shortcuts"][kind][method][rule]
                other = one["n"] - one["took_short"] - one["took_long"]
                row.append(f"{one['took_short']} / {one['took_long']} / {other}")
            rows.append(row)
    return markdown(["method, rule", "branching: short / long / neither", "two pieces"], rows)


def layouts(found: dict[str, Any]) -> str:
    """Steps of every seed, two pieces, actions in the data."""
    kinds = found["shortcuts"]["two pieces"]
    td, mc = (kinds[method]["seen"]["layouts"] for method in ("td_infonce", "mc_infonce"))

    def steps(one: dict[str, Any]) -> str:
        return ", ".join("none" if n is None else f"{n:.0f}" for n in one["steps"])

    rows = [[name, str(one["short"]), str(one["long"]), steps(one), steps(mc[name])] for name, one in td.items()]
    return markdown(["layout", "short way", "long way", "TD, seed by seed", "MC, seed by seed"], rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "stitching": stitching,
    "seeds": seeds,
    "shortcuts": shortcuts,
    "layouts": layouts,
}


def fill(text: str, found: dict[str, Any]) -> str:
    """The page with every table made anew."""
    return re.sub(
        r"<!-- table (\w+) -->\n.*?<!-- end -->",
        lambda mark: f"<!-- table {mark[1]} -->\n{TABLES[mark[1]](found)}\n<!-- end -->",
        text,
        flags=re.S,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "offpolicy.json")
    arguments = parser.parse_args()
    found = stitching_study(StitchingConfig(), arguments.run)
    result = {"command": f"python benchmarks/offpolicy.py --run {arguments.run}", **found}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for name in FIGURES:
        shutil.copy(arguments.run / f"{name}.png", ROOT / "docs" / "assets" / f"{name}.png")
    PAGE.write_text(fill(PAGE.read_text(), result))
    print(f"{arguments.out} and {PAGE} written; {result['processor_seconds']} processor seconds")


if __name__ == "__main__":
    main()
