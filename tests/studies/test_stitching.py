from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from studies.gridworld import GridWorld
from studies.occupancy.tabular import TabularConfig
from studies.stitching import figures, run, trials
from studies.stitching.data import Paths, walk
from studies.stitching.run import StitchingConfig, staircase_cases, stitching_study, stitching_summary
from studies.stitching.trials import run_trial, walk_greedily

ROOT = Path(__file__).resolve().parent.parent.parent
FEW = TabularConfig(steps=800, batch=128, learning_rate=0.05)
TINY = StitchingConfig(seeds=1, transitions=1000, table=TabularConfig(steps=3, batch=16), processes=1)


@pytest.mark.slow
def test_td_stitches_and_mc_that_may_do_anything_does_not() -> None:
    cases = staircase_cases("alternating", 20_000, range(1))
    for rule in ("seen", "all"):
        td = stitching_summary(run_trial(cases, "td_infonce", (rule,), FEW, seed=0)["records"])
        assert td["success"] == 1.0
        assert td["steps"] == 6.0  # the fewest the data allow
    mc = run_trial(cases, "mc_infonce", ("all",), FEW, seed=0)["records"]
    assert stitching_summary(mc)["success"] == 0.0


def test_a_pair_that_a_trajectory_joins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = Paths(GridWorld(), (walk(GridWorld(), (0, 0), "RRRR"),), (1,))
    monkeypatch.setattr(run, "staircase_data", lambda *_: joined)
    with pytest.raises(BadInputError, match="visits start and goal"):
        staircase_cases("random", 1000, range(1))


def test_walks_end_at_the_goal_or_in_a_circle() -> None:
    table = GridWorld().next_state
    right, left = np.full(25, 3), np.full(25, 2)
    assert walk_greedily(table, right, 0, 3) == [0, 1, 2, 3]
    assert walk_greedily(table, left, 0, 3) == [0] * 26
    assert walk_greedily(table, left, 3, 3) == [3]


def test_summary_by_hand() -> None:
    records: list[dict[str, Any]] = [
        {"seed": 0, "reached": 1.0, "steps": 4.0},
        {"seed": 0, "reached": 0.0, "steps": None},
        {"seed": 1, "reached": 1.0, "steps": 8.0},
        {"seed": 1, "reached": 1.0, "steps": 6.0},
    ]
    found = stitching_summary(records)
    assert (found["success"], found["by_seed"], found["steps"], found["n"]) == (0.75, [0.5, 1.0], 6.0, 4)
    assert found["low"] == pytest.approx(0.3006, abs=1e-4)  # Wilson, 3 of 4
    assert "low" not in stitching_summary([{"seed": 0, "reached": 0.25, "steps": 6.0}])


@pytest.mark.release
def test_a_study_goes_on_where_it_stopped_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TIES", 2)
    whole = stitching_study(TINY, tmp_path / "whole")
    assert whole == json.loads((tmp_path / "whole" / "stitching.json").read_text())
    assert {path.name for path in (tmp_path / "whole").glob("*.png")} == {
        "stitching_alternating.png",
        "stitching_random.png",
        "shortcuts_branching.png",
        "shortcuts_two_pieces.png",
    }

    class StoppedError(Exception):
        pass

    calls = []

    def stop_at_the_sixth(*arguments: object, **more: object) -> object:
        calls.append(arguments)
        if len(calls) == 6:
            raise StoppedError
        return run_trial(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_trial", stop_at_the_sixth)
    monkeypatch.setattr(figures, "plot_all", lambda *_: None)
    with pytest.raises(StoppedError):
        stitching_study(TINY, tmp_path / "part")
    assert len(list((tmp_path / "part" / "trials").glob("*.json"))) == 5
    again = stitching_study(TINY, tmp_path / "part")
    assert len(calls) == 6 + 15
    for key in ("config", "data", "stitching", "shortcuts"):
        assert again[key] == whole[key]


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInputError, match="something else"):
        stitching_study(TINY, tmp_path)


@pytest.mark.release
def test_two_processes_give_the_same_as_one(tmp_path: Path) -> None:
    alone = stitching_study(TINY, tmp_path / "one")
    beside = stitching_study(TINY.model_copy(update={"processes": 2}), tmp_path / "two")
    assert alone["stitching"] == beside["stitching"]
    assert alone["shortcuts"] == beside["shortcuts"]
