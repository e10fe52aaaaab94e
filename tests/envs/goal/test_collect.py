from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.episode import GoalEpisode
from counterpoint.envs.collect import summary
from counterpoint.envs.goal import collect
from counterpoint.envs.goal.collect import (
    PointMazeCollect,
    collect_pointmaze,
    evaluation_env,
    joining_episodes,
    refuse_joined,
)
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import Cell, MazeGrid, WaypointController, plan_stitching
from counterpoint.errors import BadInputError
from tests.envs.goal.test_mazes import U, mazes, path

pytestmark = pytest.mark.sim


def passing(grid: MazeGrid, cells: list[Cell]) -> GoalEpisode:
    points = np.stack([grid.centre(cell) for cell in cells]).astype(np.float32)
    steps = len(cells) - 1
    return GoalEpisode(
        observations=points,
        achieved=points,
        commanded=points[-1],
        actions=np.zeros((steps, 2), np.float32),
        rewards=np.zeros(steps, np.float32),
    )


def beside(cell: Cell) -> set[Cell]:
    row, column = cell
    return {(row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)}


@given(mazes(), st.integers(2, 4), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_every_way_from_first_to_last_leaves_every_part(grid: MazeGrid, count: int, overlap: int) -> None:
    try:
        plan = plan_stitching(grid, parts=count, overlap=overlap)
    except BadInputError:  # too small to cut
        return
    parts = [set(part) for part in plan.parts]
    assert len(parts) == count
    assert plan.start in plan.starts
    assert plan.goal in plan.goals
    for number, part in enumerate(parts):
        # Each hangs together, shares cells with its neighbours alone, and has some of its own.
        assert set(grid.distances(plan.parts[number][0], part)) == part
        others = [part & other for place, other in enumerate(parts) if place != number]
        assert [bool(shared) for shared in others] == [
            abs(place - number) == 1 for place in range(count) if place != number
        ]
        assert part - set().union(*(other for other in parts if other is not part))
        assert joining_episodes([passing(grid, list(part) * 2)], grid, plan) == []
    assert set(plan.starts) == parts[0] - parts[1]
    for goal in plan.goals:
        assert not ({goal} | beside(goal)) & parts[-2]
    if count == 2:  # without the overlap, no way leads from the one to the other
        assert plan.goal not in grid.distances(plan.start, set(grid.free) - (parts[0] & parts[1]))
    whole = passing(grid, path(grid, plan.start, plan.goal))
    assert joining_episodes([passing(grid, [plan.start] * 2), whole], grid, plan) == [1]


def test_a_joining_trajectory_is_named() -> None:
    plan = plan_stitching(U)
    fine, joined = passing(U, [(1, 1), (1, 2), (1, 3)]), passing(U, path(U, (1, 2), (3, 2)))
    refuse_joined([fine, fine], U, plan)
    with pytest.raises(BadInputError, match="episode 2: found a trajectory that no part contains"):
        refuse_joined([fine, fine, joined], U, plan)


def small(out: Path, **settings: Any) -> PointMazeCollect:
    return PointMazeCollect.model_validate({"out": out, "episodes": 6, "val_episodes": 2, "steps": 150, **settings})


def read(folder: Path) -> list[Any]:
    minari = pytest.importorskip("minari")
    return list(minari.MinariDataset(folder / "data"))


def grid_of(config: PointMazeCollect) -> MazeGrid:
    return MazeGrid.of(make_goal_env(EnvConfig(name=config.env_id)))


def test_what_is_recorded_is_what_the_simulator_did(tmp_path: Path) -> None:
    config = small(tmp_path / "data")
    assert collect_pointmaze(config) == tmp_path / "data"
    assert len(read(config.out / "val")) == 2
    episodes = read(config.out / "train")
    assert len(episodes) == 6
    env = make_goal_env(EnvConfig(name=config.env_id))
    simulated: Any = env.unwrapped
    for episode in episodes:
        seen, goals = episode.observations["observation"], episode.observations["achieved_goal"]
        commanded = episode.observations["desired_goal"]
        assert seen.shape == (151, 4)
        assert episode.actions.shape == (150, 2)
        assert np.abs(episode.actions).max() <= 1
        np.testing.assert_array_equal(seen[:, :2], goals)
        assert (commanded == commanded[0]).all()
        near = np.linalg.norm(goals[1:] - commanded[1:], axis=1) < 0.45
        np.testing.assert_array_equal(episode.rewards, near)
        assert list(episode.truncations) == [False] * 149 + [True]
        assert not episode.terminations.any()
        env.reset(seed=0)
        simulated.point_env.set_state(seen[0, :2].astype(float), seen[0, 2:].astype(float))
        for step, action in enumerate(episode.actions[:40]):
            followed, *_ = env.step(action)
            np.testing.assert_allclose(followed["observation"], seen[step + 1], atol=1e-3)
    assert np.mean([episode.rewards.any() for episode in episodes]) > 0.5


@pytest.mark.slow
def test_the_seed_decides_the_data(tmp_path: Path) -> None:
    recorded = [
        [episode.observations["observation"] for episode in read(collect_pointmaze(config) / "train")]
        for config in (
            small(tmp_path / "a"),
            small(tmp_path / "b", episodes=4, val_episodes=0),
            small(tmp_path / "c", seed=1),
        )
    ]
    assert all(np.array_equal(one, other) for one, other in zip(recorded[0], recorded[1], strict=False))
    assert not any(np.array_equal(one, other) for one, other in zip(recorded[0], recorded[2], strict=True))
    assert not (tmp_path / "b" / "val").exists()


@pytest.mark.slow
@pytest.mark.parametrize("maze", ["UMaze", "Medium", "Large"])
def test_stitching_data_join_nothing_and_are_evaluated_across(tmp_path: Path, maze: str) -> None:
    parts = 2 if maze == "UMaze" else 3
    config = small(tmp_path / "data", maze=maze, suite="stitch", parts=parts, episodes=24)
    collect_pointmaze(config)
    grid = grid_of(config)
    plan = plan_stitching(grid, parts=parts)
    visited: list[set[Cell]] = [set() for _ in plan.parts]
    for number, episode in enumerate(read(config.out / "train")):
        cells, part = set(grid.cells_of(episode.observations["achieved_goal"])), plan.parts[number % parts]
        assert cells <= set(part)
        assert grid.cell_of(episode.observations["desired_goal"][0]) in part
        visited[number % parts] |= cells
    assert all(one & other for one, other in pairwise(visited))  # they meet
    evaluated = EnvConfig.model_validate(json.loads((config.out / "collect.json").read_text())["evaluation"])
    assert evaluated == evaluation_env(config)
    env = make_goal_env(evaluated)
    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        assert grid.cell_of(seen["achieved_goal"]) in plan.starts
        assert grid.cell_of(seen["desired_goal"]) in plan.goals


def joining(config: PointMazeCollect, grid: MazeGrid) -> list[int]:
    episodes = [passing_of(episode) for episode in read(collect_pointmaze(config) / "train")]
    return joining_episodes(episodes, grid, plan_stitching(grid, parts=config.parts, overlap=config.overlap))


def passing_of(episode: Any) -> GoalEpisode:
    seen = episode.observations
    return GoalEpisode(
        observations=seen["observation"],
        achieved=seen["achieved_goal"],
        commanded=seen["desired_goal"][0],
        actions=episode.actions,
        rewards=episode.rewards,
    )


def dropped(config: PointMazeCollect) -> int:
    return int(json.loads((config.out / "collect.json").read_text())["dropped"])


@pytest.mark.slow
def test_actions_that_repeat_are_recorded_and_evaluated_alike(tmp_path: Path) -> None:
    config = small(tmp_path / "data", suite="stitch", repeat=5, steps=40)
    collect_pointmaze(config)
    assert all(len(episode.actions) == 40 for episode in read(config.out / "train"))
    env = make_goal_env(evaluation_env(config))
    assert env.get_wrapper_attr("episode_steps") == 300 / 5
    controller, (seen, _) = WaypointController(grid_of(config)), env.reset(seed=0)
    over, info = False, {"is_success": False}
    while not over:
        seen, _, _, over, info = env.step(controller.action(seen["observation"], seen["desired_goal"]))
    assert info["is_success"]


@pytest.mark.slow
def test_the_other_suite_does_join(tmp_path: Path) -> None:
    config = small(tmp_path / "data", episodes=12)
    assert joining(config, grid_of(config))
    assert dropped(config) == 0
    assert evaluation_env(config) == EnvConfig(name="PointMaze_UMaze-v3")


@pytest.mark.slow
def test_episodes_that_stray_are_recorded_anew(tmp_path: Path) -> None:
    config = small(tmp_path / "data", maze="Open", suite="stitch", overlap=0, noise=5.0, episodes=20)
    assert joining(config, grid_of(config)) == []
    assert dropped(config) > 0
    assert summary(config.out).startswith(f"22 episodes, {dropped(config)} failed ones dropped")


@pytest.mark.slow
def test_a_controller_that_never_stays_in_its_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._MazeCollection, "attempts", 4)
    with pytest.raises(BadInputError, match="noise: found 4 scenes of PointMaze_Open-v3 in a row"):
        collect_pointmaze(small(tmp_path / "data", maze="Open", suite="stitch", overlap=0, noise=1000.0, steps=2000))


@pytest.mark.slow
def test_two_workers_record_the_same_as_one(tmp_path: Path) -> None:
    one, two = (
        read(collect_pointmaze(small(tmp_path / str(workers), suite="stitch", workers=workers)) / "train")
        for workers in (1, 2)
    )
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(left.observations["observation"], right.observations["observation"])
        np.testing.assert_array_equal(left.actions, right.actions)


def test_the_same_again_is_left_alone_and_another_refused(tmp_path: Path) -> None:
    config = small(tmp_path / "data", episodes=1, val_episodes=0, steps=10)
    collect_pointmaze(config)
    stamp = (config.out / "collect.json").stat().st_mtime_ns
    collect_pointmaze(config)
    assert (config.out / "collect.json").stat().st_mtime_ns == stamp
    with pytest.raises(BadInputError, match=r"config\.noise = 0\.5; expected config\.noise = 0\.1"):
        collect_pointmaze(config.model_copy(update={"noise": 0.1}))
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadInputError, match="no data set of counterpoint collect"):
        collect_pointmaze(config.model_copy(update={"out": tmp_path / "mine"}))


def test_a_maze_that_cannot_be_cut_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="outside the overlap"):
        collect_pointmaze(small(tmp_path / "data", suite="stitch", overlap=3))
    assert list(tmp_path.iterdir()) == []


def _crash(*_: Any, **__: Any) -> None:
    """End the process as HDF5 does when the disk is full."""
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.slow
def test_a_data_set_that_could_not_be_written_is_finished_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "data", episodes=1, val_episodes=0, steps=5)
    monkeypatch.setattr(collect, "write_minari", _crash)
    with pytest.raises(BadInputError, match=r"train: found a crash .* expected a disk with room"):
        collect_pointmaze(config)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["data.partial"]
    assert len(read(collect_pointmaze(config) / "train")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
