"""Gates of diffusion policies: what any of them must pass before one is compared with another."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.cli import main
from counterpoint.envs.collect import collected_about
from counterpoint.evaluation.evaluate import task_maker
from counterpoint.evaluation.rollout import rollout
from counterpoint.formats import open_dataset
from counterpoint.policies.diffusion_policy import DiffusionPolicy

pytestmark = [
    pytest.mark.sim,
    pytest.mark.release,
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


def test_one_demonstration_learnt_by_heart_is_reproduced(tmp_path: Path) -> None:
    run = trained(tmp_path, 1, 500)
    assert last(run, "seen")["action_error"] < 0.1
    policy = DiffusionPolicy.from_pretrained(run)
    demonstration = open_dataset(tmp_path / "lift", split="train")
    (seed, *_) = (collected_about(tmp_path / "lift") or {})["episodes"]["seed"]
    make, _ = task_maker(policy, "robosuite/Lift")
    (result,) = rollout(policy, make, [seed], stop_at_success=True)
    assert result.success
    assert abs(result.steps - demonstration.episodes[0].length) <= 10
    env = make()
    observation, _ = env.reset(seed=seed)
    hands = [observation["state"][:3]]
    policy.reset([0], [seed])
    for _ in range(result.steps - 1):
        action = policy.act({key: value[None] for key, value in observation.items()}, rows=[0])[0]
        observation = env.step(action)[0]
        hands.append(observation["state"][:3])
    state = demonstration.state(0)
    assert state is not None
    shared = min(len(hands), len(state))
    assert np.linalg.norm(np.stack(hands)[:shared] - state[:shared, :3], axis=1).max() < 0.03  # metres
