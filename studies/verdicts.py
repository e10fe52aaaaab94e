"""The rule that turns the tests of a claim into one verdict.

A claim has one or more tests, its lines. A line is *shown* if the gate was passed, there are enough seeds and the
paired interval excludes 0. It is *not reproduced* if the interval excludes half of the paper's effect (or, if the paper
has no number in our unit, if the interval lies below 0). Otherwise it is *inconclusive*, also if both methods have the
same number in every seed and task, since no spread tells then how certain the difference is.

The verdict on the claim is that of its worst line. A claim that is not reproduced is *refuted* only if no line is
shown, the lines that fail have the authors' settings as well as searched ones and the paper's own measure, and the test
is of the paper's size. Anything else is *not reproduced*, or *not reproduced at this size* if the test is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Literal

import numpy as np
from scipy import stats

from counterpoint.evaluation.statistics import Estimate
from studies.harness import RESULTS, Differences, markdown, paired

POWER, LEVEL = 0.8, 0.05
MOST_SEEDS = 16
"""A line that needs more seeds than this for its power is not testable at its size."""
Unit = Literal["share", "ratio", "number"]
NOTICED: dict[Unit, float] = {"share": 0.1, "number": 0.2, "ratio": log(2)}
"""The smallest difference that matters, by unit, where the paper states none."""
Settings = Literal["ours", "authors'", "searched"]
Found = Literal["shown", "not reproduced", "inconclusive", "not run"]
Verdict = Literal[
    "shown", "inconclusive", "not reproduced", "not reproduced at this size", "refuted", "not run",
    "not testable at this size", "not testable here",
]  # fmt: skip


@dataclass(frozen=True)
class Gate:
    """A check that a test is able to show an effect.

    Attributes:
        text: A number and the range in which it must be.
        passed: True if the number is in this range.
    """

    text: str
    passed: bool


@dataclass(frozen=True)
class Line:
    """One test of a claim.

    Attributes:
        test: The comparison that we made, with a link to the page.
        result: The result file in `studies/results`, which names its command.
        differences: Function that returns the method's number minus the baseline's, for each seed and task.
        gate: Function that returns the gate.
        effect: The paper's difference in the same unit, if it states one.
        unit: `share` of episodes or videos, whose differences stay in [-1, 1]; `ratio`, whose differences are of
            logarithms; or a `number`.
        settings: `authors'` settings of both methods, `searched` by the same search for both, or `ours`, unsearched.
        papers_measure: True if the number is the one that the paper reports.
        fewest: Number of seeds that "shown" needs.
    """

    test: str
    result: str
    differences: Callable[[], Differences]
    gate: Callable[[], Gate]
    effect: float | None = None
    unit: Unit = "share"
    settings: Settings = "ours"
    papers_measure: bool = False
    fewest: int = 5


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and our tests of it.

    Attributes:
        number: A letter for the paper and a number, by which the tests refer to the claim.
        paper: Name of the method.
        claim: The claim, and where the paper makes it.
        lines: The tests.
        smaller: In what the tests are smaller than the paper's; empty if they are of its size.
        reason: The reason why we cannot test the claim.
    """

    number: str
    paper: str
    claim: str
    lines: tuple[Line, ...] = ()
    smaller: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """What a line shows.

    Attributes:
        found: The line's own verdict.
        estimate: The mean paired difference with its interval, if there is one.
        gate: The gate, if the line was run.
        needed: Number of seeds that find the paper's effect, or else the smallest that matters, with a power of .8.
    """

    found: Found
    estimate: Estimate | None = None
    gate: Gate | None = None
    needed: int | None = None

    @property
    def tested(self) -> bool:
        """True if the line was run and its gate was passed."""
        return self.gate is not None and self.gate.passed


def seeds_needed(deviation: float, effect: float) -> int:
    """Return how many seeds a paired t test at the level .05 needs to find an effect with a power of .8.

    Args:
        deviation: Standard deviation of the difference over seeds.
        effect: The difference to find, in the same unit.

    Returns:
        A number from 2 to 1,000,000; the last stands for an effect of 0 too.
    """
    if deviation == 0:
        return 2
    low, high = 1, 1_000_000
    while high - low > 1:
        n = (low + high) // 2
        limit = stats.t.ppf(1 - LEVEL / 2, n - 1) if n > 1 else np.inf
        power = stats.nct.sf(limit, n - 1, abs(effect) / deviation * np.sqrt(n)) if n > 1 else 0.0
        low, high = (low, n) if power >= POWER else (n, high)
    return high


def judge(differences: Differences, effect: float | None, *, passed: bool, fewest: int = 5) -> tuple[Found, Estimate]:
    """Return what paired differences show, and their mean with its interval.

    Args:
        differences: One number per seed and task.
        effect: The paper's difference in the same unit, if it states one.
        passed: True if the gate was passed.
        fewest: Number of seeds that "shown" needs.
    """
    found = paired(differences)
    if not passed or found.n < 2 or not differences.any():
        return "inconclusive", found
    if found.low > 0 and found.n >= fewest:
        return "shown", found
    if found.high < (0 if effect is None else effect / 2):
        return "not reproduced", found
    return "inconclusive", found


def judge_line(line: Line) -> Judgement:
    """Return what a line shows, from its result file."""
    if not (RESULTS / f"{line.result}.parquet").exists():
        return Judgement("not run")
    gate, differences = line.gate(), line.differences()
    found, estimate = judge(differences, line.effect, passed=gate.passed, fewest=line.fewest)
    if line.unit == "share":
        estimate = replace(estimate, low=max(estimate.low, -1.0), high=min(estimate.high, 1.0))
    wanted = NOTICED[line.unit] if line.effect is None else line.effect
    over_seeds = differences.mean(axis=1)
    needed = seeds_needed(float(over_seeds.std(ddof=1)), wanted) if len(over_seeds) > 1 else None
    return Judgement(found, estimate, gate, needed)


def verdict(claim: Claim, lines: Sequence[Judgement] | None = None) -> Verdict:
    """Return the verdict on a claim, from what its lines show (by default, from their result files)."""
    if not claim.lines:
        return "not testable here"
    judged = [judge_line(line) for line in claim.lines] if lines is None else lines
    found = {one.found for one in judged}
    if found == {"not run"}:
        return "not run"
    if found == {"shown"}:
        return "shown"
    failed = [line for line, one in zip(claim.lines, judged, strict=True) if one.found == "not reproduced"]
    if failed:
        fair = {"authors'", "searched"} <= {line.settings for line in failed}
        fair = fair and any(line.papers_measure for line in failed) and "shown" not in found
        if claim.smaller:
            return "not reproduced at this size"
        return "refuted" if fair else "not reproduced"
    undecided = [one for one in judged if one.found == "inconclusive"]
    if undecided and all(one.tested and (one.needed or 0) > MOST_SEEDS for one in undecided):
        return "not testable at this size"
    return "inconclusive"


def table(claims: Sequence[Claim]) -> str:
    """Return one row for each claim, with its verdict."""
    rows = []
    for claim in claims:
        judged = [judge_line(line) for line in claim.lines]
        found, shown = verdict(claim, judged), sum(one.found == "shown" for one in judged)
        word, tests = f"**{found}**", f"{shown} of {len(judged)}" if judged else ""
        if found == "not testable here":
            word += f": {claim.reason}"
        elif claim.smaller and found != "shown":
            word += f" ({claim.smaller})"
        rows.append([claim.number, claim.paper, claim.claim, tests, word])
    return markdown(["", "method", "the paper's claim", "tests that show it", "verdict"], rows)


def evidence(claims: Sequence[Claim]) -> str:
    """Return one row for each line of each claim, with its gate, its number and what it shows."""
    rows = []
    for claim in claims:
        for line in claim.lines:
            one = judge_line(line)
            number, gate, word = "", "", str(one.found)
            if (e := one.estimate) is not None and one.gate is not None:
                ends = f"[{_show(e.low, line.unit)}, {_show(e.high, line.unit)}]"
                unit = " times" if line.unit == "ratio" else ""
                number = f"{_show(e.value, line.unit)}{unit} {ends}, {e.n} seeds" if e.n > 1 else "one seed"
                gate = one.gate.text
                word = word if one.gate.passed else "inconclusive: the gate was not passed"
            paper = "none stated" if line.effect is None else _show(line.effect, line.unit)
            needed = "" if one.needed is None else str(one.needed) if one.needed < 1000 else "1,000 or more"
            rows.append([claim.number, line.test, line.settings, gate, number, paper, needed, word])
    head = ["claim", "test here", "settings", "gate", "difference [95 %]", "difference in the paper"]
    return markdown([*head, "seeds for a power of .8", "result"], rows)


def plan(claims: Sequence[Claim], result: str) -> list[str]:
    """Return the power of the lines that read a result, as printed before the study is run again."""
    said = []
    for claim in claims:
        for line in (line for line in claim.lines if line.result == result):
            one = judge_line(line)
            if one.needed is not None and one.estimate is not None:
                what = _show(NOTICED[line.unit] if line.effect is None else line.effect, line.unit)
                seeds = f"{one.needed} seeds find a difference of {what} with a power of {POWER:g}"
                said.append(f"{claim.number}, {claim.claim}: {seeds}; the stored result has {one.estimate.n}")
    return said


def _show(value: float, unit: Unit) -> str:
    if unit != "ratio":
        return f"{value:+.2f}"
    ratio = exp(value)
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
