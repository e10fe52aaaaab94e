from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.envs.metaworld.env import INSTRUCTIONS
from studies.harness import load_preset, read_rows
from studies.reward_rl import RewardRLConfig, episodes_of, facts_of, reward_rl_study, summary
from tests.conftest import write_robot_set

TASK = INSTRUCTIONS["door-close-v3"]
CHANGES = {"seeds": [0, 1], "steps": 40, "every": 20, "horizon": 10, "repeat": 2, "sac.learning_starts": 15}


def test_the_task_is_left_out_of_the_episodes_of_other_tasks() -> None:
    frames = {"front": np.zeros((2, 8, 8, 3), np.uint8)}
    store = MemoryStore([Episode(frames, text, np.arange(2) / 10) for text in ("open the door", TASK, "open the door")])
    assert episodes_of(store, TASK, "all tasks") == [0, 1, 2]
    assert episodes_of(store, TASK, "other tasks") == [0, 2]
    assert facts_of(store, TASK, "other tasks") == {"episodes": 2, "tasks": 1, "task_in_pretraining": False}
    assert facts_of(store, TASK, "all tasks")["task_in_pretraining"]


def test_the_summary_has_a_mean_and_an_interval_of_every_reward() -> None:
    rows = [
        {
            "row": row,
            "seed": seed,
            "end": end,
            "ever": 1.0,
            "points": [{"step": 9, "end": 0.0}, {"step": 18, "end": end}],
        }
        for row, ends in {"ours": (0.5, 1.0, 0.9), "constant": (0.0, 0.0, 0.0)}.items()
        for seed, end in enumerate(ends)
    ]
    found = summary(rows)["rows"]
    assert found["ours"]["end"]["mean"] == pytest.approx(0.8)
    assert found["ours"]["end"]["low"] < 0.8 < found["ours"]["end"]["high"] <= 1.0
    assert found["ours"]["area"]["mean"] == pytest.approx(0.4)
    assert found["constant"]["seeds"] == 3
    assert found["ours"]["solved"]["value"] == pytest.approx(2 / 3)
    assert found["constant"]["solved"]["high"] > 0.5


@pytest.mark.release
@pytest.mark.sim
def test_the_quick_study_learns_from_every_kind_of_reward_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("metaworld", reason="needs the extra `sim`")
    pytest.importorskip("stable_baselines3", reason="needs the extra `rl`")
    write_robot_set(tmp_path / "data", 9, 64, {"train": "0:6", "val": "6:9"})
    config = load_preset("reward_rl", RewardRLConfig, "quick", {"data": str(tmp_path / "data"), **CHANGES})
    found = reward_rl_study(config, tmp_path / "out")
    assert set(found["rows"]) == set(config.rows)
    assert {row["seeds"] for row in found["rows"].values()} == {2}
    assert not found["pretraining"]["other tasks"]["task_in_pretraining"]
    rows, about = read_rows(tmp_path / "out" / "results.parquet")
    assert len(rows) == 2 * len(config.rows)
    assert about["instruction"] == TASK
    assert all([point["step"] for point in row["points"]] == [20, 40] for row in rows)
    assert (tmp_path / "out" / "reward_rl.png").stat().st_size > 1000
    again = next((tmp_path / "out" / "trials").glob("dense*"))
    before = json.loads(again.read_text())["result"]
    again.unlink()
    reward_rl_study(config, tmp_path / "out")
    assert json.loads(again.read_text())["result"] == before
