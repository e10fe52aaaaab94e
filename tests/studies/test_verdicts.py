from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies import verdicts
from studies.harness import paired
from studies.verdicts import Claim, Gate, Judgement, Line, evidence, judge, plan, seeds_needed, table, verdict

GOOD, BAD = Gate("always", passed=True), Gate("never", passed=False)


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


def test_lines_follow_the_interval_the_gate_and_the_seeds() -> None:
    spread = np.array([[-0.02], [0.0], [0.01], [0.02], [0.01]])
    assert judge(0.3 + spread, 0.2, passed=True)[0] == "shown"
    assert judge(0.3 + spread, 0.2, passed=False)[0] == "inconclusive"
    assert judge(0.3 + spread[:4], 0.2, passed=True)[0] == "inconclusive"
    assert judge(0.3 + spread, 0.2, passed=True, fewest=8)[0] == "inconclusive"
    assert judge(spread, 0.2, passed=True)[0] == "not reproduced"
    assert judge(spread, 0.03, passed=True)[0] == "inconclusive"
    assert judge(spread, None, passed=True)[0] == "inconclusive"
    assert judge(-0.3 + spread, None, passed=True)[0] == "not reproduced"
    assert judge(0.3 + spread[:1], 0.2, passed=True)[0] == "inconclusive"
    assert judge(0.05 + spread, 0.2, passed=True)[0] == "shown"  # and below half of the paper's effect
    assert judge(10 * spread, 0.2, passed=True)[0] == "inconclusive"


def made(settings: verdicts.Settings = "ours", *, papers: bool = False) -> Line:
    return Line("a test", "none", lambda: np.zeros((5, 1)), lambda: GOOD, settings=settings, papers_measure=papers)


def found(*words: verdicts.Found, needed: int = 5) -> list[Judgement]:
    return [Judgement(word, gate=GOOD, needed=needed) for word in words]


def test_a_claim_has_the_verdict_of_its_worst_line() -> None:
    claim = Claim("X1", "method", "claim", (made(), made()))
    assert verdict(claim, found("shown", "shown")) == "shown"
    assert verdict(claim, found("shown", "inconclusive")) == "inconclusive"
    assert verdict(claim, found("inconclusive", "not reproduced")) == "not reproduced"
    assert verdict(claim, found("not run", "not run")) == "not run"
    assert verdict(claim, found("shown", "not run")) == "inconclusive"
    assert verdict(Claim("X2", "method", "claim", reason="no simulator")) == "not testable here"


def test_refuted_needs_the_authors_settings_searched_ones_the_papers_measure_and_its_size() -> None:
    fair = (made("authors'", papers=True), made("searched"))
    both = found("not reproduced", "not reproduced")
    assert verdict(Claim("X", "m", "c", fair), both) == "refuted"
    assert verdict(Claim("X", "m", "c", fair, "five tasks here"), both) == "not reproduced at this size"
    assert verdict(Claim("X", "m", "c", (made("authors'"), made("searched"))), both) == "not reproduced"
    assert verdict(Claim("X", "m", "c", (made("ours", papers=True), made("searched"))), both) == "not reproduced"
    assert verdict(Claim("X", "m", "c", (*fair, made())), [*both, *found("shown")]) == "not reproduced"


def test_a_line_that_needs_too_many_seeds_is_not_testable() -> None:
    claim = Claim("X", "m", "c", (made(), made()))
    assert verdict(claim, found("inconclusive", "shown", needed=17)) == "not testable at this size"
    assert verdict(claim, found("inconclusive", "shown", needed=16)) == "inconclusive"
    failed = [Judgement("inconclusive", gate=BAD, needed=100), *found("shown")]
    assert verdict(claim, failed) == "inconclusive"


def test_seeds_needed_are_those_of_a_simulated_t_test() -> None:
    assert seeds_needed(1.0, 1.0) == 10  # Cohen's tables: d = 1, power .8, two-sided .05
    assert seeds_needed(1.0, 0.5) == 34
    assert seeds_needed(0.0, 0.1) == 2
    assert seeds_needed(1.0, 0.0) == 1_000_000
    rng, n = np.random.default_rng(0), seeds_needed(1.0, 1.0)
    means = [paired(1.0 + rng.normal(size=(n, 1))).low > 0 for _ in range(300)]
    assert np.mean(means) == pytest.approx(0.8, abs=0.08)


def test_the_tables_have_a_row_for_every_claim_and_for_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "RESULTS", tmp_path)
    (tmp_path / "stored.parquet").touch()
    line = Line("test", "stored", lambda: np.full((5, 1), 0.5), lambda: GOOD, 0.2)
    failed = Line("other", "stored", lambda: np.full((5, 1), 0.5), lambda: BAD)
    claims = [Claim("X1", "m", "is better", (line, failed)), Claim("X2", "m", "is best", (made(),))]
    rows = table(claims).splitlines()
    assert len(rows) == 4
    assert "1 of 2" in rows[2]
    assert "**inconclusive**" in rows[2]
    assert "**not run**" in rows[3]
    lines = evidence(claims).splitlines()
    assert len(lines) == 5
    assert "+0.50 [+0.50, +0.50], 5 seeds" in lines[2]
    assert "the gate was not passed" in lines[3]
    assert "not run" in lines[4]
    said = plan(claims, "stored")
    assert len(said) == 2
    assert "2 seeds find a difference of +0.20 with a power of 0.8; the stored result has 5" in said[0]


def test_equal_numbers_in_every_seed_and_task_decide_nothing() -> None:
    assert judge(np.zeros((8, 2)), 0.1, passed=True, fewest=8)[0] == "inconclusive"
    assert judge(np.full((8, 2), 0.01), 0.1, passed=True, fewest=8)[0] == "shown"
