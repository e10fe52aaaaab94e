from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.cli import main
from counterpoint.data.transitions import GoalMix
from counterpoint.envs.goal.env import EnvConfig, make_goal_env, spaces_of
from counterpoint.errors import BadInputError
from counterpoint.training.recipe import load_recipe
from tests.formats.test_ogbench import write_ogbench
from tests.marks import quick

pytest.importorskip("ogbench")
pytestmark = pytest.mark.sim

MEDIUM = EnvConfig(name="ogbench:pointmaze-medium-v0")
METHODS = ("gcbc", "gcivl", "gciql", "qrl", "crl", "hiql", "td_infonce")


def test_the_seed_decides_task_start_and_goal_and_nothing_else_changes() -> None:
    env, simulated = make_goal_env(MEDIUM), make_goal_env(MEDIUM)
    np.random.seed(7)
    before, tasks = np.random.get_state(legacy=False)["state"]["key"].copy(), set()
    for seed in range(20):
        seen, info = env.reset(seed=seed)
        again, _ = simulated.reset(seed=seed)
        for key in ("observation", "achieved_goal", "desired_goal"):
            np.testing.assert_array_equal(seen[key], again[key])
        assert not info["is_success"]
        maze: Any = env.unwrapped
        assert maze.cur_task_id == seed % 5 + 1
        assert info["task"] == f"task{maze.cur_task_id}"
        tasks.add(maze.cur_task_id)
        start, goal = (maze.cur_task_info[key] for key in ("init_xy", "goal_xy"))
        assert np.abs(seen["observation"] - start).max() <= 1 + 1e-5  # noise of a quarter of a cell
        assert np.abs(seen["desired_goal"] - goal).max() <= 1 + 1e-5
    assert tasks == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(before, np.random.get_state(legacy=False)["state"]["key"])


def test_an_episode_ends_at_the_goal_so_that_success_is_success_at_the_end() -> None:
    env, found = make_goal_env(MEDIUM), set()
    for offset in ((0.0, 0.0), (0.7, 0.0), (0.0, -0.7), (1.3, 0.0), (-1.3, 0.0), (0.0, 1.3), (0.0, -1.3)):
        seen, _ = env.reset(seed=3)
        maze: Any = env.unwrapped
        maze.set_xy(seen["desired_goal"] + np.array(offset))
        _, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        reached = info["distance"] <= 1.0
        assert (info["is_success"], reward, terminated, truncated) == (reached, float(reached), reached, False)
        found.add(reached)
    assert found == {True, False}


def test_the_recipes_have_ogbench_s_protocol() -> None:
    for method in METHODS:
        recipe: Any = load_recipe(f"{method}-ogbench", {})
        assert recipe.env.name == "ogbench:cube-single-v0"
        assert (recipe.train.steps, recipe.train.batch_size, recipe.data.eval_episodes) == (1_000_000, 1024, 250)
        assert recipe.agent.hidden == (512, 512, 512)
        assert recipe.agent.actor_goals == GoalMix(future=1.0, geometric=False)
    env: Any = make_goal_env(MEDIUM)
    assert env.episode_steps == 1000
    assert len(env.unwrapped.task_infos) == 5


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ogbench/cube-single-play", "ogbench:cube-single-v0"),
        ("ogbench/pointmaze-medium-stitch-v0", "ogbench:pointmaze-medium-v0"),
        ("FetchReach-v4", "FetchReach-v4"),
    ],
)
def test_the_name_of_a_data_set_stands_for_its_environment(name: str, env: str) -> None:
    assert EnvConfig(name=name).name == env


def test_a_misspelt_data_set_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BadInputError, match=r"cube-singel-v0.*no such environment.*cube-single-v0"):
        make_goal_env(EnvConfig(name="ogbench/cube-singel-play"))
    with pytest.raises(ValueError, match=r"ends in one of navigate, .*, noisy; did you mean 'stitch'"):
        EnvConfig(name="ogbench/pointmaze-medium-stich")


def test_a_task_can_be_chosen() -> None:
    env: Any = make_goal_env(MEDIUM.model_copy(update={"task": 3}))
    for seed in range(3):
        env.reset(seed=seed)
        assert env.unwrapped.cur_task_id == 3
    with pytest.raises(BadInputError, match=r"env.task: found 6; expected 1 to 5"):
        make_goal_env(MEDIUM.model_copy(update={"task": 6}))
    with pytest.raises(BadInputError, match="only OGBench's environments have tasks"):
        make_goal_env(EnvConfig(name="FetchReach-v4", task=1))


def trained(method: str, folder: Path) -> Path:
    """Train two steps on a file of OGBench's form, with an evaluation of ten short episodes."""
    data, run = folder / "pointmaze-medium-stitch-v0.npz", folder / "run"
    write_ogbench(data, (20, 20))
    assert spaces_of(make_goal_env(MEDIUM)).goal == (2,)
    small = {
        "agent.hidden": 16,
        "train.steps": 2,
        "train.batch-size": 8,
        "train.eval-every": 2,
        "data.eval-episodes": 10,
        "data.eval-envs": 1,
        "env.name": MEDIUM.name,
        "env.max-episode-steps": 5,
    }
    words = [word for key, value in small.items() for word in (f"--{key}", str(value))]
    main(["train", f"{method}-ogbench", "--data", str(data), "--out", str(run), *words])
    return run


@pytest.mark.parametrize("method", quick(["hiql"], [one for one in METHODS if one != "td_infonce"]))
def test_a_file_as_it_is_trains_and_is_evaluated_in_its_maze(method: str, tmp_path: Path) -> None:
    run = trained(method, tmp_path)
    assert json.loads((run / "result.json").read_text())["success"]["n"] == 10


def test_an_evaluation_has_the_success_of_each_task(tmp_path: Path) -> None:
    run = trained("td_infonce", tmp_path)
    result = json.loads((run / "result.json").read_text())
    assert result["success"]["n"] == 10
    assert [result[f"task{number}_success"]["n"] for number in range(1, 6)] == [2, 2, 2, 2, 2]
    main(["evaluate", str(run), "--env", "ogbench/pointmaze-medium-stitch", "--episodes", "6", "--video", "1"])
    record = json.loads((run / "evaluation.json").read_text())
    assert [episode["task"] for episode in record["episodes"]] == ["task1", "task2", "task3", "task4", "task5", "task1"]
    assert (run / "videos" / "episode-000.mp4").exists()
