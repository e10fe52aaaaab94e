from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import studies.icon.summary
import studies.lcbc.summary
import studies.planning
import studies.rewards.tables
from studies.claims import CLAIMS, premier_taco, rewards, td_infonce
from studies.harness import RESULTS, kept
from studies.prose import MARK, without_zeros
from studies.verdicts import Claim

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"


@cache
def headings(page: str) -> list[str]:
    lines = [line.lstrip("# ") for line in (PAGES / page).read_text().splitlines() if line.startswith("#")]
    return [re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_every_claim_rests_on_pages_and_results_or_says_why_not(claim: Claim) -> None:
    assert bool(claim.lines) != bool(claim.reason)
    for line in claim.lines:
        for page, anchor in re.findall(r"\((\w+\.md)(?:#([\w-]+))?\)", line.test):
            assert not anchor or anchor in headings(page), f"{page} has no section {anchor}"
        if (RESULTS / f"{line.result}.parquet").exists():
            assert line.differences().ndim == 2
            assert line.gate().text


def test_numbers_of_claims_are_different() -> None:
    assert len({claim.number for claim in CLAIMS}) == len(CLAIMS)


def planted(monkeypatch: pytest.MonkeyPatch, module: Any, change: Callable[[Any], None]) -> None:
    """Let a module's gates read stored results that `change` has altered."""

    def altered(name: str, *summarise: Any) -> Any:
        import copy

        found = copy.deepcopy(kept(name, *summarise))
        change(found)
        return found

    monkeypatch.setattr(module, "kept", altered)


def test_the_gate_of_rewards_fails_for_a_method_that_has_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rewards.learned("kitchen", "decisionnce_t", "clip").passed
    assert not rewards.learned("kitchen", "random heads", "decisionnce_t").passed
    assert not rewards.learned("kitchen", "decisionnce_t", "random heads").passed

    def everyone_guesses_right(found: Any) -> None:
        for run in found["rows"]:
            run["groups"][rewards.SEEN]["accuracy"] = 1.0

    # Videos so easy that random heads are right, too.
    planted(monkeypatch, studies.rewards.tables, everyone_guesses_right)
    assert not rewards.learned("kitchen", "decisionnce_t", "clip").passed


def test_the_gate_of_tables_fails_for_a_table_that_has_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert td_infonce.untrained_error() == pytest.approx(0.0308, abs=1e-4)
    assert td_infonce.table_learned().passed

    def large_errors(found: Any) -> None:
        for numbers in found["errors"]["episodes"]["decayed"]["td_infonce"].values():
            numbers["mean"] = 0.01

    planted(monkeypatch, td_infonce, large_errors)
    assert not td_infonce.table_learned().passed


@pytest.mark.parametrize("part", ["td_infonce", "untrained"])
def test_the_gate_of_stitching_fails_if_nothing_or_everything_is_solved(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert td_infonce.solvable("alternating", "all").passed

    def change(found: Any) -> None:
        places = [*found["stitching"].values()]
        for place in places:
            for rule in place["td_infonce"]:
                place[part][rule]["success"] = 0.0 if part == "td_infonce" else 1.0

    planted(monkeypatch, td_infonce, change)
    assert not td_infonce.solvable("alternating", "all").passed


def test_the_gate_of_pretraining_fails_for_an_encoder_that_a_random_one_equals() -> None:
    found = premier_taco.learned("fewshot_finetuned")
    assert "frozen above a random encoder by 0.00" in found.text
    assert not found.passed


def test_the_gates_of_agents_fail_for_agents_that_arrive_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(found: Any) -> None:
        for row in found["rows"].values():
            row["success"]["mean"] = 0.0

    planted(monkeypatch, td_infonce, lost)
    gates = [td_infonce.reaches("MC, TD's actor"), td_infonce.both_reach()]
    gates.append(td_infonce.joinable("stitch", "TD, MC's actor", "MC, its own actor"))
    assert not any(gate.passed for gate in gates)


def test_the_gate_of_ogbench_fails_for_an_agent_that_solves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert td_infonce.learned_on("pointmaze-medium-navigate").passed

    def lost(found: Any) -> None:
        found["cells"]["pointmaze-medium-navigate"]["crl"]["ours"]["mean"] = 0.0

    planted(monkeypatch, td_infonce, lost)
    assert not td_infonce.learned_on("pointmaze-medium-navigate").passed


@pytest.mark.parametrize("fault", ["straight ways", "lost agents"])
def test_the_gate_of_interpolation_fails_on_straight_ways_and_for_agents_that_arrive_nowhere(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert td_infonce.shows_the_way().passed

    def change(found: Any) -> None:
        for row in found["rows"]:
            if fault == "straight ways":
                row["trained"]["straight_line"]["covered"] = 0.65
            else:
                row["reached"] = 0.0

    planted(monkeypatch, td_infonce, change)
    assert not td_infonce.shows_the_way().passed


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_gate_of_diffusion_policies_fails_if_the_baseline_solves_nothing_or_everything(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = studies.icon.summary
    assert module.in_band("icon_close_drawer").passed

    def change(found: Any) -> None:
        for column in found["success"].values():
            column["Diff-C"]["rate"] = rate

    planted(monkeypatch, module, change)
    assert not module.in_band("icon_close_drawer").passed


def test_the_gate_of_cloning_fails_for_a_baseline_at_its_ceiling_or_a_state_that_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = studies.lcbc.summary
    found = module.comparable("lcbc", "imagenet")
    assert "(0.1 to 0.9)" in found.text
    assert not found.passed  # Meta-World's hammer is at its ceiling

    def between(found: Any) -> None:
        for cells in found["table"]["25"]["imagenet"].values():
            cells["last"]["values"] = [0.5] * len(cells["last"]["values"])

    planted(monkeypatch, module, between)
    assert module.comparable("lcbc", "imagenet").passed

    def unsolvable(found: Any) -> None:
        between(found)
        found["gate"]["passed"] = False

    planted(monkeypatch, module, unsolvable)
    assert not module.comparable("lcbc", "imagenet").passed


def test_the_gate_of_planning_fails_if_the_true_distance_solves_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    module = studies.planning
    rows = kept("planning")["rows"]
    lost = [{**row, "episodes": [{**one, "solved": False} for one in row["episodes"]]} for row in rows]
    assert not module.summary(lost)["gate"]["passed"]


def test_padding_is_compared_with_the_change_of_the_other_method() -> None:
    from studies.claims.actol import padding_costs_less

    found = padding_costs_less("", "margin")
    assert found.shape[0] >= 5
    assert np.isfinite(found).all()


def test_the_readme_quotes_the_table() -> None:
    readme = (PAGES.parents[1] / "README.md").read_text()
    section = readme.partition("## What the papers claim, tested")[2].partition("\n## ")[0]
    quoted = [found[5] for found in MARK.finditer(section)]
    assert len(quoted) >= 3
    index = without_zeros((PAGES / "index.md").read_text())
    assert all(number in index for number in quoted)
