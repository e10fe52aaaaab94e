from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.envs.goal.env import EnvConfig, GoalEnv, make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.envs.goal.tasks import FETCH_TASKS
from counterpoint.envs.rendering import View, import_robotics
from tests.marks import quick

pytestmark = pytest.mark.sim


TASKS = list(FETCH_TASKS)


def fetch(task: str, **form: Any) -> GoalEnv:
    env = make_goal_env(EnvConfig(name=f"{task}-v4", **form))
    assert isinstance(env, GoalEnv)
    return env


def inside(env: gymnasium.Env[Any, Any]) -> Any:
    return env.unwrapped


def in_frame(view: View, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where points [N, 3] lie in an image of 45 degrees: [N, 2], -1 and 1 at its edges."""
    turn, rise = np.radians([view.azimuth, view.elevation])
    forward = np.array([np.cos(rise) * np.cos(turn), np.cos(rise) * np.sin(turn), np.sin(rise)])
    right = np.array([np.sin(turn), -np.cos(turn), 0.0])
    up = np.cross(right, forward)
    offset = points - (np.array(view.lookat) - view.distance * forward)
    depth = offset @ forward * np.tan(np.radians(22.5))
    return np.stack([offset @ right / depth, offset @ up / depth], axis=-1)


@pytest.mark.parametrize("task", quick(["FetchReach", "FetchPush"], TASKS))
def test_the_goal_state_reaches_the_goal_at_rest(task: str) -> None:
    env = fetch(task, goals="state")
    for seed in range(12):
        seen, info = env.reset(seed=seed)
        state, goal = seen["desired_goal"], inside(env).goal
        slot = slice(0, 3) if task == "FetchReach" else slice(3, 6)
        # The gripper cannot reach every FetchReach goal to the millimetre: some lie in the table.
        assert np.linalg.norm(state[slot] - goal) < (0.04 if task == "FetchReach" else 1e-3)
        velocities = state[5:] if task == "FetchReach" else state[14:]
        np.testing.assert_allclose(velocities, 0, atol=1e-6)
        assert not info["is_success"] or info["distance"] < 0.05  # the episode itself begins where it did


@pytest.mark.parametrize("task", quick(["FetchPickAndPlace"], TASKS))
def test_the_goal_state_lasts(task: str) -> None:
    env = fetch(task, goals="state")
    for seed in range(8):
        env.reset(seed=seed)
        env.task.stand_at_goal()
        for _ in range(15):
            *_, info = env.step(np.array([0, 0, 0, -1], np.float32))  # still, fingers closing
        assert info["is_success"]


@pytest.mark.slow
def test_the_gripper_is_where_each_task_leaves_it() -> None:
    for seed in range(6):
        push = fetch("FetchPush", goals="state")
        state = push.reset(seed=seed)[0]["desired_goal"]
        np.testing.assert_allclose(state[:3] - state[3:6], [0, 0, 0.06], atol=5e-3)
        place = fetch("FetchPickAndPlace", goals="state")
        state = place.reset(seed=seed)[0]["desired_goal"]
        np.testing.assert_allclose(state[:3], state[3:6], atol=5e-3)
        np.testing.assert_allclose(state[9:11], 0.024, atol=1e-6)  # both fingers touch the block
        slide = fetch("FetchSlide", goals="state")
        seen, _ = slide.reset(seed=seed)
        np.testing.assert_array_equal(seen["desired_goal"][:3], seen["observation"][:3])


@pytest.mark.parametrize(
    ("task", "above"), [("FetchPush", 0.06), pytest.param("FetchPickAndPlace", 0.0, marks=pytest.mark.slow)]
)
def test_an_object_near_its_goal_is_not_in_the_way(task: str, above: float) -> None:
    env, plain = fetch(task, goals="state"), fetch(task)
    near = [seed for seed in range(400) if plain.reset(seed=seed)[1]["distance"] < 0.03]
    assert near
    for seed in near:
        state = env.reset(seed=seed)[0]["desired_goal"]
        np.testing.assert_allclose(state[:3] - state[3:6], [0, 0, above], atol=5e-3)


@pytest.mark.parametrize("task", quick(["FetchPush"], TASKS))
def test_looking_at_the_goal_leaves_the_dynamics_bit_identical(task: str) -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (30, 4)).astype(np.float32)
    plain = fetch(task)
    for form in ({"goals": "state"}, {"observations": "image", "image_size": 36}):
        looking = fetch(task, **form)
        for seed in (0, 1):
            for env in (plain, looking):
                env.reset(seed=seed)
            for action in actions:
                for env in (plain, looking):
                    env.step(action)
                one, other = inside(plain).data, inside(looking).data
                assert np.array_equal(one.qpos, other.qpos)
                assert np.array_equal(one.qvel, other.qvel)
                assert np.array_equal(
                    inside(plain)._get_obs()["observation"], inside(looking)._get_obs()["observation"]
                )
        looking.close()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_camera_sees_where_tasks_begin_and_end(task: str) -> None:
    env = fetch(task)
    points = []
    for seed in range(150):
        seen, _ = env.reset(seed=seed)
        points += [seen["achieved_goal"], seen["desired_goal"]]
    view = FETCH_TASKS[task].view
    assert view is not None
    assert np.abs(in_frame(view, np.stack(points).astype(np.float64))).max() < 1


def test_a_robot_that_has_reached_the_goal_looks_like_its_goal_image() -> None:
    env = fetch("FetchReach", observations="image")
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        start, goal = seen["observation"].astype(int), seen["desired_goal"].astype(int)
        for _ in range(30):
            offset = inside(env).goal - inside(env).data.site("robot0:grip").xpos
            seen, _, _, _, info = env.step(np.append(np.clip(offset / 0.05, -1, 1), 0).astype(np.float32))
        assert info["is_success"]
        assert np.abs(seen["observation"] - goal).mean() < 0.1 * np.abs(start - goal).mean()
    env.close()


@pytest.mark.parametrize("task", quick(["FetchPush"], TASKS[1:]))
def test_the_goal_image_shows_the_object_at_the_goal_and_no_mark(task: str) -> None:
    env = fetch(task, observations="image")
    seen, _ = env.reset(seed=5)
    model = inside(env).model
    assert model.site_rgba[model.site("target0").id, 3] == 0
    assert seen["desired_goal"].dtype == np.uint8
    view = FETCH_TASKS[task].view
    assert view is not None
    x, y = in_frame(view, inside(env).goal[None])[0]
    row, column = int((1 - y) * 32), int((1 + x) * 32)
    around = (slice(max(row - 3, 0), row + 4), slice(max(column - 3, 0), column + 4))
    assert seen["desired_goal"][around].min() < 60  # the object is nearly black, the table white
    env.close()


@pytest.mark.parametrize("task", TASKS)
def test_a_fetch_episode_is_that_of_gymnasium_robotics(task: str) -> None:
    """Observations, which are read without looking joints up, equal the original's to the bit."""
    gymnasium.register_envs(import_robotics())
    original, ours = gymnasium.make(f"{task}-v4"), make_goal_env(EnvConfig(name=f"{task}-v4"))
    rng = np.random.default_rng(0)
    expected, found = original.reset(seed=3)[0], ours.reset(seed=3)[0]
    for _ in range(20):
        for key in found:
            np.testing.assert_array_equal(found[key], expected[key].astype(np.float32))
        action = rng.uniform(-1, 1, 4).astype(np.float32)
        expected, found = original.step(action)[0], ours.step(action)[0]
    ours.close()
    original.close()


def test_zero_padding_puts_coordinates_where_the_authors_do() -> None:
    for task, slots in (("FetchReach", [(0, 3)]), ("FetchPush", [(0, 3), (3, 6)])):
        env = fetch(task, goals="state_zero_padded")
        seen, _ = env.reset(seed=2)
        expected = np.zeros_like(seen["observation"])
        for first, last in slots:
            expected[first:last] = inside(env).goal
        np.testing.assert_array_equal(seen["desired_goal"], expected)
        np.testing.assert_array_equal(seen["achieved_goal"], seen["observation"])


MAZES = ["PointMaze_UMaze-v3", "AntMaze_UMaze-v5"]


def maze(name: str, **form: Any) -> GoalEnv:
    env = make_goal_env(EnvConfig(name=name, **form))
    assert isinstance(env, GoalEnv)
    return env


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
    env = maze(name)
    seen, _ = env.reset(seed=0)
    assert seen["observation"].shape == (width,)
    np.testing.assert_array_equal(seen["observation"][:2], seen["achieved_goal"])
    assert env.episode_steps == steps


@pytest.mark.parametrize("name", MAZES)
def test_the_goal_state_is_the_start_of_an_episode_moved_to_the_goal(name: str) -> None:
    env = maze(name, goals="state")
    for seed in range(5):
        seen, _ = env.reset(seed=seed)
        start, goal = seen["observation"], seen["desired_goal"]
        np.testing.assert_allclose(goal[:2], inside(env).goal, rtol=1e-6)
        np.testing.assert_array_equal(goal[2:], start[2:])


def test_reaching_the_goal_neither_ends_an_episode_nor_moves_the_goal() -> None:
    env = maze("PointMaze_UMaze-v3", max_episode_steps=40, goal_cells=((1, 1),), start_cells=((1, 2),))
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
    env = maze(name, start_cells=((1, 1), (1, 3)), goal_cells=((3, 1),))
    grid = MazeGrid.of(env)
    starts, again = set(), maze(name, start_cells=((1, 1), (1, 3)), goal_cells=((3, 1),))
    for seed in range(12):
        seen, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(seen["observation"], again.reset(seed=seed)[0]["observation"])
        starts.add(grid.cell_of(seen["achieved_goal"]))
        assert grid.cell_of(seen["desired_goal"]) == (3, 1)
    assert starts == {(1, 1), (1, 3)}
    seen, _ = env.reset(seed=0, options={"goal_cell": np.array([3, 3])})  # a caller's own wish comes first
    assert grid.cell_of(seen["desired_goal"]) == (3, 3)


@pytest.mark.parametrize("name", quick(["PointMaze_UMaze-v3"], MAZES))
def test_drawing_leaves_the_dynamics_bit_identical(name: str) -> None:
    plain, drawing = maze(name), maze(name, observations="image", image_size=36)
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


def test_images_show_the_ball_where_it_is_and_not_where_it_was() -> None:
    env = maze("PointMaze_UMaze-v3", observations="image")
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        for image, point in ((seen["observation"], inside(env).data.qpos), (seen["desired_goal"], inside(env).goal)):
            assert np.linalg.norm(_green(env, image) - point) < 0.1
        for _ in range(6):
            seen, *_ = env.step(np.array([0.5, 0.3], np.float32))
            data = inside(env).data
            assert np.linalg.norm(_green(env, seen["observation"]) - data.qpos) < 0.1
            # A step of 10 ms is less than a pixel: so look at what is drawn as well.
            np.testing.assert_array_equal(data.body("particle").xpos[:2], data.qpos)
    env.close()


def _green(env: GoalEnv, image: Any) -> Any:
    """The middle of the ball in an image from above, in metres."""
    colours = image.astype(float)
    excess = np.clip(colours[..., 1] - np.maximum(colours[..., 0], colours[..., 2]), 0, None)
    rows, columns = np.indices(excess.shape) + 0.5
    weight = excess.sum()
    assert weight > 0
    middle = np.array([(columns * excess).sum(), (rows * excess).sum()]) / weight
    view = env.task.view
    assert view is not None
    metres = 2 * np.tan(np.radians(22.5)) * view.distance / image.shape[0]
    return (middle - image.shape[0] / 2) * metres * [1, -1]


def test_no_model_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in MAZES:
        maze(name).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["FetchSlide", pytest.param("FetchReach", marks=pytest.mark.slow)])
def test_every_frame_of_a_video_has_the_goal_s_ball_at_the_goal_and_no_other_mark(task: str) -> None:
    """The first frame too: after a reset the simulator's own marks are elsewhere than after a step."""
    env = fetch(task)
    still, corner = np.zeros(4, np.float32), np.s_[:, :25] if task == "FetchReach" else np.s_[:20]
    places = []
    for seed in (0, 1):
        seen, _ = env.reset(seed=seed)
        frames = [env.render(), *(env.step(still) and env.render() for _ in range(3))]
        (across, up), edge = in_frame(FETCH_TASKS[task].view, seen["desired_goal"]), 239 / 2
        expected = np.array([edge - up * edge, edge + across * edge])
        for frame in frames:
            red = (frame[..., 0] > 150) & (frame[..., 1:].max(axis=-1) < 60)
            np.testing.assert_allclose(np.argwhere(red).mean(axis=0), expected, atol=3)
            assert (frame[corner] != frames[0][corner]).mean() < 0.01
        places.append(expected)
    assert np.abs(places[0] - places[1]).max() > 10
    image = fetch(task, observations="image").reset(seed=0)[0]["observation"]
    assert not ((image[..., 0] > 150) & (image[..., 1:].max(axis=-1) < 60)).any()
