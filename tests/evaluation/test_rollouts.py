from __future__ import annotations

import numpy as np

from counterpoint.envs.vector import EnvWorkers
from counterpoint.evaluation.goal_rollout import Rollouts, episode_seed, roll_out
from tests.agents.point_env import CONFIG, STEPS, Straight, make_point


class Still(Straight):
    """Stays where it is."""

    def act(self, observation: np.ndarray, goal: np.ndarray, *, explore: bool) -> np.ndarray:
        return np.zeros_like(goal)


def _run(actor: Straight, count: int, episodes: int = 6) -> Rollouts:
    with EnvWorkers(CONFIG, count, make=make_point) as workers:
        return roll_out(actor, workers, episodes=episodes, seed=3)


def test_who_walks_straight_arrives_and_stays() -> None:
    rollouts = _run(Straight(), 1)
    assert rollouts.reached.all()
    assert rollouts.held.all()
    assert rollouts.closest.max() < 1e-6
    assert (rollouts.steps < STEPS).all()
    assert rollouts.success().value == 1.0


def test_who_stays_keeps_the_distance_of_the_beginning() -> None:
    rollouts = _run(Still(), 1)
    np.testing.assert_array_equal(rollouts.closest, rollouts.last)
    assert (rollouts.steps[~rollouts.reached] == STEPS).all()
    assert rollouts.summary()["success"] == rollouts.reached.mean()


def test_episodes_do_not_depend_on_the_number_of_workers() -> None:
    one, two = _run(Still(), 1, 5), _run(Still(), 2, 5)
    np.testing.assert_array_equal(one.closest, two.closest)
    assert len(two.reached) == 5


def test_the_report_carries_intervals() -> None:
    report = _run(Straight(), 2, 4).report()
    assert report["episodes"] == 4
    low, high = report["success"]["interval"]  # type: ignore[index]
    assert 0 < low < 1 == high


def test_streams_of_seeds_never_meet() -> None:
    seeds = {
        episode_seed(seed, stream, number, place)
        for seed in range(3)
        for stream in range(3)
        for number in range(20)
        for place in range(4)
    }
    assert len(seeds) == 3 * 3 * 20 * 4
