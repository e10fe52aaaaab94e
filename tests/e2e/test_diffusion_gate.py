"""The gate of diffusion policies: what any of them must pass before one is compared with another."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli import main

pytestmark = [
    pytest.mark.sim,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the extra `robosuite`"),
]

SMALL = "--optimizer.lr 1e-3 --train.eval-every 500 --train.save-every 500"


def trained(folder: Path, episodes: int, steps: int) -> Path:
    """Record Lift without images and train a policy on poses; return its run."""
    data = f"--tasks Lift --episodes {episodes} --val-episodes 2 --cameras none --workers 1"
    main(f"collect robosuite {data} --out {folder / 'lift'}".split())
    recipe = f"diff_c-robosuite-state {SMALL} --train.trackers --data.cache {folder / 'cache'}"
    main(f"train {recipe} --data {folder / 'lift'} --train.steps {steps} --out {folder / 'run'}".split())
    return folder / "run"


def last(run: Path, split: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in reversed(lines) if line["split"] == split)


def test_a_policy_on_poses_lifts_the_cube_in_unseen_scenes(tmp_path: Path) -> None:
    run = trained(tmp_path, 25, 1000)
    main(f"evaluate {run} --env robosuite/Lift --episodes 10".split())
    found = json.loads((run / "evaluation.json").read_text())
    assert sum(episode["success"] for episode in found["episodes"]) >= 9
    assert last(run, "val")["action_error/2"] < 0.25
    assert last(run, "val")["gripper_wrong"] < 0.1
