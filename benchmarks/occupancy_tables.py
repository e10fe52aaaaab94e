"""Write the tables of `docs/studies/occupancy.md` from the study's result file.

    python benchmarks/occupancy_tables.py

A table stands between `<!-- table NAME -->` and `<!-- end -->`, as on the results page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studies.occupancy.figures import PAPER
from studies.occupancy.floors import FLOORS
from studies.occupancy.known import KNOWN
from studies.occupancy.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "studies" / "occupancy.md"
RESULT = ROOT / "benchmarks" / "results" / "occupancy.json"

SCENES = {
    ("episodes", "decayed"): "episodes of 100, decayed",
    ("episodes", "constant"): "episodes of 100, constant",
    ("trajectory", "decayed"): "one trajectory, decayed",
    ("trajectory", "constant"): "one trajectory, constant",
}
NORMALISED = "_rows_normalised"
Tree = dict[str, Any]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; first column left, the others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(found: Tree | None) -> str:
    """A ratio and its interval, or the bound it is."""
    if found is None:
        return ""
    sign = {"at least": "≥ ", "at most": "≤ ", "mixed": "about "}.get(found["bound"], "")
    return f"{sign}{short(found['ratio'])} [{short(found['low'])}, {short(found['high'])}]"


def short(value: float) -> str:
    """Two figures below 10, whole numbers above."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def thousandths(found: Tree | None) -> str:
    """An error in thousandths with half its interval."""
    if found is None:
        return ""
    return f"{1e3 * found['mean']:.2f} ± {1e3 * (found['high'] - found['mean']):.2f}"


def title(method: str) -> str:
    """A method's name, rows normalised or not."""
    if method.endswith(NORMALISED):
        return METHODS[method.removesuffix(NORMALISED)].title + " (rows normalised)"
    return METHODS[method].title


def ratios(result: Tree) -> str:
    """Times less data TD InfoNCE needs."""
    table = result["advantages"]
    methods = sorted(table["episodes"]["decayed"], key=lambda name: list(METHODS).index(name.removesuffix(NORMALISED)))
    rows = []
    for method in methods:
        found = (times(table[cut][schedule].get(method)) for cut, schedule in SCENES)
        rows.append([title(method), *found, str(PAPER.get(method, ""))])
    return markdown(["baseline", *SCENES.values(), "paper"], rows)


def errors(result: Tree, cut: str, schedule: str) -> str:
    """Mean |p_hat - p| in thousandths, and the learning rates chosen from the least data to the most."""
    table = result["errors"][cut][schedule]
    sizes = [str(size) for size in result["config"]["sizes"]]
    rows = []
    for method, by_size in table.items():
        if not method.endswith(NORMALISED):
            rates = ", ".join(f"{by_size[n]['learning_rate']:g}" for n in sizes)
            rows.append([title(method), *(thousandths(by_size[n]) for n in sizes), rates])
    return markdown(["method", *(f"{int(n):.0e}".replace("+0", "") for n in sizes), "learning rates"], rows)


def floors(result: Tree, cut: str) -> str:
    """What the data allow, in thousandths."""
    table, ratios_of = result["floors"][cut], result["floor_advantages"][cut]
    sizes = [str(size) for size in result["config"]["sizes"]]
    names = {"temporal_difference": "temporal differences"} | {
        name: "Monte Carlo, " + name.removeprefix("monte_carlo_") for name in FLOORS[1:]
    }
    rows = [[names[name], *(thousandths(table[name][n]) for n in sizes), times(ratios_of.get(name))] for name in FLOORS]
    head = ["floor", *(f"{int(n):.0e}".replace("+0", "") for n in sizes)]
    return markdown([*head, "times less data for TD"], rows)


def one_rate(result: Tree) -> str:
    """Both methods at one constant learning rate, whatever the amount of data."""
    baselines = ("mc_infonce_renormalise", "c_learning", "sr")
    rows = [
        [f"{SCENES[cut, 'constant'].partition(',')[0]}, {rate}", *(times(found.get(m)) for m in baselines)]
        for cut, by_rate in result["advantages_at_one_rate"].items()
        for rate, found in by_rate.items()
    ]
    return markdown(["learning rate", *(title(m) for m in baselines)], rows)


def sr_rates(result: Tree) -> str:
    """The successor representation at each constant rate, against TD InfoNCE at its best."""
    table = result["advantages_over_sr_by_rate"]
    rows = [
        [f"{float(rate):g}", *(times(table[cut][rate]) for cut in ("episodes", "trajectory"))]
        for rate in table["episodes"]
    ]
    return markdown(["SR's learning rate", "episodes of 100", "one trajectory"], rows)


def by_batch(result: Tree) -> str:
    """Final errors in thousandths for several batch sizes."""
    table = result["by_batch"]
    methods = ("c_learning_both", "c_learning_pairs", "td_infonce")
    sizes = list(table[methods[0]])
    rows = [[title(method), *(thousandths(table[method][n]) for n in sizes)] for method in methods]
    return markdown(["method", *(f"batch of {n}" for n in sizes)], rows)


def known(result: Tree) -> str:
    """What is left of the error on expected gradients."""
    rows = [[name, f"{result['known_model_error'][key]:.1e}"] for key, name in KNOWN.items()]
    return markdown(["method", "error"], rows)


def cost(result: Tree) -> str:
    """Processor time of training."""
    minutes = result["processor_seconds"] / 60
    about = result["provenance"]["hardware"]
    return markdown(
        ["hardware", "processor minutes", "over two processes"],
        [[f"{about['cpu']}, {about['cores']} cores", f"{minutes:.0f}", f"{minutes / 2:.0f} minutes"]],
    )


TABLES: dict[str, Callable[[Tree], str]] = {
    "ratios": ratios,
    "errors decayed": lambda result: errors(result, "episodes", "decayed"),
    "errors constant": lambda result: errors(result, "episodes", "constant"),
    "floors episodes": lambda result: floors(result, "episodes"),
    "floors trajectory": lambda result: floors(result, "trajectory"),
    "one rate": one_rate,
    "sr rates": sr_rates,
    "by batch": by_batch,
    "known": known,
    "cost": cost,
}


def fill(text: str) -> str:
    """The page with every table made anew; "not run" where there is no result."""
    result = json.loads(RESULT.read_text()) if RESULT.exists() else None
    return re.sub(
        r"<!-- table ([\w ]+) -->\n.*?<!-- end -->",
        lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]](result) if result else 'not run'}\n<!-- end -->",
        text,
        flags=re.S,
    )


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
