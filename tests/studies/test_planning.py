from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoint.errors import BadInputError
from studies.harness import load_preset, presets, read_rows
from studies.planning import PlanningConfig, planning_study, summary, table

SMALL: dict[str, Any] = {
    "encoders": "runs/none",
    "tasks": ("light_on",),
    "planner": {"samples": 2, "horizon": 2, "prefix": 45, "size": 32},
    "seeds": 2,
    "scenes": 1,
    "processes": 1,
}


@pytest.mark.slow
@pytest.mark.sim
def test_rewards_plan_the_same_scenes(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")
    found = planning_study(PlanningConfig(rewards=("distance", "constant"), **SMALL), tmp_path)
    rows, _ = read_rows(tmp_path / "results.parquet")
    seeds = {row["reward"]: [one["seed"] for one in row["episodes"]] for row in rows if row["seed"] == 0}
    assert seeds["distance"] == seeds["constant"]
    assert summary(rows) == {key: found[key] for key in ("table", "less", "gate")}
    assert "| constant |" in table(found)


def test_progress_is_paired_over_scenes() -> None:
    rows = [
        {"reward": name, "task": "light_on", "seed": seed, "episodes": [scene(value), scene(value + 0.1)]}
        for seed in range(2)
        for name, value in {"distance": 0.8, "random": 0.1}.items()
    ]
    found = summary(rows)
    assert found["less"]["distance"]["random"]["value"] == pytest.approx(0.7)
    assert found["gate"] == {"solved": 0.5, "passed": False}
    assert found["table"]["random"]["all"]["solved"]["n"] == 4


def scene(progress: float) -> dict[str, Any]:
    return {"progress": progress, "solved": progress > 0.85, "success": False}


@pytest.mark.parametrize("name", presets("planning"))
def test_presets_are_whole(name: str) -> None:
    load_preset("planning", PlanningConfig, name)


def test_encoders_that_were_not_trained_are_named_before_planning(tmp_path: Path) -> None:
    config = PlanningConfig(rewards=("distance", "random"), **SMALL)
    with pytest.raises(BadInputError, match=r"pretrain-random-0.*studies\.lcbc"):
        planning_study(config, tmp_path)
