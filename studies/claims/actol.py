"""The claims of AcTOL."""

from __future__ import annotations

from functools import partial

from studies.claims.decisionnce import CLONED, FEW_TASKS
from studies.claims.rewards import (
    ARM,
    AUTHORS,
    BOTH,
    FOLLOWS,
    FROM_CLIP,
    KITCHEN,
    group_less,
    learned,
    less,
    line,
    margin,
)
from studies.harness import Differences
from studies.lcbc.summary import comparable
from studies.lcbc.summary import last as cloned
from studies.verdicts import Claim, Line, Settings

HEADS = "linear heads on a frozen model here; the whole of CLIP, on EPIC-KITCHENS, in the paper"
_DIRECTED = "our directed form from random heads"
_OURS, _OTHER = "actol from CLIP", "decisionnce_t from CLIP"
_ENDS: tuple[tuple[str, Settings], ...] = (("", "searched"), (", authors", "authors'"))
"""Endings of the names of rows of the study of padding, with their settings."""
_RETURNS = ("the arm returns", "retrieved", "each instruction's reward has its peak within its own part")
_CLIPS = {
    "pairs": ("the arm stays", "both", "this holds and the reward of the second instruction rises"),
    "kitchen": _RETURNS,
    AUTHORS: _RETURNS,
}
"""Study: what the clips show, the number, and the number in words."""


def padding_costs_less(suffix: str, key: str) -> Differences:
    """Return AcTOL's change due to padded training clips, minus the change of DecisionNCE-T."""
    own, other = (less("padding", f"{row}{suffix}, padded 0.6", f"{row}{suffix}", key) for row in (_OURS, _OTHER))
    return own - other


def _smoother(study: str, without: str, row: str, where: str, settings: Settings) -> Line:
    what = "by how much the bridge lowers the ratio of the largest step between embeddings to the mean step"
    return line(f"{what}; {where}", study, without, row, "jump_ratio", settings, "number")


def _peaks(study: str, row: str, baseline: str, settings: Settings) -> Line:
    """Return a line on clips of two actions, by the paper's measure where the arm stays, and by the peaks' places."""
    where, key, what = _CLIPS[study]
    return Line(
        f"share of [recorded clips of two actions](clip_methods.md#two-actions-in-one-clip), {where}, in which {what}; "
        f"{row} minus {baseline}",
        f"rewards_{study}",
        partial(group_less, study, row, baseline, "two actions", key),
        partial(learned, study, row, baseline),
        settings=settings,
        papers_measure=key == "both",
    )


CLAIMS = (
    Claim(
        "A1",
        "AcTOL",
        "loses less than DecisionNCE where clips go on into other actions (section 4.1)",
        tuple(
            Line(
                f"how far {FOLLOWS} falls with [clips padded by 60 %](clip_methods.md#padded-clips), "
                "from CLIP's heads: -T's fall minus AcTOL's",
                "rewards_padding",
                partial(padding_costs_less, suffix, "margin"),
                partial(learned, "padding", *(f"{row}{suffix}" for row in (_OURS, _OTHER))),
                None,
                "number",
                settings,
            )
            for suffix, settings in _ENDS
        ),
        HEADS,
    ),
    Claim(
        "A2",
        "AcTOL",
        "the Brownian bridge makes embeddings smoother (section 4.2)",
        (
            _smoother("kitchen", "actol without bridge", "actol", f"{_DIRECTED}, {KITCHEN}", "searched"),
            *(
                _smoother(study, f"{_OURS} without bridge", _OURS, f"even form, {FROM_CLIP}", how)
                for study, how in BOTH
            ),
            _smoother("arm", "actol without bridge", "actol", f"{_DIRECTED}, {ARM}", "searched"),
        ),
        HEADS,
    ),
    Claim(
        "A3",
        "AcTOL",
        "its rewards are better than DecisionNCE's (section 5.4)",
        (
            *(margin(study, _OURS, _OTHER, FROM_CLIP, how) for study, how in BOTH),
            margin("kitchen", _OURS, _OTHER, FROM_CLIP, "searched", common=True),
            margin("kitchen", "actol", "decisionnce_t", KITCHEN, "searched"),
            margin("arm", "actol", "decisionnce_t", ARM, "searched"),
        ),
        HEADS,
    ),
    Claim(
        "A4",
        "AcTOL",
        "its rewards peak where the first of two actions ends and then fall, DecisionNCE's do not (section 5.4, Figs. "
        "4 and 6)",
        (
            *(_peaks(study, _OURS, _OTHER, how) for study, how in BOTH),
            _peaks("pairs", _OURS, _OTHER, "searched"),
            _peaks("pairs", f"{_OURS}, authors", f"{_OTHER}, authors", "authors'"),
            *(_peaks(study, "actol", "decisionnce_t", "searched") for study in ("kitchen", "pairs")),
        ),
        HEADS,
    ),
    Claim(
        "A5",
        "AcTOL",
        "policies on its representations succeed more often than on DecisionNCE's (section 5.3): by .15 on switching "
        "on the light and hammering (Tables 8 and 11)",
        (
            Line(
                f"{CLONED}, our directed form minus -T with a CLIP term",
                "lcbc",
                lambda: cloned("lcbc", "actol") - cloned("lcbc", "decisionnce_t"),
                partial(comparable, "lcbc", "decisionnce_t"),
                0.15,
                papers_measure=True,
                fewest=8,
            ),
        ),
        FEW_TASKS,
    ),
)
