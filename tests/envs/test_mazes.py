from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.envs.goal.env import EnvConfig, GoalEnv, make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid

pytestmark = pytest.mark.sim

MAZES = ["PointMaze_UMaze-v3", "AntMaze_UMaze-v5"]


def made(name: str, **form: Any) -> GoalEnv:
    env = make_goal_env(EnvConfig(name=name, **form))
    assert isinstance(env, GoalEnv)
    return env


def inside(env: GoalEnv) -> Any:
    return env.unwrapped


@pytest.mark.parametrize(
    ("name", "width", "steps"),
    [
        ("PointMaze_UMaze-v3", 4, 300),
        ("PointMaze_Open-v3", 4, 300),
        ("PointMaze_Medium-v3", 4, 600),
        ("PointMaze_Large-v3", 4, 800),
        ("AntMaze_UMaze-v5", 29, 700),
        ("AntMaze_Medium-v5", 29, 1000),
        ("AntMaze_Large-v5", 29, 1000),
        ("AntMaze_Large_Diverse_GR-v5", 29, 1000),
        pytest.param("AntMaze_UMaze-v4", 29, 700, marks=pytest.mark.filterwarnings("ignore::DeprecationWarning")),
    ],
)
def test_observations_begin_with_the_position(name: str, width: int, steps: int) -> None:
    env = made(name)
    seen, _ = env.reset(seed=0)
    assert seen["observation"].shape == (width,)
    np.testing.assert_array_equal(seen["observation"][:2], seen["achieved_goal"])
    assert env.episode_steps == steps


@pytest.mark.parametrize("name", MAZES)
def test_the_goal_state_is_the_start_of_an_episode_moved_to_the_goal(name: str) -> None:
    env = made(name, goals="state")
    for seed in range(5):
        seen, _ = env.reset(seed=seed)
        start, goal = seen["observation"], seen["desired_goal"]
        np.testing.assert_allclose(goal[:2], inside(env).goal, rtol=1e-6)
        np.testing.assert_array_equal(goal[2:], start[2:])


def test_reaching_the_goal_neither_ends_an_episode_nor_moves_the_goal() -> None:
    env = made("PointMaze_UMaze-v3", max_episode_steps=40, goal_cells=((1, 1),), start_cells=((1, 2),))
    seen, _ = env.reset(seed=1)
    goal, successes = seen["desired_goal"], 0
    for step in range(40):
        pull = 10 * (goal - seen["observation"][:2]) - seen["observation"][2:]
        seen, _, terminated, truncated, info = env.step(np.clip(pull, -1, 1).astype(np.float32))
        assert not terminated
        assert truncated == (step == 39)
        np.testing.assert_array_equal(seen["desired_goal"], goal)
        successes += info["is_success"]
    assert successes > 10


@pytest.mark.parametrize("name", MAZES)
def test_cells_say_where_episodes_begin_and_lead(name: str) -> None:
    env = made(name, start_cells=((1, 1), (1, 3)), goal_cells=((3, 1),))
    grid = MazeGrid.of(env)
    starts, again = set(), made(name, start_cells=((1, 1), (1, 3)), goal_cells=((3, 1),))
    for seed in range(12):
        seen, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(seen["observation"], again.reset(seed=seed)[0]["observation"])
        starts.add(grid.cell_of(seen["achieved_goal"]))
        assert grid.cell_of(seen["desired_goal"]) == (3, 1)
    assert starts == {(1, 1), (1, 3)}
    seen, _ = env.reset(seed=0, options={"goal_cell": np.array([3, 3])})  # a caller's own wish comes first
    assert grid.cell_of(seen["desired_goal"]) == (3, 3)


@pytest.mark.parametrize("name", MAZES)
def test_drawing_leaves_the_dynamics_bit_identical(name: str) -> None:
    plain, drawing = made(name), made(name, observations="image", image_size=36)
    rng = np.random.default_rng(0)
    for env in (plain, drawing):
        env.reset(seed=0)
    for _ in range(40):
        action = rng.uniform(-1, 1, plain.action_space.shape or ()).astype(np.float32)
        for env in (plain, drawing):
            env.step(action)
        assert np.array_equal(inside(plain).data.qpos, inside(drawing).data.qpos)
        assert np.array_equal(inside(plain).data.qvel, inside(drawing).data.qvel)
    drawing.close()


def test_pictures_show_the_ball_where_it_is_and_not_where_it_was() -> None:
    env = made("PointMaze_UMaze-v3", observations="image")
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        for picture, point in ((seen["observation"], inside(env).data.qpos), (seen["desired_goal"], inside(env).goal)):
            assert np.linalg.norm(_green(env, picture) - point) < 0.1
        for _ in range(6):
            seen, *_ = env.step(np.array([0.5, 0.3], np.float32))
            data = inside(env).data
            assert np.linalg.norm(_green(env, seen["observation"]) - data.qpos) < 0.1
            # A step of 10 ms is less than a pixel: so look at what is drawn as well.
            np.testing.assert_array_equal(data.body("particle").xpos[:2], data.qpos)
    env.close()


def _green(env: GoalEnv, picture: Any) -> Any:
    """The middle of the ball in a picture from above, in metres."""
    colours = picture.astype(float)
    excess = np.clip(colours[..., 1] - np.maximum(colours[..., 0], colours[..., 2]), 0, None)
    rows, columns = np.indices(excess.shape) + 0.5
    weight = excess.sum()
    assert weight > 0
    middle = np.array([(columns * excess).sum(), (rows * excess).sum()]) / weight
    view = env.task.view
    assert view is not None
    metres = 2 * np.tan(np.radians(22.5)) * view.distance / picture.shape[0]
    return (middle - picture.shape[0] / 2) * metres * [1, -1]


def test_no_model_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in MAZES:
        made(name).close()
    assert list(tmp_path.iterdir()) == []
