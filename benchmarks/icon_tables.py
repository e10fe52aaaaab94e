"""The tables of `docs/results.md` on ICon, diffusion policies and robosuite, for `fill_results.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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


def overview(study: str) -> str:
    """A small study in one table: success, attention and the last block's separability."""
    found = load(study)
    head = ["task", "method", "success, episodes of all seeds", "more than Diff-C"]
    head += ["share of attention on the robot", "separability after the last block"]
    if found is None:
        return table(head, [["all", *["not run"] * 5]])
    rows = []
    for task, apart in found["separability"].items():
        success, look = found["success"][task], found["attention"][task]
        for method, blocks in apart.items():
            about, share = success.get(method, {}), look["methods"][method]
            # With one seed the interval is over what was rolled out and looked at, with several over seeds.
            over = "seeds" if len(share["by_seed"]) > 1 else "episodes"
            rows.append(
                [
                    task.removeprefix("robosuite/"),
                    method,
                    interval(about["episodes"]) if about else "",
                    interval(about["difference"][over]) if "difference" in about else "",
                    interval(share[over], 3),
                    interval(blocks[-1], 3),
                ]
            )
    return table(head, rows)


def stability() -> str:
    """Figure 4 at small size: success at every checkpoint, its maximum and the mean of the best."""
    found = load("icon_cpu")
    head = ["method", "success at each checkpoint, mean of seeds", "maximum", "mean of the best", "drop"]
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    rows = []
    for method, about in next(iter(found["stability"].values())).items():
        means = [sum(column) / len(column) for column in zip(*about["rates"], strict=True)]
        cells = [interval(about[key]) for key in ("maximum", "mean_of_best", "relative_drop")]
        rows.append([method, seeds_of(means), *cells])
    return table(head, rows)


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


LOSSES = {
    "plain": "plain form of the authors' algorithm",
    "library": "`icon_loss` and its keys",
    "per_layer": "keys anew for every layer",
    "random": "random keys",
    "automatic": "the same by automatic differentiation",
}


def loss() -> str:
    """ICon's loss beside a plain form of the authors' algorithm."""
    found = load("icon_loss")
    head = ["forward and backward, one thread"]
    for words in ("ms", "ms, memory kept", "ms, in one process"):
        head += [words, "plain over it"]
    if found is None:
        return table(head, [["all", *["not run"] * 6]])
    rows = []
    for name, words in LOSSES.items():
        cells = [words]
        for one in (found[key][name] for key in ("loss", "memory_kept", "one_process")):
            cells += [f"{one['wall_ms']:.0f}", f"{one['plain_over_this_wall']:.1f}"]
        rows.append(cells)
    plain, shared, anew = (found["sampling"][key]["wall_ms"] for key in ("plain", "shared", "per_layer"))
    for words, spent in (("plain", plain), ("once an image", shared), ("every layer", anew)):
        more = "1.0" if spent == plain else f"{plain / spent:.{1 if plain < 10 * spent else 0}f}"
        rows.append([f"of it, choosing keys: {words}", f"{spent:.{1 if spent < 10 else 0}f}", more, *[""] * 4])
    return table(head, rows)


def growth() -> str:
    """How ICon's loss grows."""
    found = load("icon_loss")
    head = ["what grows", "ms"]
    if found is None:
        return table(head, [["all", "not run"]])
    names = {"tokens": "tokens", "layers": "layers", "keys": "keys of agent + environment"}
    rows = [
        [f"{names[what]}: {value}", f"{cell['wall_ms']:.0f}"]
        for what, cells in found["growth"].items()
        for value, cell in cells.items()
    ]
    return table(head, rows)


def step() -> str:
    """ICon's share of a training step of ViT-S/16."""
    found = load("icon_step")
    head = ["training step", "ms without ICon", "with ICon", "share of ICon", "share by its parts", "of it, keys"]
    if found is None:
        return table(head, [["all", *["not run"] * 5]])
    wall = found["wall"]
    row = [
        f"ViT-S/16 at 224, {found['images']} images, {found['precision']}, one thread",
        f"{wall['without_ms']:.0f}",
        f"{wall['with_icon_ms']:.0f}",
        f"{100 * wall['share_of_step']:.1f} %",
        f"{100 * found['parts_share']:.1f} %",
        f"{100 * found['sampling_share']:.2f} %",
    ]
    return table(head, [row])


def latency() -> str:
    """What acting takes, and which stage takes it."""
    found = load("policy_latency")
    head = ["environments", "a plan, ms", "a step between, ms", "encode", "U-Net", "scheduler"]
    head += ["crop and rest", "8 steps of DDIM over the U-Net's own time"]
    if found is None:
        return table(head, [["all", *["not run"] * 7]])
    rows = []
    for rows_at_once, cell in found["environments"].items():
        stages = cell["stages"]
        shares = [stages["encode"], stages["network"], stages["schedule"], stages["look"] + stages["rest"]]
        rows.append(
            [
                rows_at_once,
                f"{cell['planning_ms']:.0f}",
                f"{cell['executing_ms']:.2f}",
                *(f"{100 * share:.1f} %" for share in shares),
                f"{cell['sample_over_network']:.2f}",
            ]
        )
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "icon success": success,
    "icon attention": attention,
    "icon separability": separability,
    "icon stability": stability,
    "icon ablation": partial(overview, "icon_ablation_cpu"),
    "icon methods": partial(overview, "icon_methods_cpu"),
    "robosuite experts": robosuite_experts,
    "icon loss": loss,
    "icon growth": growth,
    "icon step": step,
    "policy latency": latency,
}
