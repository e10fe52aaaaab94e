from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from studies.diffusion_gate import DiffusionGateConfig, diffusion_gate_study, summary, table
from studies.harness import load_preset, read_rows

SMALL = {
    "training": {"diffusion.down_dims": [8, 16], "diffusion.step_dim": 8, "train.steps": 2, "train.batch_size": 4},
    "data": {"clean": {"cameras": ["none"], "episodes": 1, "val_episodes": 1}},
    "rows": {"sample": {"data": "clean", "acting": ["as trained", "DDPM 100"]}},
    "seeds": [0],
    "episodes": 1,
}


def test_scenes_are_counted_over_seeds() -> None:
    errors = {split: {"action_error": 0.2, "gripper_wrong": 0.1} for split in ("seen", "val")}
    rows: list[dict[str, Any]] = [
        {
            "row": "v",
            "seed": seed,
            "solved": {"as trained": [True, seed == 1]},
            "errors": errors,
            "processor_seconds": 60,
        }
        for seed in (0, 1)
    ]
    (line,) = summary(rows)
    assert (line["success"]["value"], line["success"]["n"], line["each"]) == (0.75, 4, [0.5, 1.0])
    assert "| v | as trained | 0.75 [0.30, 0.95] of 4 | 0.50, 1.00 | 0.200 | 0.200 | 10.0% | 1.0 |" in table(rows)


@pytest.mark.release
@pytest.mark.sim
@pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the extra `robosuite`")
def test_a_small_one_runs_and_is_read_again(tmp_path: Path) -> None:
    config = load_preset("diffusion_gate", DiffusionGateConfig, "state", SMALL)
    found = diffusion_gate_study(config, tmp_path)
    assert [(line["acting"], line["success"]["n"]) for line in found["rows"]] == [("as trained", 1), ("DDPM 100", 1)]
    (row,), _ = read_rows(tmp_path / "results.parquet")
    assert {"action_error", "gripper_wrong"} <= row["errors"]["val"].keys()
    assert diffusion_gate_study(config, tmp_path)["rows"] == found["rows"]
