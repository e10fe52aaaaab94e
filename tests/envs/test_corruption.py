from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.envs.goal.env import CorruptedObservations, EnvConfig, GoalEnv, make_goal_env, spaces_of

pytestmark = pytest.mark.sim

PLAIN = EnvConfig(name="PointMaze_UMaze-v3", max_episode_steps=200)


def corrupted(probability: float) -> CorruptedObservations:
    env = make_goal_env(PLAIN.model_copy(update={"corruption": probability}))
    assert isinstance(env, CorruptedObservations)
    return env


def play(env: Any, seed: int, steps: int) -> list[tuple[dict[str, NDArray[Any]], dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    told = [env.reset(seed=seed)]
    for _ in range(steps):
        seen, _, _, _, info = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
        told.append((seen, info))
    return told


def test_so_many_observations_are_replaced_by_ones_that_were_seen() -> None:
    env, plain = corrupted(0.1), make_goal_env(PLAIN)
    replaced = total = first = 0
    for seed in range(40):
        for number, ((seen, info), (truth, known)) in enumerate(
            zip(play(env, seed, 100), play(plain, seed, 100), strict=True)
        ):
            total += 1
            replaced += info["corrupted"]
            first += info["corrupted"] and number == 0
            changed = not np.array_equal(seen["observation"], truth["observation"])
            assert changed == info["corrupted"]
            np.testing.assert_array_equal(seen["desired_goal"], truth["desired_goal"])
            assert {key: info[key] for key in known} == known  # success and distance of the true state
            if info["corrupted"]:
                assert any(
                    np.array_equal(seen["observation"], one["observation"])
                    and np.array_equal(seen["achieved_goal"], one["achieved_goal"])
                    for one in env.pool
                )
    spread = np.sqrt(0.1 * 0.9 / total)
    assert abs(replaced / total - 0.1) < 4 * spread
    assert first > 0


def test_the_pool_holds_what_random_actions_showed() -> None:
    env = corrupted(0.5)
    env.reset(seed=0)
    assert len(env.pool) == 20 * 50
    assert len({one["observation"].tobytes() for one in env.pool}) == len(env.pool)
    again = corrupted(0.5)
    play(again, 7, 3)
    assert all(
        np.array_equal(one["observation"], other["observation"])
        for one, other in zip(env.pool, again.pool, strict=True)
    )


def test_the_seed_decides_which_whatever_went_before() -> None:
    env, fresh = corrupted(0.3), corrupted(0.3)
    play(env, 1, 30)
    for (seen, info), (again, told) in zip(play(env, 2, 50), play(fresh, 2, 50), strict=True):
        np.testing.assert_array_equal(seen["observation"], again["observation"])
        assert info == told


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_never_and_always(probability: float) -> None:
    env = make_goal_env(PLAIN.model_copy(update={"corruption": probability}))
    if probability == 0:
        assert isinstance(env, GoalEnv)
    else:
        assert all(info["corrupted"] for _, info in play(env, 0, 20))
        assert spaces_of(env) == spaces_of(make_goal_env(PLAIN))
