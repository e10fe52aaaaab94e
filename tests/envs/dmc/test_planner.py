from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.dmc.env import TASKS, DMCEnv
from counterpoint.envs.dmc.planner import SETTINGS, Planner, PlannerConfig, planner_config
from tests.envs.played import act

QUICK = PlannerConfig(horizon=12, samples=16, knots=4)


def earned(task: DMCEnv, choose: Callable[[], Array], seed: int, steps: int) -> float:
    task.reset(seed=seed)
    return sum(act(task, choose()).reward for _ in range(steps))


def test_settings_are_of_tasks() -> None:
    assert set(SETTINGS) <= set(TASKS)
    assert planner_config("walker-stand") == SETTINGS.get("walker-stand", PlannerConfig())


@pytest.mark.sim
def test_a_planner_reaches_where_chance_does_not() -> None:
    task = DMCEnv("reacher-hard")
    planner = Planner(task, QUICK)
    rng = np.random.default_rng(0)
    planned, random = [], []
    for seed in (50, 51, 52):
        planner.reset(seed)
        planned.append(earned(task, planner.act, seed, 60))
        random.append(earned(task, lambda: rng.uniform(-1, 1, 2), seed, 60))
    assert np.mean(planned) > 60
    assert np.mean(random) < 20


@pytest.mark.sim
def test_what_a_planner_does_follows_from_its_seed() -> None:
    task, other = DMCEnv("reacher-hard"), DMCEnv("reacher-hard")
    actions = []
    for simulation, seed in ((task, 1), (other, 1), (task, 2)):
        planner = Planner(simulation, QUICK)
        simulation.reset(seed=9)
        planner.reset(seed)
        chosen = []
        for _ in range(5):
            chosen.append(planner.act())
            simulation.step(chosen[-1])
        actions.append(np.stack(chosen))
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])
    assert actions[0].dtype == np.float32
    assert np.abs(actions[0]).max() <= 1


@pytest.mark.sim
def test_weights_are_a_softmax_of_standardised_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    task = DMCEnv("reacher-hard")
    planner = Planner(task, QUICK.model_copy(update={"temperature": 0.5}))
    planner.reset(0)
    seen: list[Array] = []
    value = np.random.default_rng(3).normal(size=(16, 12))

    def rewards(plans: Array) -> tuple[Array, Array]:
        seen.append(plans)
        return value, np.zeros_like(value)

    monkeypatch.setattr(planner._model, "rewards", rewards)
    action = planner.act()
    total = value.sum(axis=1)
    weights = [np.exp((one - total.mean()) / (0.5 * total.std())) for one in total]
    plan = sum(weight * each for weight, each in zip(weights, seen[0], strict=True)) / sum(weights)
    np.testing.assert_allclose(action, plan[0], rtol=1e-5)
    np.testing.assert_array_equal(seen[0][0], np.zeros((12, 2)))  # the plan as it stood is among them
    planner.act()
    np.testing.assert_allclose(seen[1][0], np.concatenate([plan[1:], plan[-1:]]))
