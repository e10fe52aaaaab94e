from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from counterpoint.data.transitions import Tail
from counterpoint.errors import BadInputError
from studies.gridworld import GridWorld
from studies.stitching.data import CORNER_PAIRS, LAYOUTS, Layout, Paths, Staircase, shortcut_data, staircase_data, walk

STYLES: tuple[Staircase, ...] = ("alternating", "random")
CORNERS = {0, 4, 20, 24}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(3))
def test_staircases_follow_the_grid_and_join_opposite_corners_only(style: Staircase, seed: int) -> None:
    data = staircase_data(style, 20_000, seed)
    assert data.transitions == 20_000
    for path in data.paths:
        assert all(
            data.grid.next_state[s, a] == after
            for (s, after), a in zip(pairwise(path.states), path.actions, strict=True)
        )
        assert len(path.actions) == 8
        assert CORNERS & set(path.states) == {path.states[0], path.states[-1]}
        assert path.states[0] + path.states[-1] == 24
        if style == "alternating":
            assert all(one != other for one, other in pairwise(path.actions))
    assert {path.states[0] for path in data.paths} == CORNERS
    assert len(data.paths) == 8 if style == "alternating" else len(data.paths) > 100


@pytest.mark.parametrize("style", STYLES)
def test_pairs_lie_on_one_edge_and_no_trajectory_holds_both_but_pieces_connect_them(style: Staircase) -> None:
    data = staircase_data(style, 20_000, 0)
    assert len(set(CORNER_PAIRS)) == 8
    for start, goal in CORNER_PAIRS:
        assert (start[0] == goal[0]) != (start[1] == goal[1])
        ends = 5 * start[0] + start[1], 5 * goal[0] + goal[1]
        assert not data.together(*ends)
        assert data.fewest_steps(*ends) < 25


def test_together_and_fewest_steps_by_hand() -> None:
    grid = GridWorld()
    data = Paths(grid, (walk(grid, (0, 0), "RR"), walk(grid, (0, 2), "D")), (1, 1))
    assert data.together(0, 2)
    assert not data.together(0, 7)
    assert data.fewest_steps(0, 7) == 3
    assert data.fewest_steps(7, 0) == float("inf")
    assert data.fewest_steps(3, 3) == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("pieces", [False, True])
def test_shortcuts_are_rare_and_in_pieces_no_trajectory_walks_them(layout: Layout, pieces: bool) -> None:
    data = shortcut_data(layout, pieces, 20_000, seed=3)
    start, goal = data.paths[0].states[0], data.paths[0].states[-1]
    assert 20_000 <= data.transitions < 20_000 + len(layout.long)
    share = sum(data.counts[1:]) / sum(data.counts)
    assert share == pytest.approx(0.05, abs=0.02)
    assert data.fewest_steps(start, goal) == len(layout.short) < len(layout.long)
    whole = [path for path in data.paths if {start, goal} <= set(path.states)]
    assert [len(path.actions) for path in whole] == (
        [len(layout.long)] if pieces else [len(layout.long), len(layout.short)]
    )


def test_ways_that_part_are_refused() -> None:
    with pytest.raises(BadInputError, match="one goal"):
        shortcut_data(Layout("wrong", (0, 0), "R", "D", 1), False, 100, seed=0)


@pytest.mark.parametrize("tail", ["renormalise", "clip", "reject"])
def test_futures_are_what_sampling_gives(tail: Tail) -> None:
    grid, gamma, rng = GridWorld(), 0.8, np.random.default_rng(0)
    data = Paths(grid, (walk(grid, (0, 0), "RRD"), walk(grid, (2, 2), "U")), (3, 1))
    flat = [
        (path, t)
        for path, n in zip(data.paths, data.counts, strict=True)
        for _ in range(n)
        for t in range(len(path.actions))
    ]
    counts = np.zeros((25, 5, 25))
    for _ in range(40_000):
        path, t = flat[rng.integers(len(flat))]
        k = rng.geometric(1 - gamma)
        left = len(path.actions) - t
        if tail == "clip":
            k = min(k, left)
        while k > left:
            if tail == "reject":
                path, t = flat[rng.integers(len(flat))]
                left = len(path.actions) - t
            k = rng.geometric(1 - gamma)
        counts[path.states[t], path.actions[t], path.states[t + k]] += 1
    np.testing.assert_allclose(counts / counts.sum(), data.futures(gamma, tail), atol=0.01)
