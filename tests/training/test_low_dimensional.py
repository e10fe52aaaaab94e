"""Recipes train policies of proprioception alone: an encoder of kind "none" sees no camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoint
from counterpoint.data.formats.lerobot.writer import LeRobotWriter
from counterpoint.data.store import read_episode
from counterpoint.training.train import train
from tests.policies.demos import demonstrations


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("cloning", {"cloning.use_state": True, "cloning.hidden": 8}),
        ("diff_c-robosuite", {"use_state": True, "diffusion.down_dims": [8, 16], "diffusion.step_dim": 8}),
    ],
)
def test_a_recipe_trains_a_policy_without_cameras(recipe: str, settings: dict[str, Any], tmp_path: Path) -> None:
    store, data = demonstrations(3, size=64), tmp_path / "data"
    writer = LeRobotWriter(data, fps=10, cameras={"front": (64, 64)}, action_dim=2, state_dim=3, robot_type="square")
    for episode in range(3):
        writer.add_episode(read_episode(store, episode))
    writer.finalize({"train": "0:3"})
    blind = {"encoder.kind": "none", "encoder.cameras": 0, "data.cache": str(tmp_path / "cache")}
    loop: dict[str, Any] = {"train.steps": 2, "train.epochs": None, "train.batch_size": 4, "train.trackers": []}
    train(recipe, data, tmp_path / "run", overrides={**blind, **loop, **settings})
    policy = counterpoint.load(tmp_path / "run")
    actions = [policy.select_action({"state": np.full((2, 3), level, np.float32)}) for level in (0, 9)]
    assert actions[0].shape == (2, 2)
    assert np.isfinite(actions).all()
