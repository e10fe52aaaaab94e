from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from studies.gridworld import GridWorld, Rollouts
from studies.occupancy.data import TAILS, Counted, conditional, count_data, future_tables, successor_counts
from studies.occupancy.limits import LIMITS, limit_errors, monte_carlo_limit, temporal_difference_limit

GRID, DISCOUNT = GridWorld(3, 2), 0.8
P, S = 30, 6
Reals = NDArray[np.float64]


def drawn_by_hand(rollouts: Rollouts, tail: str) -> Reals:
    """The distribution of (s, a, s+) by a loop over transitions and lags."""
    table = np.zeros((P, S))
    for states, actions in zip(rollouts.states, rollouts.actions, strict=True):
        T = len(actions)
        for t in range(T):
            pair = int(states[t]) * 5 + int(actions[t])
            fits = np.array([(1 - DISCOUNT) * DISCOUNT ** (k - 1) for k in range(1, T - t + 1)])
            if tail == "clip":
                fits[-1] += 1 - fits.sum()
            if tail == "renormalise":
                fits /= fits.sum()
            for k, weight in enumerate(fits, start=1):
                table[pair, states[t + k]] += weight
    found: Reals = table / table.sum()
    return found


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("length", [4, 150])
def test_future_tables_are_those_of_a_loop(tail: str, length: int) -> None:
    rollouts = GRID.uniform_transitions(300 if length == 150 else 40, seed=0, episode_length=length)
    found = future_tables(GRID, rollouts, discount=DISCOUNT)[tail]
    np.testing.assert_allclose(found, drawn_by_hand(rollouts, tail), rtol=0, atol=1e-8)


def test_successors_are_those_of_a_loop_and_none_crosses_episodes() -> None:
    rollouts = GRID.uniform_transitions(60, seed=1, episode_length=6)
    wanted = np.zeros((P, P), dtype=int)
    for states, actions in zip(rollouts.states, rollouts.actions, strict=True):
        pairs = states[:-1].astype(int) * 5 + actions
        for now, then in pairwise(pairs):
            wanted[now, then] += 1
    found = successor_counts(GRID, rollouts)
    np.testing.assert_array_equal(found, wanted)
    assert found.sum() == 60 - 10  # the last transition of each episode has no action after it


def test_episodes_of_one_transition_are_refused() -> None:
    with pytest.raises(BadInputError, match="at least two"):
        successor_counts(GRID, GRID.uniform_transitions(5, seed=0, episode_length=1))


def test_counts_survive_the_disk(tmp_path: Path) -> None:
    data = count_data(GRID, 200, episode_length=20, discount=DISCOUNT, seed=0)
    data.save(tmp_path / "data.npz")
    again = Counted.load(tmp_path / "data.npz")
    np.testing.assert_array_equal(again.successors, data.successors)
    assert all((again.futures[tail] == data.futures[tail]).all() for tail in TAILS)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.parametrize("length", [20, None])
def test_limits_are_distributions_and_the_temporal_difference_one_satisfies_its_bellman_equation(
    length: int | None,
) -> None:
    data = count_data(GRID, 2_000, episode_length=length, discount=DISCOUNT, seed=0)
    M = temporal_difference_limit(data, DISCOUNT)
    np.testing.assert_allclose(M.sum(axis=1), 1.0)
    for tail in TAILS:
        np.testing.assert_allclose(monte_carlo_limit(data, tail).sum(axis=1), 1.0)
    T = conditional(data.successors.astype(np.float64), np.zeros(P))
    reached = T @ np.eye(S)[data.pair_states]
    np.testing.assert_allclose(M, (1 - DISCOUNT) * reached + DISCOUNT * T @ M, atol=1e-12)


def test_a_pair_never_seen_is_the_marginal() -> None:
    data = count_data(GRID, 20, episode_length=20, discount=DISCOUNT, seed=0)
    unseen = data.successors.sum(axis=1) == 0
    assert unseen.any()
    M = temporal_difference_limit(data, DISCOUNT)
    np.testing.assert_allclose(M[unseen], np.broadcast_to(data.marginal(), M[unseen].shape))
    assert np.isfinite(M).all()


def test_limits_fall_as_one_over_the_root_of_the_data() -> None:
    truth = GRID.exact_occupancy(GRID.uniform_policy(), DISCOUNT).reshape(P, S)
    seeds, sizes = 8, (10**3, 10**5)
    found = {
        size: [
            limit_errors(count_data(GRID, size, episode_length=None, discount=DISCOUNT, seed=seed), truth, DISCOUNT)
            for seed in range(seeds)
        ]
        for size in sizes
    }
    for name in LIMITS:
        few, many = (np.mean([one[name] for one in found[size]]) for size in sizes)
        assert 8 < few / many < 12.5, name  # sqrt(100) = 10
    assert np.mean([one["temporal_difference"] for one in found[10**5]]) < np.mean(
        [one["monte_carlo_clip"] for one in found[10**5]]
    )
