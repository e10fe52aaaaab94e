"""The rule that turns a claim's test into a verdict.

A claim is *shown* if the gate was passed and the paired interval excludes 0, with at least four seeds. A claim that is
not shown is *refuted* if the interval excludes half of the paper's effect (or, if the paper has no number in our unit,
if the interval lies below 0). Otherwise the test is *inconclusive*. Half the width of the interval is the smallest
effect that the test could have detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Literal

from counterpoint.evaluation.statistics import Estimate
from studies.harness import RESULTS, Differences, markdown, paired

FEWEST_SEEDS = 4
Unit = Literal["share", "ratio", "number"]
Verdict = Literal["shown", "refuted", "inconclusive", "not run", "not testable here"]


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
class Claim:
    """A claim of a paper and our test of it.

    Attributes:
        paper: Name of the method.
        claim: The claim, and where the paper makes it.
        test: The comparison that we made, with a link to the page.
        result: The result file in `studies/results`, which names its command. None if nothing can be run.
        differences: Function that returns the method's number minus the baseline's, for each seed and task.
        gate: Function that returns the gate.
        effect: The paper's difference in the same unit, if it states one.
        unit: `share` of episodes or videos, whose differences stay in [-1, 1]; `ratio`, whose differences are of
            logarithms; or a `number`.
        reason: The reason why we cannot test the claim.
    """

    paper: str
    claim: str
    test: str
    result: str | None = None
    differences: Callable[[], Differences] | None = None
    gate: Callable[[], Gate] | None = None
    effect: float | None = None
    unit: Unit = "share"
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """A verdict and the number on which it is based.

    Attributes:
        verdict: The verdict.
        estimate: The mean paired difference with its interval, if there is one.
        smallest: Smallest effect that the test could have detected.
    """

    verdict: Verdict
    estimate: Estimate | None = None
    smallest: float | None = None


def judge(differences: Differences, effect: float | None, *, passed: bool) -> Judgement:
    """Return the verdict on paired differences.

    Args:
        differences: One number per seed and task.
        effect: The paper's difference in the same unit, if it states one.
        passed: True if the gate was passed.
    """
    found = paired(differences)
    half = None if found.n < 2 else (found.high - found.low) / 2
    if not passed or half is None:
        return Judgement("inconclusive", found, half)
    if found.low > 0 and found.n >= FEWEST_SEEDS:
        return Judgement("shown", found)
    if found.high < (0 if effect is None else effect / 2):
        return Judgement("refuted", found)
    return Judgement("inconclusive", found, half)


def verdict(claim: Claim) -> Judgement:
    """Return the verdict on a claim from its result file."""
    if claim.result is None:
        return Judgement("not testable here")
    if not (RESULTS / f"{claim.result}.parquet").exists():
        return Judgement("not run")
    assert claim.differences is not None
    assert claim.gate is not None
    found = judge(claim.differences(), claim.effect, passed=claim.gate().passed)
    if claim.unit != "share" or found.estimate is None:
        return found
    cut = replace(found.estimate, low=max(found.estimate.low, -1.0), high=min(found.estimate.high, 1.0))
    return replace(found, estimate=cut)


def table(claims: Sequence[Claim]) -> str:
    """Return the claims with their tests, gates, numbers and verdicts."""
    rows = []
    for claim in claims:
        found = verdict(claim)

        def show(value: float | None, claim: Claim = claim) -> str:
            if value is None:
                return "none stated"
            return f"{_times(value)} times" if claim.unit == "ratio" else f"{value:+.2f}"

        number, word = "", f"**{found.verdict}**"
        if (e := found.estimate) is not None:
            ends = f"[{_times(e.low)}, {_times(e.high)}]" if claim.unit == "ratio" else f"[{e.low:+.2f}, {e.high:+.2f}]"
            number = f"{show(e.value)} {ends}, {e.n} seeds" if e.n > 1 else f"{show(e.value)}, one seed"
        ran = claim.gate() if found.estimate is not None and claim.gate is not None else None
        if ran is not None and not ran.passed:
            word += ": the gate was not passed"
        elif found.smallest is not None:
            word += f"; detectable effect {show(found.smallest).lstrip('+')}"
        if found.verdict == "not testable here":
            word += f": {claim.reason}"
        gate, effect = (ran.text, show(claim.effect)) if ran is not None else ("", "")
        rows.append([claim.paper, claim.claim, claim.test, gate, number, effect, word])
    head = ["method", "the paper's claim", "test here", "gate", "difference [95 %]", "difference in the paper"]
    head += ["verdict"]
    return markdown(head, rows)


def _times(logarithm: float) -> str:
    ratio = exp(logarithm)
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
