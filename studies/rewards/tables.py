"""The tables of `docs/results/reward_instructions.md` and `docs/results/clip_methods.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from studies.harness import Differences, estimate, kept, markdown, number, paired
from studies.rewards.rewordings import HEADS
from studies.rewards.run import WHOLE, summary
from studies.rewards.searched import summary as search
from studies.rewards.searched import table as search_table

SHARES = ("accuracy", "accuracy_short", "pairs", "against_opposite", "rises", "peak", "falls", "both", "retrieved")
RELATIONS = ("matched", "mismatched", "contradictory", "indirectly relevant")
IDENTIFIED = {
    "right instruction first": "accuracy",
    "right against wrong": "pairs",
    "right against opposite": "against_opposite",
    "right instruction first, short segments": "accuracy_short",
}
ENDINGS = {
    "peak at the boundary": "peak",
    "falls after it": "falls",
    "reward of the second instruction rises after it": "rises",
    "all three": "both",
    "each peak within its own part": "retrieved",
}


PROGRESS = {
    "right instruction first": ("{}: identification", "accuracy"),
    "right instruction first, short segments": ("{}: identification", "accuracy_short"),
    "VOC": ("{}: matched", "voc"),
    "VOC, wrong": ("{}: identification", "voc_wrong"),
}
Pairs = Mapping[str, tuple[str, str]]
"""For each comparison, a row and the row that is subtracted."""


def _rows(name: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = kept(f"rewards_{name}", summary)["rows"]
    return rows


def _cell(groups: Mapping[str, Any], group: str, key: str) -> str:
    return estimate(groups.get(group, {}).get(key), share=key in SHARES)


def relations(name: str, videos: str = WHOLE) -> str:
    """Return rank correlations with time under each kind of instruction, and the shares of curves that rise."""
    lines = [
        [row, *(_cell(groups, f"{videos}: {relation}", key) for key in ("voc", "rises") for relation in RELATIONS)]
        for row, groups in _rows(name).items()
    ]
    heads = [f"{words}, {relation}" for words in ("VOC", "rises") for relation in RELATIONS]
    return markdown(["method", *heads], lines)


def identified(name: str, videos: str = WHOLE) -> str:
    """Return how well the right instruction is distinguished from others."""
    lines = [
        [row, *(_cell(groups, f"{videos}: identification", key) for key in IDENTIFIED.values())]
        for row, groups in _rows(name).items()
    ]
    return markdown(["method", *IDENTIFIED], lines)


def two_actions(name: str) -> str:
    """Return the rewards' behaviour on recorded clips of two actions."""
    lines = [
        [row, *(_cell(groups, "two actions", key) for key in ENDINGS.values())] for row, groups in _rows(name).items()
    ]
    return markdown(["method", *ENDINGS], lines)


def _words(name: str) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the kinds of rewording, and the rows of methods that read words."""
    rows = {row: groups for row, groups in _rows(name).items() if any(group.startswith("words: ") for group in groups)}
    return [group for group in next(iter(rows.values())) if group.startswith("words: ")], rows


def words(name: str) -> str:
    """Return the share of videos identified under other words."""
    kinds, rows = _words(name)
    lines = [
        [row, *(_cell(groups, group, "accuracy") for group in (f"{WHOLE}: identification", *kinds))]
        for row, groups in rows.items()
    ]
    return markdown(["method", "original words", *map(_head, kinds)], lines)


def _head(group: str) -> str:
    kind = group.removeprefix("words: ")
    return HEADS.get(kind, kind)


def changes(name: str) -> str:
    """Return the reward's mean change by other words, as a share of its change by another instruction."""
    kinds, rows = _words(name)
    lines = []
    for row, groups in rows.items():
        pairs = [
            (groups[kind]["change"]["mean"], groups[kind]["change_of_another_instruction"]["mean"]) for kind in kinds
        ]
        lines.append([row, *(number(own / other) for own, other in pairs)])
    return markdown(["method", *map(_head, kinds)], lines)


def bound(name: str) -> str:
    """Return the use of Theorem 4.4's bound on real embeddings."""
    lines = []
    for row, groups in _rows(name).items():
        found = [numbers for group, numbers in groups.items() if group.startswith("words: ")]
        if found:
            means = {
                key: sum(one[key]["mean"] * one["n"] for one in found) / sum(one["n"] for one in found)
                for key in ("within_bound", "share_of_bound", "mean_share_of_bound")
            }
            lines.append([row, *(number(value) for value in means.values())])
    return markdown(["method", "within the bound", "largest change / bound", "mean change / bound"], lines)


def first_frames(name: str) -> str:
    """Return DecisionNCE's Table 2."""
    keys = ("similarity", "centred", "to_language")
    lines = [[row, *(_cell(groups, "first frames", key) for key in keys)] for row, groups in _rows(name).items()]
    return markdown(["method", "first frames", "first frames, mean-centred", "first frames to mean language"], lines)


def progress(name: str) -> str:
    """Return how well rewards distinguish and follow instructions on test videos and (as a gate) training videos."""
    places = [(WHOLE, key) for key in PROGRESS] + [
        ("training videos", key) for key in ("right instruction first", "VOC")
    ]
    lines = [
        [row, *(_cell(groups, PROGRESS[key][0].format(at), PROGRESS[key][1]) for at, key in places)]
        for row, groups in _rows(name).items()
    ]
    return markdown(["method", *PROGRESS, "training: right instruction first", "training: VOC"], lines)


def by_task(name: str, row: str, key: str) -> Differences:
    """Return a number of each seed and task; `margin` is the VOC under right minus the VOC under wrong instructions."""
    if key == "margin":
        return by_task(name, row, "voc") - by_task(name, row, "voc_wrong")
    return np.array([[one[key] for one in run["tasks"].values()] for run in runs_of(name, row)])


def runs_of(name: str, row: str) -> list[dict[str, Any]]:
    """Return the stored trials of a row, by seed."""
    return sorted((run for run in kept(f"rewards_{name}")["rows"] if run["row"] == row), key=lambda run: run["seed"])


def compared(name: str, pairs: Pairs) -> str:
    """Return paired differences of rows over seeds and tasks, with their intervals."""
    keys = {
        "right instruction first": "accuracy",
        "short segments": "accuracy_short",
        "VOC, right minus wrong": "margin",
    }
    keys |= {"curve length / range": "variation", "jump ratio": "jump_ratio"}
    lines = [
        [title, *(_difference(by_task(name, row, key) - by_task(name, baseline, key)) for key in keys.values())]
        for title, (row, baseline) in pairs.items()
    ]
    return markdown(["difference", *keys], lines)


def padded(name: str) -> str:
    """Return each method's loss due to padding, and how much less it is than DecisionNCE-T's, over seeds and tasks."""
    lines = []
    for row, end in product(("decisionnce_t", "decisionnce_p", "liv", "actol"), ("", ", authors")):
        lines.append([f"{row} from CLIP{end}"])
        for key in ("accuracy", "margin"):
            own, first = (
                by_task(name, f"{one} from CLIP{end}, padded 0.6", key) - by_task(name, f"{one} from CLIP{end}", key)
                for one in (row, "decisionnce_t")
            )
            lines[-1] += [_difference(own), "" if row == "decisionnce_t" else _difference(own - first)]
    what = ("right instruction first", "VOC, right minus wrong")
    more = [head for key in what for head in (f"{key}, change", f"{key}, change minus decisionnce_t's")]
    return markdown(["method", *more], lines)


def altered(name: str) -> str:
    """Return what altered clips and texts change: numbers of each row, and its differences from DecisionNCE-P alone."""
    keys = {
        "right instruction first": "accuracy",
        "right against wrong": "pairs",
        "VOC, right minus wrong": "margin",
        **{f"AUROC of success, {key}": f"auroc: {key}" for key in kept(f"rewards_{name}")["config"]["failures"]},
    }
    lines = []
    for row in kept(f"rewards_{name}")["config"]["rows"]:
        lines.append([row])
        for key in keys.values():
            values = by_task(name, row, key)
            found, against = paired(values), values - by_task(name, "decisionnce_p", key)
            lines[-1] += [number(found.value), "" if row == "decisionnce_p" else _difference(against)]
    heads = [head for key in keys for head in (key, "minus decisionnce_p's")]
    return markdown(["row", *heads], lines)


def videos() -> str:
    """Return how a reward improves with the number of training videos of each instruction."""
    counts = {5: "videos_5", 10: "videos_10", 20: "kitchen", 50: "videos_50"}
    found = {count: _rows(name) for count, name in counts.items()}
    lines = []
    for row in found[5]:
        for title, group, key in (
            ("right instruction first", "identification", "accuracy"),
            ("short segments", "identification", "accuracy_short"),
            ("VOC", "matched", "voc"),
            ("VOC, wrong", "identification", "voc_wrong"),
        ):
            lines.append([row, title, *(_cell(rows[row], f"{WHOLE}: {group}", key) for rows in found.values())])
    return markdown(["method", "number", *(f"{count} videos a task" for count in counts)], lines)


def dropouts() -> str:
    """Return the best margin of the recipes' search for each dropout of the heads, the mean over the two data sets."""
    found = [kept(f"tune_dropout_{name}", search)["methods"] for name in ("kitchen", "bridge")]
    lines = []
    for method in found[0]:
        margins: dict[float, dict[tuple[float, int], list[float]]] = {}
        for cell in (cell for one in found for cell in one[method]["every"]):
            at = (cell["learning_rate"], cell["steps"])
            margins.setdefault(cell["values"]["encoder.dropout"], {}).setdefault(at, []).append(cell["margin"])
        best = [max(float(np.mean(each)) for each in cells.values()) for cells in margins.values()]
        lines.append([method, *map(number, best)])
    return markdown(["method", *(f"dropout {share:g}" for share in margins)], lines)


def _difference(values: Differences) -> str:
    found = paired(values)
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


AGAINST_T = {
    f"decisionnce_t minus {row}": ("decisionnce_t", row)
    for row in ("decisionnce_p", "liv", "r3m", "vip", "tcn", "clip", "actol")
} | {"actol minus actol without bridge": ("actol", "actol without bridge")}
FROM_CLIP = {
    f"{row} from CLIP minus {other}": (f"{row} from CLIP", other)
    for row, other in (
        ("decisionnce_t", "decisionnce_p from CLIP"),
        ("decisionnce_t", "liv from CLIP"),
        ("actol", "decisionnce_t from CLIP"),
        ("actol", "actol from CLIP without bridge"),
    )
}
SEGMENTS = {
    f"{variant}: default minus {other}": (variant, f"{variant}, {other}")
    for variant, others in (("decisionnce_t", ("4 steps",)), ("decisionnce_p", ()))
    for other in ("a tenth", "half", "whole", *others, "repeats as negatives")
}

_TABLES: dict[str, Callable[[str], str]] = {
    "relations": relations,
    "identified": identified,
    "words": words,
    "changes": changes,
    "bound": bound,
    "first frames": first_frames,
}
TABLES: dict[str, Callable[[], str]] = {
    f"rewards {name} {title}": partial(table, name)
    for name in ("widowx", "metaworld", "robosuite")
    for title, table in _TABLES.items()
}
TABLES |= {
    "rewards widowx bridge": partial(identified, "widowx", "BridgeData"),
    "rewards metaworld camera": partial(identified, "metaworld", "another camera"),
    "rewards metaworld camera relations": partial(relations, "metaworld", "another camera"),
    "rewards robosuite robot": partial(identified, "robosuite", "IIWA"),
    "rewards robosuite robot relations": partial(relations, "robosuite", "IIWA"),
}
TABLES |= {
    "kitchen": partial(progress, "kitchen"),
    "kitchen differences": partial(compared, "kitchen", AGAINST_T),
    "kitchen from CLIP": partial(compared, "kitchen", FROM_CLIP),
    "authors": partial(progress, "authors"),
    "authors from CLIP": partial(compared, "authors", FROM_CLIP),
    "authors pairs": partial(two_actions, "authors"),
    "kitchen words": partial(words, "kitchen"),
    "kitchen bound": partial(bound, "kitchen"),
    "kitchen pairs": partial(two_actions, "kitchen"),
    "pairs": partial(two_actions, "pairs"),
    "search play": lambda: search_table(kept("tune_play", search)),
    "kitchen first frames": partial(first_frames, "kitchen"),
    "arm": partial(progress, "arm"),
    "arm differences": partial(compared, "arm", AGAINST_T | FROM_CLIP),
    "arm bound": partial(bound, "arm"),
    "arm first frames": partial(first_frames, "arm"),
    "search bridge": lambda: search_table(kept("tune_bridge", search)),
    "search dropout": dropouts,
    "segments": partial(progress, "segments"),
    "segments differences": partial(compared, "segments", SEGMENTS),
    "padding": partial(progress, "padding"),
    "padding cost": partial(padded, "padding"),
    "altered": partial(altered, "altered"),
    "altered arm": partial(altered, "altered_arm"),
    "videos": videos,
    "search kitchen": lambda: search_table(kept("tune_kitchen", search)),
}
