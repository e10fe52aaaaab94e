from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.goal.mazes import Cell, MazeGrid, WaypointController, plan_stitching
from counterpoint.errors import BadInputError

U = MazeGrid(((1, 1, 1, 1, 1), (1, 0, 0, 0, 1), (1, 1, 1, 0, 1), (1, "g", 0, "r", 1), (1, 1, 1, 1, 1)))


@st.composite
def mazes(draw: st.DrawFn) -> MazeGrid:
    """Random cells inside a border of walls, at least one of them free."""
    height, width = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    inner = [[draw(st.sampled_from([0, 0, 1])) for _ in range(width)] for _ in range(height)]
    inner[0][0] = 0
    border = (1,) * (width + 2)
    return MazeGrid((border, *((1, *row, 1) for row in inner), border), draw(st.sampled_from([1.0, 4.0])))


def path(grid: MazeGrid, start: Cell, goal: Cell) -> list[Cell]:
    following, path = grid.next_cells(goal), [start]
    while path[-1] != goal:
        path.append(following[path[-1]])
    return path


def all_distances(grid: MazeGrid) -> dict[tuple[Cell, Cell], float]:
    """Floyd and Warshall's loops."""
    near = {
        (a, b): 0.0 if a == b else 1.0 if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 else np.inf
        for a, b in itertools.product(grid.free, repeat=2)
    }
    for middle, a, b in itertools.product(grid.free, repeat=3):
        near[a, b] = min(near[a, b], near[a, middle] + near[middle, b])
    return near


@given(mazes())
@settings(max_examples=60, deadline=None)
def test_distances_and_paths_are_shortest(grid: MazeGrid) -> None:
    truth = all_distances(grid)
    for start in grid.free:
        found = grid.distances(start)
        assert found == {cell: truth[start, cell] for cell in grid.free if truth[start, cell] < np.inf}
        for goal in found:
            way = path(grid, start, goal)
            assert way[0] == start
            assert way[-1] == goal
            assert len(way) == found[goal] + 1
            assert all(truth[one, other] == 1 for one, other in itertools.pairwise(way))


@given(mazes(), st.floats(-0.49, 0.49), st.floats(-0.49, 0.49))
@settings(max_examples=60, deadline=None)
def test_a_point_belongs_to_the_cell_it_lies_in(grid: MazeGrid, right: float, up: float) -> None:
    offset = np.array([right, up]) * grid.scale
    assert all(grid.cell_of(grid.centre(cell) + offset) == cell for cell in grid.free)
    centres = np.stack([grid.centre(cell) for cell in grid.free])
    assert tuple(grid.cells_of(centres + offset)) == grid.free


def test_marked_cells_are_free_and_paths_can_be_kept_within_some() -> None:
    assert (3, 1) in U.free
    assert len(path(U, (1, 1), (3, 1))) == 7
    assert (1, 1) not in U.next_cells((3, 1), within=[(1, 1), (1, 2), (3, 1)])


def test_the_controller_turns_corners_and_comes_back_from_where_it_may_not_be() -> None:
    controller = WaypointController(U)
    goal = U.centre((3, 1))
    np.testing.assert_array_equal(controller.waypoint(U.centre((1, 1)), goal), U.centre((1, 2)))
    np.testing.assert_array_equal(controller.waypoint(U.centre((1, 3)), goal), U.centre((2, 3)))
    np.testing.assert_array_equal(controller.waypoint(goal + 0.2, goal), goal)
    kept = WaypointController(U, [(3, 1), (3, 2)])
    np.testing.assert_array_equal(kept.waypoint(U.centre((2, 3)), goal), U.centre((3, 2)))


@pytest.mark.sim
@pytest.mark.parametrize("name", ["PointMaze_UMaze-v3", "PointMaze_Medium-v3", "PointMaze_Large-v3"])
def test_the_controller_reaches_every_goal_and_stays(name: str) -> None:
    env = make_goal_env(EnvConfig(name=name))
    grid = MazeGrid.of(env)
    simulated: Any = env.unwrapped
    for cell in grid.free:
        np.testing.assert_allclose(grid.centre(cell), simulated.maze.cell_rowcol_to_xy(np.array(cell)))
    controller = WaypointController(grid)
    for seed in range(6):
        seen, info = env.reset(seed=seed)
        way = len(path(grid, grid.cell_of(seen["achieved_goal"]), grid.cell_of(seen["desired_goal"])))
        for _ in range(30 * way):
            action = controller.act({key: value[None] for key, value in seen.items()}, rows=[0])[0]
            seen, _, _, _, info = env.step(action)
        assert info["distance"] < 0.1


@pytest.mark.sim
def test_what_is_no_maze_has_no_grid() -> None:
    with pytest.raises(BadInputError, match="PointMaze or AntMaze"):
        MazeGrid.of(make_goal_env(EnvConfig(name="FetchReach-v4")))


def test_the_u_is_cut_at_its_bend() -> None:
    plan = plan_stitching(U)
    assert (plan.start, plan.goal) == ((1, 1), (3, 1))
    near, far = map(set, plan.parts)
    assert near == {(1, 1), (1, 2), (1, 3), (2, 3), (3, 3)}
    assert far == {(1, 3), (2, 3), (3, 3), (3, 2), (3, 1)}
    assert set(plan.starts) == {(1, 1), (1, 2)}
    assert set(plan.goals) == {(3, 1)}  # (3, 2) touches the first part


@pytest.mark.parametrize(
    ("start", "goal", "overlap", "word"),
    [
        ((0, 0), None, 1, "a free cell"),
        ((1, 1), (2, 2), 1, "can be reached"),
        ((1, 1), (1, 3), 1, "outside the overlap"),
        (None, None, 3, "outside the overlap"),
    ],
)
def test_what_cannot_be_cut_is_told(start: Cell | None, goal: Cell | None, overlap: int, word: str) -> None:
    with pytest.raises(BadInputError, match=word):
        plan_stitching(U, start, goal, overlap=overlap)


def test_too_many_parts_are_told() -> None:
    with pytest.raises(BadInputError, match="4 parts"):
        plan_stitching(U, parts=4, overlap=0)
