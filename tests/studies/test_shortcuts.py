from __future__ import annotations

import pytest

from studies.occupancy.tabular import TabularConfig
from studies.stitching.data import LAYOUTS
from studies.stitching.run import SHORTCUTS, shortcut_cases, shortcut_summary
from studies.stitching.trials import run_trial

FEW = TabularConfig(steps=1500, batch=128, learning_rate=0.03)


def test_every_layout_asks_for_its_goal_in_data_of_its_own() -> None:
    cases = shortcut_cases("two pieces", 20_000, range(2))
    assert [case.name for case in cases] == [layout.name for layout in LAYOUTS for _ in range(2)]
    assert len({case.data.counts for case in cases}) == len(cases)
    for case in cases:
        assert case.pairs == ((case.data.paths[0].states[0], case.data.paths[0].states[-1]),)


@pytest.mark.slow
def test_td_joins_the_pieces_of_a_shortcut_and_mc_goes_the_long_way() -> None:
    cases = shortcut_cases("two pieces", 20_000, range(1))
    td = shortcut_summary(run_trial(cases, "td_infonce", ("seen",), FEW, seed=0)["records"])
    mc = shortcut_summary(run_trial(cases, "mc_infonce", ("seen",), FEW, seed=0)["records"])
    assert (td["took_short"], td["took_long"], td["n"]) == (4, 0, 4)
    assert (mc["took_short"], mc["took_long"]) == (0, 4)
    assert mc["layouts"]["along an edge"]["steps"] == [12.0]


@pytest.mark.slow
def test_both_find_a_shortcut_that_branches_off_at_the_start() -> None:
    cases = shortcut_cases("branching", 20_000, range(1))
    for method in ("td_infonce", "mc_infonce"):
        found = run_trial(cases, method, ("seen",), FEW, seed=0)
        assert shortcut_summary(found["records"])["took_short"] == 4


@pytest.mark.parametrize("kind", SHORTCUTS)
def test_a_walk_that_never_arrives_takes_neither_way(kind: str) -> None:
    cases = shortcut_cases(kind, 1000, range(1))
    found = run_trial(cases, "untrained", ("all",), FEW, seed=0)
    records = [record | {"steps": None, "reached": 0.0} for record in found["records"]]
    summary = shortcut_summary(records)
    assert (summary["took_short"], summary["took_long"], summary["n"]) == (0, 0, 4)
