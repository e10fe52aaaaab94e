"""The numbers of language-conditioned cloning: success with intervals, from the raw outcome of every episode.

The papers report the best evaluation of a run (`best`), which increases with the number of evaluations. `last` is the
last policy, without any selection, and `last3` the mean of the last three. A share has the wider of two intervals:
Student's over seeds, whose width is 0 if seeds agree, and Wilson's over scenes. A scene's outcome is the mean over
cameras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, mean_bca, seeds_interval, wider, wilson
from studies.harness import Differences, Rows, Tree, estimate, kept, markdown, number, over_seeds, paired
from studies.lcbc.config import ANOTHER_TASKS
from studies.lcbc.paper import CHANGES, printed
from studies.rewards.rewordings import HEADS
from studies.verdicts import Gate

GATE = 0.8
BAND = (0.1, 0.9)
"""Range of a baseline's success in which encoders can be compared."""
# numpy 2.5's NDArray is no class.
Outcomes = Float[np.ndarray[Any, np.dtype[np.float64]], "seeds tasks evaluations scenes"]
Curve = Float[np.ndarray[Any, np.dtype[np.float64]], "*lead evaluations"]
SCORES: Mapping[str, Callable[[Curve], NDArray[np.float64]]] = {
    "last": lambda curve: curve[..., -1],
    "last3": lambda curve: curve[..., -3:].mean(-1),
    "best": lambda curve: curve.max(-1),
}
"""For each score, its function of the success at all evaluations."""


def summarise(rows: Rows, about: Tree) -> Tree:
    """Return all results that are computed from a study's rows; seeds that lack a task are left out.

    Returns:
        `table`: an estimate with the `values` of seeds, by demonstrations, encoder, task (or `mean`) and score. `lead`:
        difference of the last policies from the reference's, by demonstrations and encoder. `gate`: True if the gate's
        row passed with the most demonstrations. `words`: change of success, by encoder, task and kind of wording.
        `evaluations`: their number per policy. `places`: R^2 of predicted object positions, by encoder (or
        `proprioception`) and task.
    """
    config = about["config"]
    trials = [row for row in rows if "curve" in row]
    table: Tree = {}
    lead: Tree = {}
    for count in config["demonstrations"]:
        found = {}
        for name in config["encoders"]:
            own = [row for row in trials if (row["encoder"], row["demonstrations"]) == (name, count)]
            outcomes = _outcomes(own, config["tasks"])
            if len(outcomes):
                found[name] = outcomes
        table[str(count)] = {name: _cells(outcomes, config["tasks"]) for name, outcomes in found.items()}
        base = found.get(config["reference"])
        for name, outcomes in found.items():
            if base is not None and name != config["reference"] and len(outcomes) == len(base):
                lead.setdefault(str(count), {})[name] = _less(outcomes[:, :, -1] - base[:, :, -1]).as_json()
    ceiling = table[str(max(config["demonstrations"]))].get(config["gate"], {})
    reached = {task: ceiling[task]["last"]["value"] for task in config["tasks"] if task in ceiling}
    passed = len(reached) == len(config["tasks"]) and min(reached.values()) >= GATE
    return {
        "table": table,
        "lead": lead,
        "gate": {"reached": reached, "passed": passed},
        "words": _words(trials, max(config["demonstrations"])),
        "places": _places(rows, config["tasks"]),
        "evaluations": max((len(row["curve"]) for row in trials), default=0),
    }


def _outcomes(rows: Rows, tasks: Sequence[str]) -> Outcomes:
    """Return the success of every scene as the mean over cameras; only seeds with all tasks are included."""
    found = []
    for seed in sorted({row["seed"] for row in rows}):
        of_seed = [row for row in rows if row["seed"] == seed]
        per_task = [
            [[one["success"][task] for one in row["curve"]] for row in of_seed if task in row["tasks"]]
            for task in tasks
        ]
        if all(per_task):
            found.append([np.mean(views, axis=0) for views in per_task])
    return np.array(found, np.float64)


def _cells(outcomes: Outcomes, tasks: Sequence[str]) -> Tree:
    """Return an estimate for each task and for `mean` (over tasks), by score."""
    parts = {task: outcomes[:, [at]] for at, task in enumerate(tasks)} | {"mean": outcomes}
    found: Tree = {}
    for name, part in parts.items():
        scenes = part.shape[0] * part.shape[1] * part.shape[3]
        for score, choose in SCORES.items():
            values = choose(part.mean(-1)).mean(1)  # of every seed
            over_scenes = wilson(round(float(values.mean()) * scenes), scenes)
            interval = wider(seeds_interval(values, share=True), over_scenes) if len(values) > 1 else over_scenes
            own = {**interval.as_json(), "value": float(values.mean()), "values": values.tolist()}
            found.setdefault(name, {})[score] = own
    return found


def _less(differences: Float[NDArray[np.float64], "seeds tasks scenes"]) -> Estimate:
    """Return the mean difference of two shares with the wider of the intervals over seeds and scenes, in [-1, 1]."""
    over_seeds, over_scenes = paired(differences.mean(-1)), mean_bca(differences.ravel())
    found = wider(over_seeds, over_scenes) if len(differences) > 1 else over_scenes
    return replace(found, low=float(np.clip(found.low, -1, 1)), high=float(np.clip(found.high, -1, 1)))


def _places(rows: Rows, tasks: Sequence[str]) -> Tree:
    """Return R^2 with Student's interval over seeds, by encoder (or only `proprioception`) and task."""
    probes = [row for row in rows if "probe" in row]
    found: Tree = {}
    for name in dict.fromkeys(row["probe"] for row in probes):
        own = [row["places"] for row in probes if row["probe"] == name]
        found[name] = {task: _below_one(over_seeds([one[task] for one in own])) for task in tasks}
    if probes:
        found["proprioception"] = {task: over_seeds([probes[0]["blind"][task]]) for task in tasks}
    return found


def _below_one(found: Tree) -> Tree:
    """Clip an interval of R^2 at 1."""
    return found if found["high"] is None else {**found, "high": min(found["high"], 1.0)}


def _words(trials: Rows, most: int) -> Tree:
    """Return success under a kind of wording minus success under the instruction, by encoder, task and kind.

    Policies are those with the most demonstrations; a scene's success is the mean over cameras and wordings. `worst` is
    the lowest mean change by a single wording of the same meaning.
    """
    found: Tree = {}
    told = [row for row in trials if row.get("words") and row["demonstrations"] == most]
    for name, task in dict.fromkeys((row["encoder"], task) for row in told for task in row["words"]):
        own = [row for row in told if row["encoder"] == name and task in row["words"]]
        seeds = [[row for row in own if row["seed"] == seed] for seed in sorted({row["seed"] for row in own})]
        usual = np.array([np.mean([row["curve"][-1]["success"][task] for row in rows], axis=0) for rows in seeds])
        changes = {
            kind: [
                np.array([np.mean([row["words"][task][kind][wording] for row in rows], axis=0) for rows in seeds])
                - usual
                for wording in ways
            ]
            for kind, ways in own[0]["words"][task].items()
            if ways
        }
        cells: Tree = {kind: _less(np.mean(each, axis=0)[:, None]).as_json() for kind, each in changes.items()}
        cells["worst"] = {
            "value": min(float(one.mean()) for kind, each in changes.items() if kind != ANOTHER_TASKS for one in each)
        }
        found.setdefault(name, {})[task] = cells
    return found


def tables(result: Tree) -> str:
    """Return the tables in Markdown."""
    config = result["config"]
    parts = [
        f"**{config['title']}**: {config['seeds']} seeds, {config['episodes']} episodes an evaluation. Success of the "
        "last policy with the wider interval of seeds or scenes; the papers' is the best evaluation."
    ]
    parts += [f"{count} demonstrations:\n\n{scores(result, count)}" for count in result["table"]]
    if result["places"]:
        parts.append(f"R² of where things stand, from the first image and proprioception:\n\n{places(result)}")
    if result["words"]:
        parts.append(f"Change of success under other words:\n\n{words(result)}")
    passed = "passed" if result["gate"]["passed"] else "not passed"
    parts.append(f"Gate, {config['gate']} at least {GATE}: {passed}.")
    return "\n\n".join(parts) + "\n"


def scores(result: Tree, count: str) -> str:
    """Return a table of encoders by tasks with means and leads over the reference, followed by AcTOL's numbers.

    If policies were evaluated several times, the means of the last three and of the best evaluations are added.
    """
    config, rows = result["config"], []
    several = {"last3": "mean, last three evaluations", "best": "mean, best evaluation"}
    more = several if result["evaluations"] > 1 else {}
    for name, cells in result["table"][count].items():
        own = [estimate(cells[task]["last"], share=True) for task in (*config["tasks"], "mean")]
        own += [number(cells["mean"][score]["value"]) for score in more]
        rows.append(
            [name, *own, estimate(result["lead"].get(count, {}).get(name)) if name != config["reference"] else ""]
        )
    alike = not config["together"] and config["views"] == 1  # as AcTOL's policies
    for method, values in (printed(int(count), config["tasks"]) if alike else {}).items():
        mean = number(float(np.mean(values)))
        ends = ["", mean] if more else []
        rows.append([f"{method}, the paper's best", *map(number, values), mean if not more else "", *ends, ""])
    return markdown(["encoder", *config["tasks"], "mean", *more.values(), f"mean minus {config['reference']}'s"], rows)


def ceiling(result: Tree) -> str:
    """Return a table of tasks with the success of the gate's row with the most demonstrations, and AcTOL's numbers."""
    config = result["config"]
    count = max(config["demonstrations"])
    cells, paper = result["table"][str(count)][config["gate"]], printed(count, config["tasks"])
    rows = [
        [task, estimate(cells[task]["last"], share=True), *(number(values[at]) for values in paper.values())]
        for at, task in enumerate(config["tasks"])
    ]
    return markdown(["task", config["gate"], *(f"{method}, the paper's best" for method in paper)], rows)


def places(result: Tree) -> str:
    """Return a table of encoders by tasks with the R^2 of predicted object positions."""
    rows = [[name, *(estimate(by[task]) for task in by)] for name, by in result["places"].items()]
    return markdown(["input of the probe", *result["config"]["tasks"]], rows)


def words(result: Tree) -> str:
    """Return a table of success, and its change under other words, by task and encoder, and AcTOL's Table 2."""
    config = result["config"]
    usual = result["table"][str(max(config["demonstrations"]))]
    kinds = [kind for kind in next(iter(next(iter(result["words"].values())).values())) if kind != "worst"]
    rows = [
        [
            task,
            name,
            estimate(usual[name][task]["last"], share=True),
            *(estimate(by_task[task][kind]) for kind in kinds),
            number(by_task[task]["worst"]["value"]),
        ]
        for task in config["tasks"]
        for name, by_task in result["words"].items()
    ]
    rows += [
        [task, f"{method} in AcTOL's paper", "", number(change), *[""] * len(kinds)]
        for task in config["tasks"]
        for method, change in zip(("LIV", "DecisionNCE", "AcTOL"), CHANGES.get(task, ()), strict=False)
    ]
    return markdown(["task", "encoder", "success", *(HEADS.get(kind, kind) for kind in kinds), "worst wording"], rows)


def last(name: str, row: str) -> Differences:
    """Return the success of a stored study's last policies with the most demonstrations, by seed and task."""
    found = kept(name, summarise)
    cells, tasks = found["table"][str(max(found["config"]["demonstrations"]))][row], found["config"]["tasks"]
    return np.array([cells[task]["last"]["values"] for task in tasks]).T


def comparable(name: str, baseline: str) -> Gate:
    """Return a gate: the gate's row reached `GATE`, and the baseline's success lies in `BAND` on every task."""
    ceiling = kept(name, summarise)["gate"]
    least, own = min(ceiling["reached"].values()), last(name, baseline).mean(0)
    low, high = BAND
    between = f"{baseline} {own.min():.2f} to {own.max():.2f} ({low} to {high})"
    return Gate(
        f"raw state {least:.2f} or more (at least {GATE}), {between}",
        ceiling["passed"] and bool(low <= own.min() and own.max() <= high),
    )
