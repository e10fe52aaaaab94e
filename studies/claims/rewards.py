"""Differences and gates of the claims about rewards, from the results of `studies.rewards`."""

from __future__ import annotations

from functools import partial

import numpy as np

from studies.harness import Differences
from studies.rewards.tables import by_task, runs_of
from studies.verdicts import Gate, Line, Settings, Unit

SEEN = "training videos: identification"
FOLLOWS = "VOC under the right instruction minus VOC under wrong ones"
KITCHEN = "[one kitchen](clip_methods.md#all-methods-in-one-kitchen)"
FROM_CLIP = "[one kitchen, from CLIP's heads](clip_methods.md#from-clips-heads)"
AUTHORS = "authors"
"""The study of rows from CLIP's heads at the authors' settings."""
BOTH: tuple[tuple[str, Settings], ...] = (("kitchen", "searched"), (AUTHORS, "authors'"))
"""The studies of rows from CLIP's heads, with their settings."""
ARM = "[18 clips of a real arm](clip_methods.md#the-same-on-a-real-arm)"
UNTRAINED, START = "random heads", "clip start"
MOVED = 0.05
"""By how much training must change the margin of rows from CLIP's heads; set on an earlier recording, with play."""
ABOVE = 0.3
"""By how much a baseline must be right on more training videos than random heads; set after a first look."""


def less(study: str, row: str, baseline: str, key: str) -> Differences:
    """Return a row's number minus a baseline's, by seed and task; see `studies.rewards.tables.by_task`."""
    return by_task(study, row, key) - by_task(study, baseline, key)


def group_less(study: str, row: str, baseline: str, group: str, key: str) -> Differences:
    """Return a row's mean over a group of measurements minus the baseline's, by seed."""
    own, other = ([[run["groups"][group][key]] for run in runs_of(study, name)] for name in (row, baseline))
    return np.array(own) - np.array(other)


def learned(study: str, row: str, baseline: str) -> Gate:
    """Return a gate: the row ranks the right instruction first for nine of ten training videos.

    The baseline had the same search. It may be worse, since a reward of one frame cannot tell all tasks of one scene
    apart, but must be above random heads by `ABOVE`. Rows from CLIP's heads know these videos from the start, so
    training must also have moved their margin (VOC under the right instruction minus wrong ones) by `MOVED`.
    """
    own, other, guess = (_right(study, name) for name in (row, baseline, UNTRAINED))
    passed = own >= 0.9 and min(own, other) >= guess + ABOVE
    above = f"baseline {other:.2f} (random heads {guess:.2f}, at least {ABOVE} above)"
    text = f"right on training videos {own:.2f} (at least .9), {above}"
    late = [name for name in (row, baseline) if "from CLIP" in name]
    if late:
        start = by_task(study, START, "margin").mean()
        moved = min(abs(float(by_task(study, name, "margin").mean() - start)) for name in late)
        text, passed = f"{text}, margin moved by {moved:.2f} or more (at least {MOVED})", passed and moved >= MOVED
    return Gate(text, bool(passed))


def _right(study: str, row: str) -> float:
    return float(np.mean([run["groups"][SEEN]["accuracy"] for run in runs_of(study, row)]))


def margin(study: str, row: str, baseline: str, where: str, settings: Settings, *, common: bool = False) -> Line:
    """Return a line: the difference in `FOLLOWS`, by each method's own reading or by one that all share.

    Args:
        study: The result is `rewards_STUDY`.
        row: The method's row.
        baseline: The row that is subtracted.
        where: The page's section.
        settings: The settings of both rows.
        common: True to read all rewards as the similarity of frame and instruction.
    """
    reading = "both read as the similarity of frame and instruction" if common else "each by its own reading"
    test, key = f"{FOLLOWS}, {reading}: {row} minus {baseline}, {where}", "margin_common" if common else "margin"
    return line(test, study, row, baseline, key, settings, "number")


def line(test: str, study: str, row: str, baseline: str, key: str, settings: Settings, unit: Unit = "share") -> Line:
    """Return a line: the difference in one number of `studies.rewards` between two rows, by seed and task."""
    gate = partial(learned, study, row, baseline)
    return Line(test, f"rewards_{study}", partial(less, study, row, baseline, key), gate, None, unit, settings)
