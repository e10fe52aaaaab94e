from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from studies import claims
from studies.claims import CLAIMS, Claim, Gate, judge, table, verdict
from studies.harness import RESULTS, paired

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"


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
    unsure = judge(10 * spread, 0.2, passed=True)
    assert unsure.verdict == "inconclusive"
    assert unsure.smallest is not None
    assert unsure.smallest > 0.2


def test_a_claim_without_a_result_is_not_run() -> None:
    gate = Gate("always", passed=True)
    missing = Claim("x", "y", "z", "no_such_result", lambda: np.zeros((4, 1)), lambda: gate)
    assert verdict(missing).verdict == "not run"
    assert verdict(Claim("x", "y", "z", reason="no simulator")).verdict == "not testable here"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.claim}")
def test_every_claim_rests_on_a_page_and_a_result_or_says_why_not(claim: Claim) -> None:
    for page, anchor in re.findall(r"\((\w+\.md)(?:#([\w-]+))?\)", claim.test):
        text = (PAGES / page).read_text()
        headings = [
            re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings, f"{page} has no section {anchor}"
    if claim.result is None:
        assert claim.reason
    elif (RESULTS / f"{claim.result}.parquet").exists():
        assert claim.differences is not None
        assert claim.gate is not None
        assert claim.differences().ndim == 2
        assert claim.gate().text


def test_the_table_has_a_row_for_every_claim_and_all_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table().splitlines()
    assert len(lines) == len(claims.CLAIMS) + 2
    one = Claim("x", "y", "z", "occupancy", lambda: np.full((4, 1), 0.5), lambda: Gate("g", passed=True), 0.2)
    monkeypatch.setattr(claims, "CLAIMS", (one,))
    assert "+0.50 [+0.50, +0.50], 4 seeds" in table()
    assert "**shown**" in table()


def test_the_readme_quotes_the_table() -> None:
    section = (
        (PAGES.parents[1] / "README.md")
        .read_text()
        .partition("## What the papers claim, tested")[2]
        .partition("\n## ")[0]
    )
    quoted = re.findall(r"[+\d.,]+(?: times)? \[[^\]]+\]", section)
    assert len(quoted) >= 3
    index = (PAGES / "index.md").read_text()
    assert all(number in index for number in quoted)
