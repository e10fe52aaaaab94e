from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoint.errors import BadInputError
from studies.harness import load_preset, presets, read_rows
from studies.planning import PlanningConfig, planning_study, settings, summary, table
from tests.conftest import write_robot_set

SMALL: dict[str, Any] = {
    "tasks": ("light_on",),
    "planner": {"samples": 2, "horizon": 2, "prefix": 45, "size": 32},
    "seeds": 2,
    "processes": 1,
}
ROW: dict[str, Any] = {"recipe": "decisionnce_t-demo", "trained": False}


@pytest.mark.slow
@pytest.mark.sim
def test_rewards_plan_the_same_scenes(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")
    write_robot_set(tmp_path / "data", 4, 32, {"train": "0:4"})
    training = {"data": str(tmp_path / "data"), "rows": {"random heads": ROW}}
    config = PlanningConfig.model_validate({**SMALL, "training": training})
    found = planning_study(config, tmp_path / "out")
    rows, _ = read_rows(tmp_path / "out" / "results.parquet")
    scenes = {row["reward"]: [one["seed"] for one in row["episodes"]] for row in rows if row["seed"] == 0}
    assert scenes["distance"] == scenes["constant"] == scenes["random heads"]
    assert summary(rows) == {key: found[key] for key in ("table", "less", "gate")}
    assert "| random heads |" in table(found)


def test_differences_are_paired_by_seed_and_intervals_are_over_seeds() -> None:
    rows = [
        {"reward": name, "task": "light_on", "seed": seed, "episodes": [scene(value), scene(value + 0.1)]}
        for seed in range(2)
        for name, value in {"distance": 0.8, "random heads": 0.1}.items()
    ]
    found = summary(rows)
    assert found["less"]["distance"]["random heads"]["progress"]["value"] == pytest.approx(0.7)
    assert found["less"]["distance"]["random heads"]["progress"]["n"] == 2
    assert found["gate"] == {"solved": 0.5, "passed": False}


def scene(progress: float) -> dict[str, Any]:
    return {"progress": progress, "solved": progress > 0.85, "success": False}


@pytest.mark.parametrize("name", presets("planning"))
def test_presets_are_whole(name: str) -> None:
    config = load_preset("planning", PlanningConfig, name, {"training.data": "DATA"})
    assert settings(config, config.tasks[0], 3).seed == 3


def test_unknown_settings_of_the_planner_are_named(tmp_path: Path) -> None:
    config = load_preset("planning", PlanningConfig, "cpu", {"training.data": "DATA", "planner.horizons": 3})
    with pytest.raises(BadInputError, match="horizons"):
        planning_study(config, tmp_path)
