"""The tables of a comparison with ICon in Markdown, with the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from studies.harness import Tree, estimate, markdown, seeds
from studies.icon.paper import METHODS, PAPER, paper_number
from studies.icon.summary import BAND

NOT_RUN = "not run"
OUTSIDE = f"no verdict: the reference is outside {BAND[0]} to {BAND[1]}"


def page(result: Tree, figures: Mapping[str, Path]) -> str:
    """Return the report: every table with its figures, and notes.

    Args:
        result: The content of `icon.json`.
        figures: Files in the page's folder, by name.
    """
    config, maps = result["config"], [name for name in figures if name.startswith("maps:")]

    def shown(title: str, text: str, *names: str) -> str:
        images = [f"![{name.replace(':', ' of ')}]({figures[name].name})" for name in names if name in figures]
        return "\n\n".join([f"{title}:", text, *images])

    parts = [
        f"**{config['title']}**: {len(config['seeds'])} training seeds, {config['evaluation']['episodes']} initial "
        f"conditions, the same ones for all, {config['data']['demonstrations']} demonstrations a task.",
        "Intervals are 95 %: Wilson's over the episodes of all seeds pooled, Student's over seeds, a bootstrap over "
        "conditions or held-out episodes.",
        shown("Success of the last checkpoint beside the paper's, over its own demonstrations", beside_paper(result)),
        shown("Success of the last checkpoint, differences paired by seed and condition", success(result), "success"),
    ]
    if any(len(one["steps"]) > 1 for by in result["stability"].values() for one in by.values()):
        parts.append(shown("Stability of training (the paper's Figure 4)", stability(result), "curves"))
    held_out = f"camera {config['measures']['camera']}, {config['data']['validation']} held-out episodes"
    parts += [
        shown(f"Attention of the class token on the robot, {held_out}", attention(result), "attention", *maps),
        shown(
            "Balanced accuracy of a linear probe, robot's tokens against the others, block by block (0.5 is chance; "
            "position embeddings give away a robot that is often at one location: compare with `untrained`, and with "
            "the best guess from a token's position alone)",
            separability(result), "separability",
        ),
    ]  # fmt: skip
    if result["pace"] is not None:
        speed = ", ".join(f"{method} {1000 * one:.0f} ms" for method, one in result["pace"]["seconds_a_step"].items())
        parts.append(f"A gradient step: {speed}; {result['pace']['steps']} were made by every method.")
    parts += [f"Note: {note}." for note in config["notes"]]
    if result["simulator_errors"]:
        parts.append(f"Episodes in which the simulator raised, counted as failed: {result['simulator_errors']}.")
    return "\n\n".join(parts) + "\n"


def beside_paper(result: Tree) -> str:
    """Return a table of all tasks, whether we ran them or not, by methods: our success and the paper's."""
    methods = [one["name"] for one in result["config"]["methods"]]
    methods += [name for name in METHODS if name not in methods]
    ran = {column: column.partition(" ")[0] for column in result["success"]}
    rows = []
    for column, task in (ran | {task: task for task in PAPER if task not in ran.values()}).items():
        cells = []
        for method in methods:
            paper, own = (
                paper_number(task, method, alone="(alone)" in column),
                result["success"].get(column, {}).get(method),
            )
            ours = NOT_RUN if own is None else f"{estimate(own['episodes'])} ± {own['deviation']:.2f}"
            cells.append(ours if paper is None else f"{ours}<br>paper {paper}")
        rows.append([column, *cells])
    return markdown(["task", *methods], rows)


def success(result: Tree) -> str:
    """Return the success of the last checkpoint, and differences from the reference."""
    rows = [
        [
            task,
            method,
            estimate(one["episodes"]),
            seeds(one["by_seed"]),
            estimate(one["seeds"], share=True),
            *(_more(one) if result["in_band"][task] else [OUTSIDE if "difference" in one else "", ""]),
        ]
        for task, methods in result["success"].items()
        for method, one in methods.items()
    ]
    head = ["task", "method", "success, episodes of all seeds", "success of each seed", "mean over seeds"]
    return markdown([*head, *_more_head(result, "conditions")], rows)


def stability(result: Tree) -> str:
    """Return success at every checkpoint, its maximum, and the mean of the best."""
    rows = []
    validated = all("least_validation_error" in one for by in result["stability"].values() for one in by.values())
    for task, methods in result["stability"].items():
        for method, one in methods.items():
            means = [sum(column) / len(column) for column in zip(*one["rates"], strict=True)]
            keys = ("maximum", "mean_of_best", "relative_drop", *(("least_validation_error",) if validated else ()))
            numbers = [estimate(one[key]) for key in keys]
            rows.append([task, method, seeds(means), *numbers, f"{one['conditions']}"])
    head = ["task", "method", "success at each checkpoint, mean of seeds"]
    head += ["maximum", "mean of the best checkpoints", "relative drop from maximum to mean"]
    head += ["success at the smallest validation error"] if validated else []
    return markdown([*head, "initial conditions"], rows)


def attention(result: Tree) -> str:
    """Return the robot's share of the class token's attention, and the robot's share of the tokens."""
    rows = []
    for task, found in result["attention"].items():
        for method, one in found["methods"].items():
            cells = [estimate(one["seeds"], 3, share=True), seeds(one["by_seed"], 3), estimate(one["ratio"])]
            rows.append([task, method, *cells, *_more(one, 3)])
        rows.append([task, "the robot's share of tokens", estimate(found["area"], 3), "", "1", "", ""])
    head = ["task", "method", "share of attention on the robot", "share in each seed", "attention / tokens"]
    return markdown([*head, *_more_head(result, "episodes")], rows)


def separability(result: Tree) -> str:
    """Return the balanced accuracy of a linear probe on the tokens of each block."""
    rows = [
        [task, method, *(estimate(one, 3, share=True) for one in blocks)]
        for task, methods in result["separability"].items()
        for method, blocks in methods.items()
    ]
    most = max(len(row) for row in rows) - 2
    return markdown(["task", "method", *(f"after block {block + 1}" for block in range(most))], rows)


def overview(result: Tree) -> str:
    """Return a small study in one table: success, attention and the last block's separability."""
    rows = []
    for task, apart in result["separability"].items():
        attention = result["attention"][task]["methods"]
        for method, blocks in apart.items():
            one, own = result["success"][task].get(method, {}), attention.get(method)
            over = "seeds" if blocks[-1]["n"] > 1 else "episodes"  # one seed has no interval over seeds
            difference = estimate(one["difference"][over]) if "difference" in one else ""
            difference = difference if result["in_band"][task] or not difference else OUTSIDE
            share = estimate(own[over], 3, share=True) if own else ""
            last = estimate(blocks[-1], 3, share=True)
            solved = estimate(one["episodes"]) if one else ""
            rows.append([task.removeprefix("robosuite/"), method, solved, difference, share, last])
    head = ["task", "method", "success, episodes of all seeds", f"success minus {result['config']['reference']}'s"]
    return markdown([*head, "share of attention on the robot", "separability after the last block"], rows)


def _more(one: Tree, digits: int = 2) -> list[str]:
    found = one.get("difference")
    return [estimate(found[over], digits) if found else "" for over in ("seeds", "episodes")]


def _more_head(result: Tree, over: str) -> list[str]:
    title = f"difference from {result['config']['reference']}"
    return [f"{title}, interval over seeds", f"{title}, interval over {over}"]
