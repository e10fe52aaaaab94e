from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.errors import BadInputError
from studies.gridworld import ACTIONS, GridWorld

grids = st.builds(GridWorld, st.integers(1, 6), st.integers(1, 6))


def walked(grid: GridWorld, state: int, action: int) -> int:
    """One step by hand."""
    row, column = divmod(state, grid.width)
    if ACTIONS[action] == "up":
        row = max(0, row - 1)
    if ACTIONS[action] == "down":
        row = min(grid.height - 1, row + 1)
    if ACTIONS[action] == "left":
        column = max(0, column - 1)
    if ACTIONS[action] == "right":
        column = min(grid.width - 1, column + 1)
    return row * grid.width + column


def random_policy(grid: GridWorld, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).dirichlet(np.ones(grid.actions), size=grid.states)


def test_the_study_grid_has_25_states_and_5_actions() -> None:
    grid = GridWorld()
    assert (grid.states, grid.actions) == (25, 5)
    assert grid.next_state.dtype == np.int64
    assert grid.transition_matrix.dtype == np.float64
    assert grid.coordinates[7].tolist() == [1, 2]


@given(grids)
@settings(max_examples=25, deadline=None)
def test_walls_leave_the_agent_in_place(grid: GridWorld) -> None:
    wanted = [[walked(grid, s, a) for a in range(grid.actions)] for s in range(grid.states)]
    np.testing.assert_array_equal(grid.next_state, wanted)
    states, actions = np.divmod(np.arange(grid.states * grid.actions), grid.actions)
    assert (grid.transition_matrix.sum(axis=-1) == 1).all()
    assert (grid.transition_matrix[states, actions, np.ravel(wanted)] == 1).all()


@given(grids, st.integers(0, 99), st.sampled_from([0.0, 0.5, 0.9, 0.99]))
@settings(max_examples=25, deadline=None)
def test_exact_occupancy_is_a_distribution_and_satisfies_the_bellman_equation(
    grid: GridWorld, seed: int, discount: float
) -> None:
    policy = random_policy(grid, seed)
    p = grid.exact_occupancy(policy, discount)
    P = grid.transition_matrix
    np.testing.assert_allclose(p.sum(axis=-1), 1.0, rtol=1e-12)
    bellman = (1 - discount) * P + discount * np.einsum("sat,tb,tbf->saf", P, policy, p)
    np.testing.assert_allclose(p, bellman, rtol=0, atol=1e-13)


def test_exact_occupancy_is_the_sum_of_equation_3() -> None:
    grid, discount = GridWorld(3, 2), 0.7
    policy = random_policy(grid, 0)
    chain = np.einsum("sa,sat->st", policy, grid.transition_matrix)
    after, total = grid.transition_matrix, np.zeros((6, 5, 6))
    for t in range(1, 200):
        total += (1 - discount) * discount ** (t - 1) * after
        after = after @ chain
    np.testing.assert_allclose(grid.exact_occupancy(policy, discount), total, atol=1e-13)


@pytest.mark.parametrize("episode_length", [7, 1_000, 1_400, None])
def test_uniform_transitions_follow_the_grid(episode_length: int | None) -> None:
    grid = GridWorld(4, 3)
    found = grid.uniform_transitions(7_000, seed=3, episode_length=episode_length)
    length = episode_length or 7_000
    assert found.states.shape == (7_000 // length, length + 1)
    assert (found.length, found.actions.size) == (length, 7_000)
    np.testing.assert_array_equal(grid.next_state[found.states[:, :-1], found.actions], found.states[:, 1:])
    shares = np.bincount(found.actions.ravel(), minlength=5) / 7_000
    np.testing.assert_allclose(shares, 0.2, atol=0.02)


def test_a_seed_is_a_recording() -> None:
    grid = GridWorld()
    one, again, other = (grid.uniform_transitions(200, seed=seed) for seed in (1, 1, 2))
    assert (one.states == again.states).all()
    assert (one.actions == again.actions).all()
    assert (one.actions != other.actions).any()


def test_bad_input_is_told() -> None:
    grid = GridWorld()
    with pytest.raises(BadInputError, match="at least one row"):
        GridWorld(0, 5)
    with pytest.raises(BadInputError, match="row summing to 1"):
        grid.exact_occupancy(np.ones((25, 5)), 0.9)
    with pytest.raises(BadInputError, match="discount < 1"):
        grid.exact_occupancy(grid.uniform_policy(), 1.0)
    with pytest.raises(BadInputError, match="ask for 200"):
        grid.uniform_transitions(250, seed=0)
