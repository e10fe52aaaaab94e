"""The tables of `docs/results.md` about goal-reaching agents; `fill_results.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


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


def while_training(name: str) -> str:
    """Success at every evaluation while training: mean over seeds, and each seed's."""
    found = load(f"goal_reaching_{name}")
    if found is None:
        return table(["agent", "while training"], [["all", "not run"]])
    first = next(iter(found["rows"].values()))["runs"][0]
    steps = [point["step"] for point in first["curve"]]
    rows = []
    for row, cells in found["rows"].items():
        numbers = []
        for place in range(len(steps)):
            values = [run["curve"][place]["success"] for run in cells["runs"]]
            each = ", ".join(f"{value:.2f}" for value in values)
            numbers.append(f"{sum(values) / len(values):.2f} ({each})")
        rows.append([row, *numbers])
    return table(["agent", *[f"{step:,} updates" for step in steps]], rows)


PAPER_RATIOS = {
    "mc_infonce_renormalise": "1500x",
    "mc_infonce_clip": "1500x",
    "mc_infonce_reject": "1500x",
    "c_learning": "130x",
    "sr": "20x",
}
OCCUPANCY_NAMES = {
    "mc_infonce_renormalise": "MC InfoNCE (tail renormalised)",
    "mc_infonce_clip": "MC InfoNCE (tail clipped)",
    "mc_infonce_reject": "MC InfoNCE (tail rejected)",
    "c_learning": "C-learning, N negatives",
    "c_learning_normalised": "C-learning, self-normalised weights",
    "c_learning_pairs": "C-learning, N^2 negatives",
    "c_learning_both": "C-learning, both",
    "sr": "successor representation",
}


def times(found: dict[str, Any] | None) -> str:
    """A ratio with its interval."""
    if found is None:
        return "not run"
    bound = f"{found['bound']} " if found["bound"] else ""
    digits = ",.0f" if found["ratio"] >= 10 else ".1f"
    return f"{bound}{found['ratio']:{digits}}x [{found['low']:{digits}}, {found['high']:{digits}}]"


def occupancy() -> str:
    """How many times less data TD InfoNCE needs than each method at its own best, in four ways of running the study."""
    found = load("occupancy")
    columns = {
        "episodes of 100, decayed": ("episodes", "decayed"),
        "episodes of 100, constant": ("episodes", "constant"),
        "one trajectory, decayed": ("trajectory", "decayed"),
        "one trajectory, constant": ("trajectory", "constant"),
    }
    head = ["than", "paper", *columns]
    if found is None:
        return table(head, [["all", "", *["not run"] * 4]])
    ratios = found["advantages"]
    rows = []
    for name, title in OCCUPANCY_NAMES.items():
        cells = [times(ratios[cut][schedule].get(name)) for cut, schedule in columns.values()]
        rows.append([title, PAPER_RATIOS.get(name, ""), *cells])
    return table(head, rows)


def interpolation() -> str:
    """Order of interpolants along the way."""
    found = load("interpolation")
    head = ["encoder", "method", "in order", "covered", "on the path", "monotone"]
    if found is None:
        return table(head, [["all", "", *["not run"] * 4]])
    rows = []
    for encoder, methods in found["result"]["encoders"].items():
        for method, cells in methods.items():
            if method == "straight_line" and encoder != "trained":
                continue  # it asks no encoder
            name = "none" if method == "straight_line" else encoder
            numbers = [f"{cells[key]:.2f}" for key in ("in_order", "covered", "on_path", "monotone")]
            rows.append([name, method.replace("_", " "), *numbers])
    return table(head, rows)


def agent_update() -> str:
    """Time of one update."""
    found = load("agent_update")
    head = ["update, batch 256, 4 x 512, twins, one thread", "ms", "JAX's time over it", "aim"]
    if found is None:
        return table(head, [["all", "not run", "", ""]])
    aims = {"float32": "1.0", "bf16": "1.5"}
    rows = []
    for name, own in found["update"].items():
        ratio = f"{own['jax_over_this_wall']:.2f}" if name != "jax" else "1"
        rows.append([name, f"{own['wall_ms']:.1f}", ratio, aims.get(name, "")])
    return table(head, rows)


def agent_scale() -> str:
    """Time and memory of an update by batch size."""
    found = load("agent_update")
    head = ["batch", "update, ms", "of it losses on logits, ms", "peak memory above start, MB", "one [B, B, 2], MB"]
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    keys = ("update_ms", "losses_alone_ms", "peak_mb_above_start", "twin_logits_mb")
    return table(head, [[str(row["batch"]), *[f"{row[key]:,}" for key in keys]] for row in found["scale"]])


def replay() -> str:
    """Throughput of the replay buffer."""
    found = load("replay")
    rows = []
    for case in found["states"]["cases"]:
        what = f"states, {case['tail']}" + (f", sequences of {case['sequence']}" if case["sequence"] else "")
        rows.append([what, f"{case['transitions_per_second_wall']:,} transitions/s", "200,000 transitions/s"])
    for case in found["pictures"]["cases"]:
        speed = f"{case['gigabytes_per_second']['sample']:.1f} GB/s"
        block, single = case["sample_over_block"], case["sample_over_rows"]
        ratio = f"{block:.2f} of copying one block, {single:.2f} of copying single pictures"
        rows.append([f"64 x 64 pictures, {case['where']}", f"{speed}; {ratio}", "memory-copy speed"])
    return table(["sampling, one core", "measured", "aim"], rows)


PAPER_TABLE_1 = {
    "umaze": ("84.9 ± 1.2", "76.8 ± 2.3", "79.8 ± 1.6", "65.4", "65.6", "87.5", "78.6"),
    "umaze-diverse": ("91.7 ± 1.3", "80.1 ± 1.3", "77.6 ± 2.8", "60.9", "51.2", "62.2", "71.4"),
    "medium-play": ("86.8 ± 1.7", "76.5 ± 2.1", "72.6 ± 2.9", "58.1", "1.0", "71.2", "10.6"),
    "medium-diverse": ("82.0 ± 3.4", "73.4 ± 1.9", "71.5 ± 1.3", "67.3", "0.6", "70.0", "3.0"),
    "large-play": ("47.0 ± 2.5", "52.9 ± 2.8", "48.6 ± 4.4", "32.4", "0.0", "39.6", "0.2"),
    "large-diverse": ("55.6 ± 3.6", "51.5 ± 3.8", "54.1 ± 5.5", "36.9", "0.2", "47.5", "0.0"),
}


def antmaze() -> str:
    """The paper's Table 1, and what was run of it."""
    agents = ("TD InfoNCE", "QRL", "contrastive RL", "GCBC", "DT", "IQL", "TD3 + BC")
    rows = [[name, *numbers, "not run"] for name, numbers in PAPER_TABLE_1.items()]
    return table(["AntMaze (D4RL v2), paper's Table 1", *agents, "ours, any agent"], rows)


TABLES = {
    "fetch reach": lambda: goal_reaching("fetch_reach"),
    "fetch reach steps": lambda: when_reached("fetch_reach"),
    "push": lambda: goal_reaching("push"),
    "push stochastic": lambda: goal_reaching("push_stochastic"),
    "point maze": lambda: goal_reaching("point_maze"),
    "point maze curves": lambda: while_training("point_maze"),
    "point maze random": lambda: goal_reaching("point_maze_random"),
    "sensitivity": lambda: goal_reaching("sensitivity"),
    "occupancy": occupancy,
    "interpolation": interpolation,
    "agent update": agent_update,
    "agent scale": agent_scale,
    "replay": replay,
    "antmaze": antmaze,
}
