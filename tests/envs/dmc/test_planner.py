from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.dmc.env import ACTION_REPEAT, TASKS, DMCEnv
from counterpoint.envs.dmc.planner import GUIDES, REWARDS, SENSORS, SETTINGS, Planner, TrueModel, planner_config
from counterpoint.planning.shooting import MPPIConfig
from tests.envs.played import act
from tests.marks import quick

pytest.importorskip("dm_control", reason="labmaze has no wheel for Python 3.13")

QUICK = MPPIConfig(horizon=12, samples=16, knots=4)


def earned(task: DMCEnv, choose: Callable[[], Array], seed: int, steps: int) -> float:
    task.reset(seed=seed)
    return sum(act(task, choose()).reward for _ in range(steps))


def test_settings_are_of_tasks() -> None:
    assert set(SETTINGS) <= set(TASKS)
    assert planner_config("walker-stand") == SETTINGS.get("walker-stand", MPPIConfig())


@pytest.mark.sim
def test_a_planner_reaches_where_chance_does_not() -> None:
    task = DMCEnv("reacher-hard", cameras=[])
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
    task, other = DMCEnv("reacher-hard", cameras=[]), DMCEnv("reacher-hard", cameras=[])
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
    task = DMCEnv("reacher-hard", cameras=[])
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


REWARDED = (
    "finger-spin",
    "finger-turn_hard",
    "cup-catch",
    "reacher-hard",
    "hopper-stand",
    "hopper-hop",
    "cheetah-run",
    "acrobot-swingup",
)


@pytest.mark.sim
def test_every_task_has_a_reward_and_its_domain_sensors() -> None:
    assert set(REWARDS) == set(TASKS)
    assert {task.domain for task in TASKS.values()} == set(SENSORS)
    assert set(GUIDES) <= set(TASKS)


@pytest.mark.sim
@pytest.mark.parametrize("name", quick(["humanoid-stand", "hopper-hop", "reacher-hard", "cup-catch"], sorted(TASKS)))
def test_plans_earn_in_the_environment_what_the_model_says(name: str) -> None:
    task = DMCEnv(name, cameras=[])
    model = TrueModel(task)
    steps = 4 if name.startswith("dog") else 12
    for seed in range(2):
        rng = np.random.default_rng(seed)
        task.reset(seed=seed)
        for _ in range(6 * seed):
            task.step(rng.uniform(-1, 1, task.action_dim))
        plans = rng.uniform(-1, 1, (3, steps, task.action_dim))
        told, guide = model.rewards(plans)
        assert told.shape == guide.shape == (3, steps)
        earned = [act(task, action).reward for action in plans[1]]
        np.testing.assert_allclose(told[1], earned, atol=1e-6)


def place(task: DMCEnv, positions: Array, velocities: Array | None = None) -> None:
    physics = task.physics
    with physics.reset_context():
        physics.data.qpos[:] = positions
        if velocities is not None:
            physics.data.qvel[:] = velocities


def rewarded(name: str) -> DMCEnv:
    """A task with a reward that chance hardly meets, put where it is earned."""
    task = DMCEnv(name, cameras=[])
    task.reset(seed=3)
    physics = task.physics
    if name == "finger-spin":
        place(task, physics.data.qpos.copy(), np.array([0.0, 0.0, -40.0]))
    elif name == "finger-turn_hard":
        target = physics.named.model.site_pos["target"]
        hinge = physics.named.data.xanchor["hinge"]
        place(task, np.array([0.0, 0.0, np.arctan2(target[0] - hinge[0], target[2] - hinge[2])]))
    elif name == "cup-catch":
        cup = physics.named.data.site_xpos["target"] - physics.named.data.xpos["ball"]
        place(task, physics.data.qpos + np.array([0, 0, cup[0], cup[2]]))
    elif name == "reacher-hard":
        physics.named.model.geom_pos["target"][:2] = physics.named.data.geom_xpos["finger"][:2]
        physics.forward()
    elif name.startswith("hopper"):
        place(task, np.zeros(7), np.array([1.5, 0, 0, 0, 0, 0, 0]))
    elif name == "cheetah-run":
        place(task, np.zeros(9), np.eye(9)[0] * 5)
    elif name == "acrobot-swingup":
        place(task, np.array([0.05, -0.1]))
    return task


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", REWARDED)
def test_where_there_is_something_to_earn_the_model_says_so(name: str) -> None:
    task = rewarded(name)
    model = TrueModel(task)
    plan = np.random.default_rng(0).uniform(-0.3, 0.3, (1, 8, task.action_dim))
    told, _ = model.rewards(plan)
    earned = [act(task, action).reward for action in plan[0]]
    assert max(earned) > 0.2
    assert earned != [max(earned)] * len(earned) or max(earned) == ACTION_REPEAT
    np.testing.assert_allclose(told[0], earned, atol=1e-6)


@pytest.mark.sim
def test_looking_ahead_moves_nothing_and_threads_change_nothing() -> None:
    task = DMCEnv("cheetah-run", cameras=[])
    task.reset(seed=1)
    before = task.physics.data.qpos.copy(), task.physics.data.qvel.copy(), task.physics.data.time
    plans = np.random.default_rng(0).uniform(-1, 1, (6, 5, 6))
    one, two = TrueModel(task), TrueModel(task, threads=2)
    np.testing.assert_array_equal(one.rewards(plans)[0], two.rewards(plans)[0])
    np.testing.assert_array_equal(one.rewards(plans)[0], one.rewards(plans)[0])
    np.testing.assert_array_equal(before[0], task.physics.data.qpos)
    np.testing.assert_array_equal(before[1], task.physics.data.qvel)
    assert before[2] == task.physics.data.time


@pytest.mark.slow
@pytest.mark.sim
def test_guides_are_small_beside_a_full_reward() -> None:
    for name in GUIDES:
        task = DMCEnv(name, cameras=[])
        plans = np.random.default_rng(0).uniform(-1, 1, (8, 10, task.action_dim))
        _, guide = TrueModel(task).rewards(plans)
        assert guide.max() <= 0.6 * ACTION_REPEAT, name
