"""Agents of this library in OGBench's own evaluation loop."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("utils.evaluation", reason="run by `make interchange-ogbench`, in an environment of its own")

import ogbench

from counterpoint.agents import SavedAgent
from counterpoint.cli.main import main
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.evaluation.rollout import evaluation_seeds, rollout

pytestmark = [pytest.mark.sim, pytest.mark.filterwarnings("ignore")]
DATASET = "pointmaze-medium-navigate"


class InOGBench:
    """An agent with the interface of OGBench's agents."""

    def __init__(self, run: Path) -> None:
        self.agent = SavedAgent.from_pretrained(run / "model").agent

    def sample_actions(self, observations: Any, goals: Any, seed: object = None, temperature: float = 0) -> Any:
        seen = {"observation": np.asarray(observations)[None], "desired_goal": np.asarray(goals)[None]}
        return self.agent.act(seen, rows=[0])[0]


def test_both_loops_measure_the_same_success(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    main(["collect", "ogbench", "--dataset", DATASET, "--episodes", "20", "--out", str(data)])
    words = ["train", "gcbc-ogbench", "--data", str(data / f"{DATASET}-v0.npz"), "--env", f"ogbench/{DATASET}"]
    words += ["--out", str(run), "--agent.hidden", "64", "64", "--train.steps", "500", "--train.batch-size", "256"]
    main([*words, "--data.eval-episodes", "5", "--train.eval-every", "500"])
    agent, env = InOGBench(run), ogbench.make_env_and_datasets(f"{DATASET}-v0", env_only=True)
    evaluate = import_module("utils.evaluation").evaluate
    np.random.seed(0)
    theirs = [
        evaluate(agent, env, task, {"discrete": False}, num_eval_episodes=20)[0]["success"] for task in range(1, 6)
    ]
    make = partial(make_goal_env, EnvConfig(name=f"ogbench/{DATASET}"))
    results = rollout(agent.agent, make, evaluation_seeds(0, 2, 100, tasks=5))
    ours = [np.mean([one.success for one in results if one.task == f"task{task}"]) for task in range(1, 6)]
    assert 0.01 < np.mean(theirs) < 0.99
    np.testing.assert_allclose(ours, theirs, atol=0.4)
    np.testing.assert_allclose(np.mean(ours), np.mean(theirs), atol=0.15)
