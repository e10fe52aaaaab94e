"""The central claims of the five papers beside our tests of them: the table of `docs/results/index.md`.

A claim is *shown* where the gate was passed and the paired interval excludes 0, with at least four seeds. It is
*refuted* where the interval excludes half of the paper's effect (where the paper has no number in our unit: where it
lies below 0). Otherwise the test is *inconclusive*, and half the width of the interval is the smallest effect that it
could have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, from_resamples, seeds_interval, wider
from studies.harness import RESULTS, kept, markdown
from studies.occupancy.analysis import summarise as summarise_occupancy
from studies.stitching.run import summary as summarise_stitching
from studies.stitching.tables import RULES

Differences = Float[NDArray[np.float64], "seeds tasks"]
FEWEST_SEEDS, RESAMPLES = 4, 4000
Unit = Literal["share", "ratio", "number"]
Verdict = Literal["shown", "refuted", "inconclusive", "not run", "not testable here"]


@dataclass(frozen=True)
class Gate:
    """What shows that the machinery of a test is healthy.

    Attributes:
        text: The number and what it has to be.
        passed: True when it is.
    """

    text: str
    passed: bool


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and its test here.

    Attributes:
        paper: Name of the method.
        claim: The claim, and where the paper makes it.
        test: What was compared here, with a link to the page.
        result: The result file in `studies/results`, which names its command. None where nothing can be run.
        differences: Returns the method's number less the baseline's: one for each seed and task.
        gate: Returns the gate.
        effect: The paper's difference in the same unit, where it states one.
        unit: `share` of episodes or videos, whose differences stay in [-1, 1]; `ratio`, whose differences are of
            logarithms; or a `number`.
        reason: Why it is not testable here.
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
    """A verdict and the number it rests on.

    Attributes:
        verdict: The verdict.
        estimate: The mean paired difference with its interval, where there is one.
        smallest: Smallest effect that the test could have seen.
    """

    verdict: Verdict
    estimate: Estimate | None = None
    smallest: float | None = None


def paired(differences: Differences, *, seed: int = 0) -> Estimate:
    """Return the mean of paired differences with the wider of two intervals.

    One is Student's over seeds, of each seed's mean over tasks; the other resamples seeds and tasks (percentile
    bootstrap). Episodes are never pooled.

    Args:
        differences: One number a seed and task; a single seed has no interval.
        seed: Random seed of the resamples.
    """
    S, T = differences.shape
    over_seeds = seeds_interval(differences.mean(axis=1))
    if S == 1:
        return over_seeds
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, S, (RESAMPLES, S)), rng.integers(0, T, (RESAMPLES, T))
    means = differences[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    return wider(over_seeds, from_resamples(over_seeds.value, means, S))


def judge(differences: Differences, effect: float | None, *, passed: bool) -> Judgement:
    """Return the verdict on paired differences.

    Args:
        differences: One number a seed and task.
        effect: The paper's, in the same unit.
        passed: True when the gate was passed.
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
    if claim.result is None or claim.differences is None or claim.gate is None:
        return Judgement("not testable here")
    if not (RESULTS / f"{claim.result}.parquet").exists():
        return Judgement("not run")
    found = judge(claim.differences(), claim.effect, passed=claim.gate().passed)
    if claim.unit != "share" or found.estimate is None:
        return found
    cut = replace(found.estimate, low=max(found.estimate.low, -1.0), high=min(found.estimate.high, 1.0))
    return replace(found, estimate=cut)


def table() -> str:
    """Return the claims with their tests, gates, numbers and verdicts."""
    rows = []
    for claim in CLAIMS:
        found = verdict(claim)

        def show(value: float | None, claim: Claim = claim) -> str:
            if value is None:
                return "none stated"
            return f"{_times(value)} times" if claim.unit == "ratio" else f"{value:+.2f}"

        number, word = "", f"**{found.verdict}**"
        if (e := found.estimate) is not None:
            ends = f"[{_times(e.low)}, {_times(e.high)}]" if claim.unit == "ratio" else f"[{e.low:+.2f}, {e.high:+.2f}]"
            number = f"{show(e.value)} {ends}, {e.n} seeds" if e.n > 1 else f"{show(e.value)}, one seed"
        if found.smallest is not None:
            word += f": could have seen {show(found.smallest).lstrip('+')}"
        if found.verdict == "not testable here":
            word += f": {claim.reason}"
        ran = found.estimate is not None and claim.gate is not None
        gate = claim.gate().text if ran and claim.gate else ""
        effect = show(claim.effect) if ran else ""
        rows.append([claim.paper, claim.claim, claim.test, gate, number, effect, word])
    head = ["method", "the paper's claim", "test here", "gate", "difference [95 %]", "the paper's", "verdict"]
    return markdown(head, rows)


def _times(logarithm: float) -> str:
    ratio = exp(logarithm)
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _less_data(baseline: str) -> Differences:
    """Logarithms of how many times less data TD InfoNCE needs than a baseline for the baseline's last error."""
    found = kept("occupancy", summarise_occupancy)["advantages"]["episodes"]["decayed"][baseline]
    logs: Differences = np.log(np.array(found["per_seed"]))[:, None]
    return logs


def _known_model() -> Gate:
    error = kept("occupancy", summarise_occupancy)["known_model_error"]["td_infonce"]
    return Gate(f"error on a known model {error:.0e} (rounding)", error < 1e-12)


def _stitched(rule: str) -> Differences:
    found = kept("stitching", summarise_stitching)["stitching"]
    return np.array(
        [
            np.subtract(found[style]["td_infonce"][rule]["by_seed"], found[style]["mc_infonce"][rule]["by_seed"])
            for style in ("alternating", "random")
        ]
    ).T


def _shortcuts(rule: str) -> Differences:
    found = kept("stitching", summarise_stitching)["shortcuts"]["branching"]
    td, mc = (found[method][rule]["layouts"] for method in ("td_infonce", "mc_infonce"))
    steps = {name: (td[name]["steps"], mc[name]["steps"], td[name]["short"]) for name in td}
    short = [[(a == least) - (b == least) for a, b in zip(*both, strict=True)] for *both, least in steps.values()]
    return np.array(short, dtype=np.float64).T


def _untrained_fails() -> Gate:
    by_rule = kept("stitching", summarise_stitching)["stitching"]["alternating"]["untrained"]
    success = max(one["success"] for one in by_rule.values())
    return Gate(f"an untrained table solves {success:.2f} (at most .1)", success <= 0.1)


_TABULAR = "[5 x 5 grid](occupancy.md#results), 10⁷ transitions, decayed steps"

CLAIMS = (
    Claim(
        "TD InfoNCE",
        "needs 1,500 times less data than Monte Carlo InfoNCE (Fig. 3)",
        _TABULAR,
        "occupancy",
        lambda: _less_data("mc_infonce_renormalise"),
        _known_model,
        log(1500),
        unit="ratio",
    ),
    Claim(
        "TD InfoNCE",
        "needs 130 times less data than C-learning (Fig. 3)",
        _TABULAR,
        "occupancy",
        lambda: _less_data("c_learning"),
        _known_model,
        log(130),
        unit="ratio",
    ),
    Claim(
        "TD InfoNCE",
        "needs 20 times less data than the successor representation (Fig. 3)",
        _TABULAR,
        "occupancy",
        lambda: _less_data("sr"),
        _known_model,
        log(20),
        unit="ratio",
    ),
    *(
        Claim(
            "TD InfoNCE",
            "joins trajectories where Monte Carlo does not (Fig. 4)",
            f"success of table policies on two kinds of [staircases](stitching.md#stitching), {rule}",
            "stitching",
            partial(_stitched, key),
            _untrained_fails,
            1.0,
        )
        for key, rule in RULES.items()
    ),
    *(
        Claim(
            "TD InfoNCE",
            "takes the shortcut that one trajectory in twenty shows, where Monte Carlo does not (Fig. 5)",
            f"share of runs on four [branching layouts](stitching.md#shortcuts), {rule}",
            "stitching",
            partial(_shortcuts, key),
            _untrained_fails,
            1.0,
        )
        for key, rule in RULES.items()
    ),
)
"""The claims, paper by paper."""
