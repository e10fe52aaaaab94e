from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.episode import GoalEpisode
from counterpoint.envs.goal.collect import joining_episodes, plan_stitching, refuse_joined
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.errors import BadInputError
from tests.envs.test_waypoints import U, mazes


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


def test_the_u_is_cut_at_its_bend() -> None:
    plan = plan_stitching(U)
    assert (plan.start, plan.goal) == ((1, 1), (3, 1))
    assert set(plan.near) == {(1, 1), (1, 2), (1, 3), (2, 3), (3, 3)}
    assert set(plan.far) == {(1, 3), (2, 3), (3, 3), (3, 2), (3, 1)}
    assert set(plan.overlap) == {(1, 3), (2, 3), (3, 3)}


@given(mazes(), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_every_way_from_start_to_goal_leaves_both_parts(grid: MazeGrid, overlap: int) -> None:
    try:
        plan = plan_stitching(grid, overlap=overlap)
    except BadInputError:  # too small to cut
        return
    near, far = set(plan.near), set(plan.far)
    assert plan.start in near - far
    assert plan.goal in far - near
    # Each part hangs together, and without the overlap the two do not.
    assert set(grid.distances(plan.start, near)) == near
    assert set(grid.distances(plan.goal, far)) == far
    assert plan.goal not in grid.distances(plan.start, set(grid.free) - set(plan.overlap))
    # No cell of one part alone touches a cell of the other alone, and the goal's neighbours are the far part's alone.
    for row, column in near - far:
        assert not {(row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)} & (far - near)
    row, column = plan.goal
    around = {(row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)} & set(grid.free)
    assert not around & near
    for part in (plan.near, plan.far):
        assert joining_episodes([passing(grid, list(part) * 2)], grid, plan) == []
    whole = passing(grid, grid.path(plan.start, plan.goal))
    assert joining_episodes([passing(grid, [plan.start] * 2), whole], grid, plan) == [1]


def test_a_joining_trajectory_is_named() -> None:
    plan = plan_stitching(U)
    fine, joined = passing(U, [(1, 1), (1, 2), (1, 3)]), passing(U, U.path((1, 2), (3, 2)))
    refuse_joined([fine, fine], U, plan)
    with pytest.raises(BadInputError, match="episode 2: found a trajectory that was on both sides"):
        refuse_joined([fine, fine, joined], U, plan)


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
