"""Write the tables of `docs/results.md` from the result files, so that no number stands there without one.

    python benchmarks/fill_results.py

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the prose around it is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))  # for who runs this file by its path from elsewhere
from control_tables import TABLES as CONTROL_TABLES  # noqa: E402 (after the path)
from goal_tables import TABLES as GOAL_TABLES  # noqa: E402 (after the path)
from icon_tables import TABLES as ICON_TABLES  # noqa: E402 (after the path)

PAGE = ROOT / "docs" / "results.md"


def read(name: str) -> Any:
    """A result file."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; first column left, the others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(found: dict[str, Any] | None) -> str:
    """Mean and interval over seeds."""
    if found is None or found.get("mean") is None:
        return "not defined"
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def study(rows: Sequence[str], columns: dict[str, str]) -> str:
    """Rows of the Meta-World study on test; `{form}` in a column's key is the row's own segment score."""
    table = read("metaworld_study")["rows"]
    lines = []
    for name in rows:
        if name not in table:
            lines.append([name, *["not run"] * len(columns)])
            continue
        test, wordless = table[name]["test"], name in ("vip", "tcn", "r3m")
        cells = []
        for key in columns.values():
            image_only = key == "goal_image_voc" or "_frame_similarity" in key
            cells.append(
                "not defined" if wordless and not image_only else spread(test.get(key.format(form=test["form"])))
            )
        lines.append([name, *cells])
    return markdown(["objective", *columns], lines)


LANGUAGE_ROWS = ("decisionnce_t", "decisionnce_p", "liv", "clip_goal", "r3m", "vip", "tcn", "random encoder")
ACTOL_ROWS = (
    "decisionnce_t", "actol 0 from decisionnce_t", "actol 0.1 from decisionnce_t", "actol 10 from decisionnce_t",
)  # fmt: skip
SCRATCH_ROWS = ("vlo from scratch", "directed vlo from scratch")
ORDER_COLUMNS = {
    "VOC (potential)": "voc.potential",
    "VOC, wrong instruction": "voc_wrong_instruction.potential",
    "ordering": "ordering",
    "accuracy, whole video": "accuracy_whole_video.potential",
    "random segments": "accuracy_random_segments.potential",
    "last frame": "accuracy_last_frame",
    "jump ratio": "jump_ratio",
    "bridge residual": "bridge_residual",
}


def metaworld() -> str:
    """Grounding and progress."""
    return study(
        LANGUAGE_ROWS,
        {
            "VOC (potential)": "voc.potential",
            "VOC, wrong instruction": "voc_wrong_instruction.potential",
            "accuracy, whole video": "accuracy_whole_video.{form}",
            "random segments": "accuracy_random_segments.{form}",
            "last frame": "accuracy_last_frame",
            "unseen paraphrases": "accuracy_paraphrases.{form}",
            "VOC to a goal image": "goal_image_voc",
        },
    )


def first_frames() -> str:
    """DecisionNCE's Table 2."""
    return study(
        LANGUAGE_ROWS,
        {
            "first frames": "first_frame_similarity",
            "mean-centred": "first_frame_similarity_centred",
            "last frames": "last_frame_similarity",
            "random frames": "random_frame_similarity",
            "to mean language": "first_frame_to_language",
            "to mean language, centred": "first_frame_to_language_centred",
        },
    )


def sign_study() -> str:
    """VOC of each seed apart: the mean of a coin says nothing."""
    table = read("metaworld_study")["rows"]
    lines = []
    for name in SCRATCH_ROWS:
        test = table.get(name, {}).get("test")
        if test is None:
            lines.append([name, "not run", "not run", "not run"])
            continue
        seeds = ", ".join(f"{value:.2f}" for value in test["voc.potential"]["values"])
        lines.append([name, seeds, spread(test["ordering"]), spread(test["accuracy_whole_video.potential"])])
    return markdown(["objective", "VOC (potential) of each seed", "ordering", "accuracy, whole video"], lines)


def real_robot() -> str:
    """WidowX."""
    columns = {
        "VOC (transition)": "voc.transition",
        "VOC (potential)": "voc.potential",
        "VOC, wrong instruction (transition)": "voc_wrong_instruction.transition",
        "accuracy, whole video": "accuracy_whole_video.transition",
        "matched against mismatched": "triples_whole_video.transition",
    }
    rows = read("real_robot")["rows"]
    return markdown(
        ["encoder", *columns], [[n, *[spread(r.get(k)) for k in columns.values()]] for n, r in rows.items()]
    )


def losses() -> str:
    """Speed of losses."""
    rows = []
    for case in read("losses")["cases"]:
        times = case["times"]
        size = ", ".join(f"{letter}={case[letter]}" for letter in "BTFD" if letter in case)
        if case["case"] == "actol":
            ours, other, key = times["fused"], times["loop"], "loop_over_this_wall"
            aim = f"{AIMS[case['T']]}x"
            rows.append(["VLO + bridge", size, *cells(ours, other), f"{ours[key]:.0f}x as fast as the loop", aim])
            unbound = times["unbound_loop"]
            ratio = f"{unbound['wall_ms'] / ours['wall_ms']:.0f}x as fast as the unbound loop"
            rows.append(["VLO + bridge", size, *cells(ours, unbound), ratio, "none"])
        else:
            for name in ("decisionnce_p", "decisionnce_t"):
                other = times["two_products"]
                ratio = f"{times[name]['two_products_over_this_wall']:.2f}x as fast as two products"
                rows.append([name, size, *cells(times[name], other), ratio, "1.6x (-P)"])
    return markdown(["loss", "size", "ours, ms", "against, ms", "ratio", "aim"], rows)


AIMS = {10: 30, 32: 45, 64: 60}


def cells(ours: dict[str, float], other: dict[str, float]) -> tuple[str, str]:
    """Milliseconds of both."""
    return f"{ours['wall_ms']:.1f}", f"{other['wall_ms']:.1f}"


def loading() -> str:
    """Throughput of loading."""
    found = read("loading")
    rates = [
        [n, f"{v['median']:,.0f} ({v['min']:,.0f} to {v['max']:,.0f})"] for n, v in found["frames_per_second"].items()
    ]
    ratios = [[n, f"{v['median']:.1f}x ({v['min']:.1f} to {v['max']:.1f})"] for n, v in found["ratios"].items()]
    return (
        markdown(["loader", "frames a second, median (least to most)"], rates)
        + "\n\n"
        + markdown(["ratio", "median"], ratios)
    )


def collection() -> str:
    """Speed of collection."""
    rows = []
    for name, found in read("collection")["summary"].items():
        low, middle, high = found["frames_per_s"]
        least, ratio, most = found["frames_per_s_over_default"]
        rows.append([name, f"{middle:.0f} ({low:.0f} to {high:.0f})", f"{ratio:.1f}x ({least:.1f} to {most:.1f})"])
    return markdown(["path", "frames a second", "over gymnasium's default render()"], rows)


def r3m_language() -> str:
    """R3M by its language reward."""
    found = read("r3m_language")
    names = {"voc": "VOC", "voc_wrong_instruction": "VOC, wrong instruction", "accuracy": "accuracy at the last frame"}
    return markdown(["R3M's language reward", *names.values()], [["r3m", *[spread(found[key]) for key in names]]])


TABLES: dict[str, Callable[[], str]] = {
    "metaworld": metaworld,
    "first frames": first_frames,
    "actol": lambda: study(ACTOL_ROWS, ORDER_COLUMNS),
    "sign study": sign_study,
    "r3m language": r3m_language,
    "real robot": real_robot,
    "losses": losses,
    "loading": loading,
    "collection": collection,
    **GOAL_TABLES,
    **CONTROL_TABLES,
    **ICON_TABLES,
}


def fill(text: str) -> str:
    """The page with every table made anew."""
    return re.sub(
        r"<!-- table ([\w ]+) -->\n.*?<!-- end -->",
        lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->",
        text,
        flags=re.S,
    )


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
