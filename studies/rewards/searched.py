"""The settings that `studies.tune` chose, from its stored results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studies.harness import Rows, Tree, kept, markdown, number

KEYS = ("margin", "voc", "voc_wrong", "accuracy")


def summary(rows: Rows, about: Tree) -> Tree:
    """Return `methods`: by method, its `chosen` settings, and its `authors` settings after the best number of steps.

    Both have `learning_rate`, `setting` and its `values`, `steps`, and the means over seeds `margin`, `voc`,
    `voc_wrong` and `accuracy`. `every` lists all combinations.
    """
    found: Tree = {}
    for name, method in about["config"]["methods"].items():
        cells: dict[tuple[float, int, int], list[Tree]] = {}
        for row in rows:
            if row["row"] == name:
                for one in row["scores"]:
                    cells.setdefault((row["learning_rate"], row["setting"], one["steps"]), []).append(one)
        every = [
            {
                "learning_rate": rate,
                "setting": which,
                "values": method["settings"][which],
                "steps": steps,
                **{key: float(np.mean([one[key] for one in ones])) for key in KEYS},
            }
            for (rate, which, steps), ones in cells.items()
        ]
        authors = (method["learning_rate"], 0)
        own = [cell for cell in every if (cell["learning_rate"], cell["setting"]) == authors]
        best, usual = (max(some, key=lambda cell: cell["margin"]) for some in (every, own))
        found[name] = {"chosen": best, "authors": usual, "every": every}
    return {"methods": found}


def searched(method: str, names: Sequence[str], *, authors: bool = False) -> Tree:
    """Return a method's settings with the highest mean margin over stored searches, as changes to its recipe.

    Args:
        method: The method.
        names: Result files of `studies.tune`.
        authors: Choose only the number of steps; learning rate and settings are the authors'.
    """
    found = [kept(name, summary)["methods"][method] for name in names]
    usual = (found[0]["authors"]["learning_rate"], 0)
    margins: dict[tuple[float, int, int], list[float]] = {}
    for one in found:
        for cell in one["every"]:
            margins.setdefault((cell["learning_rate"], cell["setting"], cell["steps"]), []).append(cell["margin"])
    some = {key: float(np.mean(each)) for key, each in margins.items() if not authors or key[:2] == usual}
    rate, which, steps = max(some, key=lambda key: some[key])
    values = next(cell["values"] for cell in found[0]["every"] if cell["setting"] == which)
    return {"optimizer.lr": rate, "train.steps": steps, **values}


def table(found: Tree) -> str:
    """Return a Markdown table of the chosen settings, and of the margins at these and at the authors' settings."""
    lines = []
    for name, one in found["methods"].items():
        best, own = one["chosen"], one["authors"]
        values = ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in best["values"].items())
        line = [name, f"{best['learning_rate']:g}", values, str(best["steps"]), *(number(best[key]) for key in KEYS)]
        median = float(np.median([cell["margin"] for cell in one["every"]]))
        lines.append([*line, number(own["margin"]), number(median)])
    head = [
        "method",
        "learning rate",
        "own settings",
        "steps",
        "margin",
        "VOC",
        "VOC, wrong",
        "right instruction first",
    ]
    return markdown([*head, "margin at the authors' settings", "median margin of the search"], lines)
