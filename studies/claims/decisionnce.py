"""The claims of DecisionNCE."""

from __future__ import annotations

from functools import partial
from typing import Literal

from studies.claims.rewards import ARM, AUTHORS, FROM_CLIP, KITCHEN, group_less, learned, line, margin
from studies.lcbc.summary import comparable
from studies.lcbc.summary import last as cloned
from studies.planning import less as planned_less
from studies.planning import solves
from studies.verdicts import Claim, Line

_PLANNED = {"clip": 0.106, "r3m": 0.086, "liv": 0.068, "decisionnce_p": 0.021}
"""By how much more episodes succeed in the paper with -T's reward than with another (Table 3)."""
CLONED = "success after 25 demonstrations of two tasks, [language-conditioned cloning](language_cloning.md)"
FEW_TASKS = "two tasks and 3 seeds here; nine tasks in the paper"
_T, _P, _FROM = "decisionnce_t", "decisionnce_p", "decisionnce_t from CLIP"


def _alike(row: str, effect: float) -> Line:
    """Return a line: how much more alike the embeddings of the videos' first frames are than LIV's."""
    baseline = "liv from CLIP"
    return Line(
        f"mean cosine of the first frames of {ARM}, {row} minus {baseline}",
        "rewards_arm",
        partial(group_less, "arm", row, baseline, "first frames", "similarity"),
        partial(learned, "arm", row, baseline),
        effect,
        "number",
        "searched",
        papers_measure=True,
    )


def _plans(other: str, key: Literal["progress", "success"]) -> Line:
    """Return a line on planning: success as in the paper, or the share of the joint's way."""
    what = "episodes that succeed" if key == "success" else "the joint's way"
    return Line(
        f"share of {what}, two tasks in the [kitchen](planning.md), -T minus {other}",
        "planning",
        partial(planned_less, "planning", _T, other, key),
        partial(solves, "planning"),
        _PLANNED.get(other) if key == "success" else None,
        "share" if key == "success" else "number",
        "searched",
        papers_measure=key == "success",
        fewest=8,
    )


CLAIMS = (
    Claim(
        "D1",
        "DecisionNCE",
        "-T's rewards follow language and progress better than those of CLIP, R3M, VIP and LIV (section 5.2)",
        (
            *(margin("kitchen", _T, other, KITCHEN, "searched") for other in ("clip", "r3m", "vip", "liv")),
            margin("kitchen", _T, "clip", KITCHEN, "searched", common=True),
            margin("kitchen", _FROM, "liv from CLIP", FROM_CLIP, "searched"),
            margin(AUTHORS, _FROM, "liv from CLIP", FROM_CLIP, "authors'"),
            margin("arm", _T, "clip", ARM, "searched"),
        ),
        "linear heads on a frozen model here; the whole of CLIP, on EPIC-KITCHENS, in the paper",
    ),
    Claim(
        "D2",
        "DecisionNCE",
        "-T is better than -P (section 5.3): .122 against .101 of planned episodes solved (Table 3)",
        (
            margin("kitchen", _T, _P, KITCHEN, "searched"),
            margin("kitchen", _T, _P, KITCHEN, "searched", common=True),
            margin("kitchen", _FROM, "decisionnce_p from CLIP", FROM_CLIP, "searched"),
            margin(AUTHORS, _FROM, "decisionnce_p from CLIP", FROM_CLIP, "authors'"),
            margin("arm", _T, _P, ARM, "searched"),
            _plans(_P, "success"),
            _plans(_P, "progress"),
        ),
        "linear heads on a frozen model here, and two tasks",
    ),
    Claim(
        "D3",
        "DecisionNCE",
        "random segments teach more than whole videos (section 3.2)",
        tuple(
            line(
                f"{variant}, short segments (a fifth of a video) identified among all instructions, "
                "[segments](clip_methods.md#segments-and-negatives)",
                "segments",
                variant,
                f"{variant}, whole",
                "accuracy_short",
                "searched",
            )
            for variant in (_T, _P)
        ),
        "linear heads on a frozen model here",
    ),
    Claim(
        "D4",
        "DecisionNCE",
        "policies on -T's representations succeed more often than on CLIP's, where it begins (section 5.1): by .11 "
        "on switching on the light and hammering (AcTOL's Tables 8 and 11)",
        (
            Line(
                f"{CLONED}, -T with a CLIP term minus ImageNet's model, from which it begins here",
                "lcbc",
                lambda: cloned("lcbc", _T) - cloned("lcbc", "imagenet"),
                partial(comparable, "lcbc", "imagenet"),
                0.11,
                papers_measure=True,
                fewest=8,
            ),
        ),
        FEW_TASKS,
    ),
    Claim(
        "D5",
        "DecisionNCE",
        "planning with its rewards succeeds more often: .122 with -T against .016 with CLIP (Table 3)",
        (
            *(_plans(other, "success") for other in ("clip", "r3m", "liv")),
            *(_plans(other, "progress") for other in ("clip", "r3m", "liv", "random heads")),
        ),
        "linear heads on a frozen model here, and two tasks",
    ),
    Claim(
        "D6",
        "DecisionNCE",
        "the first images of videos have similar embeddings, unlike LIV's: .96 with -T and .44 with -P against .08 "
        "(section 4.3, Table 2)",
        (_alike(_FROM, 0.88), _alike("decisionnce_p from CLIP", 0.36)),
        "linear heads on a frozen model here; the whole of CLIP, on EPIC-KITCHENS, in the paper",
    ),
)
