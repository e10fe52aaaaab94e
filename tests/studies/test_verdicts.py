from __future__ import annotations

import numpy as np

from studies.claims import CLAIMS
from studies.harness import paired
from studies.verdicts import Claim, Gate, judge, table, verdict


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng, held, wide = np.random.default_rng(0), 0, 0
    for trial in range(200):
        tasks = rng.normal(0, 0.1, (1, 3))
        found = paired(0.2 + tasks + rng.normal(0, 0.2, (4, 3)), seed=trial)
        held += found.low <= 0.2 <= found.high
        wide += found.high - found.low > 0.8
    assert held >= 180
    assert wide <= 20


def test_seeds_that_agree_on_tasks_that_differ_are_no_certainty() -> None:
    differences = np.tile([[0.6, -0.1, 0.5]], (5, 1))
    found = paired(differences)
    assert found.low < 0.1 < found.value < found.high
    assert found.n == 5


def test_verdicts_follow_the_interval_the_gate_and_the_seeds() -> None:
    spread = np.array([[-0.02], [0.0], [0.01], [0.02]])
    assert judge(0.3 + spread, 0.2, passed=True).verdict == "shown"
    assert judge(0.3 + spread, 0.2, passed=False).verdict == "inconclusive"
    assert judge(0.3 + spread[:3], 0.2, passed=True).verdict == "inconclusive"
    assert judge(spread, 0.2, passed=True).verdict == "refuted"
    assert judge(spread, 0.05, passed=True).verdict == "inconclusive"
    assert judge(spread, None, passed=True).verdict == "inconclusive"
    assert judge(-0.3 + spread, None, passed=True).verdict == "refuted"
    assert judge(0.3 + spread[:1], 0.2, passed=True).verdict == "inconclusive"
    assert judge(0.05 + spread, 0.2, passed=True).verdict == "shown"  # and below half of the paper's effect
    unsure = judge(10 * spread, 0.2, passed=True)
    assert unsure.verdict == "inconclusive"
    assert unsure.smallest is not None
    assert unsure.smallest > 0.2


def test_a_claim_without_a_result_is_not_run() -> None:
    gate = Gate("always", passed=True)
    missing = Claim("x", "y", "z", "no_such_result", lambda: np.zeros((4, 1)), lambda: gate)
    assert verdict(missing).verdict == "not run"
    assert verdict(Claim("x", "y", "z", reason="no simulator")).verdict == "not testable here"


def test_the_table_has_a_row_for_every_claim() -> None:
    assert len(table(CLAIMS).splitlines()) == len(CLAIMS) + 2
    one = Claim("x", "y", "z", "occupancy", lambda: np.full((4, 1), 0.5), lambda: Gate("g", passed=True), 0.2)
    found = table([one])
    assert "+0.50 [+0.50, +0.50], 4 seeds" in found
    assert "**shown**" in found
