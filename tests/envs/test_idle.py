from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from counterpoint.envs.goal.env import EnvConfig, IdleAfterEnd, make_goal_env, spaces_of
from counterpoint.envs.vector import EnvWorkers
from tests.envs.toy_goals import Slider


def test_after_the_end_nothing_moves_until_the_next_reset() -> None:
    simulation = Slider(end=3.0)
    env = IdleAfterEnd(simulation)
    for begun in (0, 2):
        env.reset(seed=0)
        assert env.step(np.full(1, 2.0))[2] is False
        last = env.step(np.full(1, 2.0))
        assert last[2] is True
        assert last[0]["achieved_goal"] == 4.0
        assert env.step(np.full(1, 9.0)) == last
        assert simulation.steps == begun + 2


def test_a_time_limit_is_an_end_too() -> None:
    simulation = Slider()
    env = IdleAfterEnd(gymnasium.wrappers.TimeLimit(simulation, 3))
    env.reset(seed=0)
    answers = [env.step(np.ones(1)) for _ in range(6)]
    assert [truncated for _, _, _, truncated, _ in answers] == [False, False, True, True, True, True]
    assert simulation.steps == 3


def make_ending(config: EnvConfig) -> gymnasium.Env[Any, Any]:
    if config.name not in gymnasium.registry:
        gymnasium.register(config.name, "tests.envs.toy_goals:Slider", max_episode_steps=5, kwargs={"end": 3.0})
    return make_goal_env(config)


@pytest.mark.sim
def test_goal_environments_side_by_side_idle() -> None:
    config = EnvConfig(name="EndingSlider-v0", success_distance=1.0)
    assert spaces_of(make_ending(config)).observation == (2,)
    with EnvWorkers(config, 2, make=make_ending) as both:
        both.reset([0, 1])
        for _ in range(4):  # the first pushes by 5 and is over, the second by 1
            both.begin(np.array([[0.0], [-0.8]], np.float32))
            seen = both.finish()
    del gymnasium.registry["EndingSlider-v0"]
    assert seen.observations["achieved_goal"].ravel().tolist() == pytest.approx([5.0, 4.0])
    assert seen.distance.tolist() == pytest.approx([7.0, 8.0])
    assert seen.terminated.tolist() == [True, True]
