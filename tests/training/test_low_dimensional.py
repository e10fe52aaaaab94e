"""Recipes train policies of states alone: an encoder of kind "none" sees no camera."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoint
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.training.train import train
from tests.data.reading import read_episode
from tests.policies.demos import demonstrations


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("cloning", {"cloning.use_state": True, "cloning.hidden": 8, "encoder.kind": "none", "encoder.cameras": 0}),
        ("diff_c-robosuite-state", {"diffusion.down_dims": [8, 16], "diffusion.step_dim": 8}),
    ],
)
def test_data_without_cameras_and_the_state_of_the_surroundings(
    recipe: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    store, data = demonstrations(4, size=16), tmp_path / "data"
    writer = LeRobotWriter(data, fps=10, cameras={}, action_dim=2, state_dim=3, environment_dim=1, robot_type="square")
    for number in range(4):
        episode = read_episode(store, number)
        assert episode.state is not None
        writer.add_episode(replace(episode, frames={}, environment_state=episode.state[:, :1] + 100))
    writer.finalize({"train": "0:3", "val": "3:4"})
    loop: dict[str, Any] = {"train.steps": 2, "train.batch_size": 4, "train.trackers": []}
    chosen = {"data.cache": str(tmp_path / "cache"), "data.state": ["environment_state", "state"]}
    run = train(recipe, data, tmp_path / "run", overrides={**loop, **settings, **chosen})
    policy = counterpoint.load(run.folder)
    assert policy.state_sources == {"environment_state": 1, "state": 3}
    usual = np.array([[5, 5, 7], [5, 5, 7]], np.float32)  # the mean of the demonstrations
    seen = {"state": usual, "environment_state": usual[:, :1] + 100}
    assert policy.act(seen, rows=[0, 1]).shape == (2, 2)
    assert policy.looks([0, 1]) == [False, False]
    with pytest.raises(BadInputError, match=r"environment_state: found shape None; expected \[1\]"):
        policy.act({"state": seen["state"]}, rows=[0, 1])
    moved = {"state": seen["state"], "environment_state": seen["environment_state"] + 0.5}
    policy.reset()
    first = policy.predict_action_chunk(seen)
    policy.reset()
    assert not np.array_equal(first, policy.predict_action_chunk(moved))


@pytest.mark.release
@pytest.mark.parametrize("learned", [0, pytest.param(400, marks=pytest.mark.slow)])
def test_the_error_of_sampled_actions_tells_a_policy_that_learned(learned: int, tmp_path: Path) -> None:
    """Of an episode learnt by heart it is small, of a fresh network and on an unseen episode large."""

    def demonstration(seed: int) -> MemoryStore:
        whole = read_episode(demonstrations(1, length=24, seed=seed), 0)
        return MemoryStore([replace(whole, state=np.linspace(0, 1, 24, dtype=np.float32)[:, None])])

    told = {}
    settings: dict[str, Any] = {
        "diffusion.down_dims": [32, 64],
        "data.state": ["state"],
        "optimizer.warmup_steps": 10,
        "optimizer.lr": 2e-3,
        "train.eval_every": 1000,
        "train.trackers": [],
    }
    for steps in filter(None, (1, learned)):
        run = train(
            "diff_c-robosuite-state",
            demonstration(0),
            tmp_path / str(steps),
            validation=demonstration(1),
            overrides={**settings, "train.steps": steps},
        )
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        told[steps] = {line["split"]: line for line in lines}
        assert {"action_error", "action_error/0", "action_error/1", "gripper_wrong"} <= told[steps]["seen"].keys()
        assert told[steps]["seen"].keys() == told[steps]["val"].keys()
        assert "action_error" not in told[steps]["train"]
    assert told[1]["seen"]["action_error"] > 0.5
    if learned:
        assert told[learned]["seen"]["action_error"] < 0.15
        assert told[learned]["seen"]["gripper_wrong"] < 0.05
        assert told[learned]["val"]["action_error"] > 0.3


def test_a_policy_that_reads_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="without cameras needs use_state"):
        train("diff_c-robosuite-state", demonstrations(2), tmp_path / "run", overrides={"use_state": False})
