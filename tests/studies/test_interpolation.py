from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import Spaces
from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.errors import BadInputError
from studies.interpolation import (
    Reals,
    _longest_rising,
    agent_encoder,
    far_pairs,
    figure,
    interpolate,
    non_parametric,
    order_along_the_path,
    parametric,
    slerp,
    untrained,
)
from studies.plots import save

# A horseshoe: from the lower left up, across and down to the lower right; 11 cells, no shorter way.
MAZE = MazeGrid(((0, 0, 0, 0, 0), (0, 1, 1, 1, 0), (0, 1, 1, 1, 0), (0, 1, 1, 1, 0)))
START, GOAL = (3, 0), (3, 4)
SPACES = Spaces(observation=(4,), goal=(2,), action=2)


def states() -> Reals:
    """Two states in every free cell, some way off its middle, at rest."""
    rng = np.random.default_rng(0)
    centres = np.repeat([MAZE.centre(cell) for cell in MAZE.free], 2, axis=0)
    return np.concatenate([centres + rng.uniform(-0.3, 0.3, centres.shape), 0 * centres], axis=1)


def way_of(points: Reals) -> Reals:
    """The distance through the maze from the start, in cells."""
    distances = MAZE.distances(START)
    return np.array([distances[MAZE.cell_of(point)] for point in points[:, :2]], np.float64)


def knows_the_way(points: Reals, goal: Reals) -> Reals:
    angle = way_of(points) * np.pi / 12
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def knows_nothing(points: Reals, goal: Reals) -> Reals:
    vectors = np.random.default_rng(1).normal(size=(len(points), 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def ends(points: Reals) -> tuple[int, int]:
    way = way_of(points)
    return int(way.argmin()), int(way.argmax())


@given(st.integers(0, 1000), st.floats(0, 1))
def test_slerp_stays_on_the_sphere_and_turns_evenly(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    start, goal = (vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, 6)))
    (found,) = slerp(start, goal, np.array([alpha]))
    assert np.linalg.norm(found) == pytest.approx(1)
    whole = np.arccos(start @ goal)
    assert np.arccos(np.clip(found @ start, -1, 1)) == pytest.approx(alpha * whole, abs=1e-6)
    assert np.arccos(np.clip(found @ goal, -1, 1)) == pytest.approx((1 - alpha) * whole, abs=1e-6)


def test_slerp_of_one_vector_is_that_vector_and_opposite_ends_stay_finite() -> None:
    one = np.array([0.6, 0.8])
    np.testing.assert_allclose(slerp(one, one, np.linspace(0, 1, 3)), [one] * 3)
    assert np.isfinite(slerp(one, -one, np.linspace(0, 1, 3))).all()


def test_an_encoder_that_knows_the_way_passes_all_of_it() -> None:
    points, alphas = states(), np.linspace(0, 1, 11)
    start, goal = ends(points)
    phi = knows_the_way(points, points[goal, :2])
    by_angle = parametric(phi[start], phi[goal], phi, alphas)
    np.testing.assert_array_equal(way_of(points[by_angle]), np.arange(11))
    by_feature = non_parametric(phi[start], phi[goal], phi, phi, alphas)
    assert by_feature[0] in np.flatnonzero(way_of(points) == 0)
    assert by_feature[-1] in np.flatnonzero(way_of(points) == 10)
    assert (np.diff(way_of(points[by_feature])) >= 0).all()


def test_features_run_from_the_start_to_the_goal_and_not_back() -> None:
    phi = np.eye(4)
    found = non_parametric(phi[1], phi[3], phi, phi, np.array([0.0, 0.1, 0.9, 1.0]))
    assert found.tolist() == [1, 1, 3, 3]


def test_order_by_hand() -> None:
    straight = order_along_the_path(MAZE, START, GOAL, [(3, 0), (0, 0), (0, 4), (3, 4)])
    assert straight == {"on_path": 1, "monotone": 1, "in_order": 1, "covered": 4 / 11}
    # d is 0, 10, 3, 3, 7: one step back.
    back = order_along_the_path(MAZE, START, GOAL, [(3, 0), (3, 4), (0, 0), (0, 0), (0, 4)])
    assert back == {"on_path": 1, "monotone": 3 / 4, "in_order": 4 / 5, "covered": 3 / 11}
    open_room = MazeGrid(tuple((0,) * 5 for _ in range(5)))
    beside = order_along_the_path(open_room, (0, 0), (0, 4), [(0, 0), (1, 1), (2, 2), (0, 4)])
    assert beside == {"on_path": 3 / 4, "monotone": 1, "in_order": 3 / 4, "covered": 3 / 5}


def test_a_sequence_that_jumps_from_end_to_end_covers_little() -> None:
    jumped = order_along_the_path(MAZE, START, GOAL, [START] * 5 + [GOAL] * 5)
    assert (jumped["in_order"], jumped["covered"]) == (1, 2 / 11)


@given(st.lists(st.integers(0, 4), max_size=7))
def test_the_longest_rising_subsequence_is_the_longest(values: list[int]) -> None:
    runs: list[list[int]] = [[]]
    for value in values:
        runs += [[*run, value] for run in runs if not run or run[-1] <= value]
    longest = max(map(len, runs))
    found = _longest_rising(np.array(values, np.int64))
    assert len(found) == longest
    assert len(set(found)) == max(len(set(run)) for run in runs if len(run) == longest)


def test_a_cell_in_a_wall_is_refused() -> None:
    with pytest.raises(BadInputError, match="a wall"):
        order_along_the_path(MAZE, START, GOAL, [START, (2, 2)])


def test_the_study_tells_an_encoder_that_knows_the_way_from_the_floors(tmp_path: Path) -> None:
    points = states()
    found = {
        encode.__name__: interpolate(encode, points, points[:, :2], [ends(points)], MAZE)
        for encode in (knows_the_way, knows_nothing)
    }
    save(figure(found["knows_the_way"], points[:, :2], MAZE), tmp_path / "interpolation.png")
    assert (tmp_path / "interpolation.png").stat().st_size > 1000
    knows, floor = (methods["parametric"] for methods in found.values())
    assert knows["in_order"] == knows["on_path"] == 1
    assert knows["covered"] > 0.9
    assert floor["covered"] < 0.6
    line = found["knows_the_way"]["straight_line"]
    assert line["covered"] < 0.6
    assert line == found["knows_nothing"]["straight_line"]


def test_a_pair_inside_one_cell_is_refused() -> None:
    points = states()
    with pytest.raises(BadInputError, match="different cells"):
        interpolate(knows_the_way, points, points[:, :2], [(0, 1)], MAZE)


def test_random_pairs_are_far_apart() -> None:
    points = states()[:, :2]
    pairs = far_pairs(points, MAZE, 5, 6, 0)
    cells = MAZE.cells_of(points)
    assert len(pairs) == 5
    assert all(MAZE.distances(cells[start])[cells[goal]] >= 6 for start, goal in pairs)
    for start, goal in far_pairs(points, MAZE, 5, 2, 0, bent=1.5):
        straight = np.hypot(*np.subtract(cells[start], cells[goal]))
        assert MAZE.distances(cells[start])[cells[goal]] >= 1.5 * straight


def agent(spaces: Spaces = SPACES) -> TDInfoNCE:
    return TDInfoNCE(TDInfoNCEConfig(hidden=(16, 16)), spaces, seed=3)


def test_an_agents_representations_are_unit_vectors_of_resting_states() -> None:
    points = states()
    trained = agent()
    phi = agent_encoder(trained)(points, points[3, :2])
    np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1, rtol=1e-5)
    seen, goal = trained.tensors(points, np.tile(points[3, :2], (len(points), 1)))
    twins = trained.critic.encode_actions(seen, seen.new_zeros(len(points), 2), goal).detach().numpy()
    np.testing.assert_allclose(phi @ phi[0], (twins @ twins[:, :1].swapaxes(1, 2)).mean(0)[:, 0], atol=1e-5)


def test_untrained_agents_are_a_floor_of_the_same_build() -> None:
    points = states()
    trained = agent()
    found = [
        interpolate(agent_encoder(one), points, points[:, :2], [ends(points)], MAZE)
        for one in (trained, untrained(trained, 3), untrained(trained, 4))
    ]
    assert found[0] == found[1]  # the same seed, and no training in between
    assert found[0] != found[2]


def test_an_agent_of_pictures_is_refused() -> None:
    pictures = Spaces(observation=(64, 64, 3), goal=(64, 64, 3), action=2)
    with pytest.raises(BadInputError, match="continuous actions"):
        agent_encoder(agent(pictures))
