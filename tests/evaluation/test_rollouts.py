from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError
from counterpoint.evaluation.goal_rollout import EpisodeResult, episode_seed, means, report, rollout
from tests.agents.point_env import STEPS, PointEnv, Straight, make_dying, make_point

SEEDS = [episode_seed(3, 2, number) for number in range(6)]


class Still(Straight):
    """Stays where it is."""

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        return np.zeros_like(observation["desired_goal"])


def _run(actor: Straight, count: int, episodes: int = 6) -> list[EpisodeResult]:
    with VectorEnv(make_point, count, processes=count > 1) as envs:
        return rollout(actor, envs, SEEDS[:episodes])


def test_who_walks_straight_arrives_and_stays() -> None:
    for result in _run(Straight(), 1):
        assert result.success
        assert result.held
        assert result.closest_distance is not None
        assert result.closest_distance < 1e-6
        assert result.steps_to_success < result.steps == STEPS
        assert result.total_reward == 1 - result.steps_to_success  # -1 a step until it is there, and it stays


def test_who_stays_keeps_the_distance_of_the_beginning() -> None:
    results = _run(Still(), 1)
    for result in results:
        assert result.closest_distance == result.last_distance
        assert result.success or result.steps_to_success == STEPS
    assert means(results)["success"] == np.mean([bool(result.success) for result in results])


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    one, two = _run(Still(), 1, 5), _run(Still(), 2, 5)
    assert one == two
    assert [result.seed for result in one] == SEEDS[:5]


def test_the_report_carries_intervals_within_0_and_1() -> None:
    found = report(_run(Straight(), 2, 4))
    assert found["success"] == found["success_at_end"]
    assert (found["success"]["n"], found["success"]["method"]) == (4, "Wilson")
    assert 0 < found["success"]["low"] < 1 == found["success"]["high"]
    assert found["closest_distance"]["low"] <= found["closest_distance"]["value"] <= found["closest_distance"]["high"]


def test_an_episode_whose_process_dies_has_failed() -> None:
    """One in ten may; the others are what they are."""
    doomed = SEEDS[2]

    class Doomed(PointEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            self._lose = "refuse" if seed == doomed else ""
            return super().reset(seed=seed)

    seeds = [episode_seed(3, 2, number) for number in range(10)]
    with VectorEnv(Doomed, 3) as broken, VectorEnv(make_point, 3) as whole:
        found, expected = rollout(Straight(), broken, seeds), rollout(Straight(), whole, seeds)
    assert [one for one in found if one.seed != doomed] == [one for one in expected if one.seed != doomed]
    assert (found[2].success, found[2].held, found[2].steps) == (False, False, 2)
    assert "expected finite numbers" in str(found[2].error)
    assert report(found)["failed"] == 1


def test_simulators_that_often_die_end_the_rollout() -> None:
    with (
        VectorEnv(make_dying, 2, processes=True) as envs,
        pytest.raises(BadInputError, match=r"1 of 4 episodes in which .* failed; the first: its process died"),
    ):
        rollout(Straight(), envs, SEEDS[:4])


def test_streams_of_seeds_never_meet() -> None:
    seeds = {
        episode_seed(seed, stream, number, place)
        for seed in range(3)
        for stream in range(3)
        for number in range(20)
        for place in range(4)
    }
    assert len(seeds) == 3 * 3 * 20 * 4
