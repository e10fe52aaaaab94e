from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.kitchen.env import (
    CAMERAS,
    CONTROL_HZ,
    HELD,
    MOVED,
    NEAR,
    POSE,
    TASKS,
    KitchenEnv,
    control,
    resolve_kitchen,
)
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("simulator")]


@pytest.fixture(scope="module")
def microwave(simulator: None) -> Iterator[KitchenEnv]:
    task = KitchenEnv("micro_open", cameras=CAMERAS, size=48)
    yield task
    task.close()


def solve(env: KitchenEnv, seed: int) -> tuple[bool, Array]:
    """Return whether the expert solves the seed's scene, and the states it goes through."""
    env.look, states, solved = False, [], False
    env.reset(seed=seed)
    for _ in range(env.horizon):
        observation, *_, info = env.step(env.expert())
        states.append(np.concatenate([observation["state"], observation["environment_state"]]))
        solved |= info["is_success"]
    env.look = True
    return solved, np.stack(states)


def test_joints_goals_and_thresholds(microwave: KitchenEnv) -> None:
    """The tasks are those of RoboHive's FK1: a joint is at its goal within .15 of its range."""
    ranges = {name: microwave.model.joint(task.joint).range for name, task in TASKS.items()}
    stated: dict[str, tuple[float, float, float]] = {  # range, goal
        "micro_open": (-2.094, 0.0, -1.25),
        "sdoor_open": (0.0, 0.44, 0.44),
        "ldoor_open": (-1.57, 0.0, -1.25),
        "knob1_on": (-1.57, 0.0, -1.57),
        "light_on": (-0.7, 0.0, -0.7),
    }
    for name, (low, high, goal) in stated.items():
        np.testing.assert_allclose(ranges[name], [low, high])
        assert TASKS[name].goal == goal
        env = KitchenEnv(name, cameras=[])
        env.reset(seed=0)
        np.testing.assert_allclose(env.state(), TASKS[name].pose, atol=0.06)
        assert env.joint == pytest.approx(0, abs=1e-3)
        assert env.progress == pytest.approx(0, abs=1e-3)
        for beyond in (0.99, 1.01):
            joint = goal - np.sign(goal) * beyond * NEAR * (high - low)
            env.data.qpos[env.model.joint(TASKS[name].joint).qposadr[0]] = joint
            assert env.solved == (beyond < 1)


def test_an_episode_succeeds_once_the_joint_was_at_its_goal_for_more_than_five_steps(microwave: KitchenEnv) -> None:
    microwave.look = False
    microwave.reset(seed=0)
    still = np.zeros(9)
    place = microwave.model.joint("microwave").qposadr[0]
    found = []
    for _ in range(HELD + 1):
        microwave.data.qpos[place] = -1.25
        found.append(microwave.step(still)[4]["is_success"])
    assert found == [False] * HELD + [True]
    microwave.look = True


def test_what_a_policy_sees(microwave: KitchenEnv) -> None:
    observation, _ = microwave.reset(seed=0)
    assert list(observation) == [*CAMERAS, "state", "environment_state"]
    assert observation["state"].shape == (9,)
    assert observation["environment_state"].shape == (16,)
    np.testing.assert_allclose(observation["state"], POSE, atol=0.06)
    way = microwave.data.site("microhandle_site").xpos - microwave.data.site("end_effector").xpos
    np.testing.assert_allclose(observation["environment_state"][:3], way, rtol=1e-6)
    assert observation["environment_state"][15] == pytest.approx(0, abs=1e-3)
    assert len({observation[camera].tobytes() for camera in CAMERAS}) == 3
    assert (microwave.horizon, microwave.instruction) == (50, "open microwave")
    assert microwave.model.opt.timestep * 40 == pytest.approx(1 / CONTROL_HZ)


def test_the_kitchen_stands_elsewhere_in_every_episode(microwave: KitchenEnv) -> None:
    microwave.look = False
    handles = []
    for seed in range(30):
        microwave.reset(seed=seed)
        handles.append(microwave.data.site("microhandle_site").xpos.copy())
    reach = np.ptp(np.array(handles), axis=0)
    assert (reach > MOVED).all()
    assert (reach <= 2 * MOVED + 1e-3).all()
    microwave.look = True


@pytest.mark.slow
def test_the_seed_decides_everything(microwave: KitchenEnv) -> None:
    first, again = solve(microwave, 3)[1], solve(microwave, 3)[1]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, solve(KitchenEnv("micro_open", cameras=[]), 3)[1])
    assert not np.array_equal(first, solve(microwave, 4)[1])


@pytest.mark.slow
def test_play_begins_where_other_experts_ended() -> None:
    env = KitchenEnv("sdoor_open", play=2, cameras=[])
    env.reset(seed=0)
    joints = [env.data.joint(task.joint).qpos[0] for task in TASKS.values()]
    moved = [name for name, joint in zip(TASKS, joints, strict=True) if abs(joint) > 0.1]
    assert moved
    assert "sdoor_open" not in moved
    assert solve(env, 0)[0]
    with pytest.raises(BadInputError, match="0 to 4"):
        KitchenEnv("sdoor_open", play=5)


def test_an_arm_far_from_its_pose_returns_and_another_does_not() -> None:
    env = KitchenEnv("light_on", cameras=[])
    env.reset(seed=0)
    assert env.horizon == 50
    assert np.abs(env.state()[:7] - POSE[:7]).max() < 0.06
    env.data.qpos[0] += 0.9  # the base joint: the hand swings sideways, into free space
    env.mujoco.mj_forward(env.model, env.data)
    env._expert.reset()
    first = env.expert()
    assert first[7] == 1.0  # the fingers open first
    distances = []
    for _ in range(40):
        env._move(env.expert())
        distances.append(np.abs(env.state()[:7] - POSE[:7]).max())
    assert min(distances) < 0.3


@pytest.mark.release
@pytest.mark.parametrize("name", TASKS)
def test_experts_solve_nine_of_ten_episodes_of_play(name: str) -> None:
    env = KitchenEnv(name, play=1, cameras=[])
    assert env.horizon == 110
    assert np.mean([solve(env, seed)[0] for seed in range(20)]) >= (0.8 if name == "ldoor_open" else 0.9)


@pytest.mark.release
@pytest.mark.parametrize("name", TASKS)
def test_experts_solve_four_of_five_scenes(name: str) -> None:
    env = KitchenEnv(name, cameras=[])
    assert np.mean([solve(env, 1000 + seed)[0] for seed in range(50)]) >= 0.8


def test_target_positions_are_where_velocities_lead() -> None:
    joints = np.zeros(9)
    told = control(joints, np.array([1, -1, 0.5, 0, 0, 0, 0, 1, -1.0]))
    np.testing.assert_allclose(told[:3], [0.16, -0.16, 0.08])
    np.testing.assert_allclose(told[7:], [0.04, 0.0])  # the fingers' limits


def test_names() -> None:
    assert resolve_kitchen("kitchen_micro_open-v3") == "micro_open"
    env: Any = make_env("kitchen/knob1_on", size=32)
    assert env.cameras == ("left",)
    with pytest.raises(BadInputError, match="'micro_open'"):
        make_env("kitchen/microopen")


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_the_arm_leaves_a_solved_task_solved() -> None:
    env = KitchenEnv("knob1_on", play=1, leaves=True, cameras=[])
    env.reset(seed=0)
    solved = False
    for _ in range(env.horizon):
        *_, info = env.step(env.expert())
        solved = solved or info["is_success"]
        if solved and np.abs(env.state()[:7] - POSE[:7]).max() < 0.3:
            break
    assert solved
    assert env.solved
    assert np.abs(env.state()[:7] - POSE[:7]).max() < 0.3


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("leaves", [False, True])
def test_the_second_task_of_a_pair_begins_when_the_first_has_succeeded(leaves: bool) -> None:
    env = KitchenEnv("sdoor_open+light_on", cameras=[], leaves=leaves)
    assert env.instruction == "slide cabinet; switch on light"
    env.reset(seed=0)
    parts, apart = [], []
    for _ in range(env.horizon):
        parts.append(env.part)
        apart.append(float(np.abs(env.state()[:7] - POSE[:7]).max()))
        *_, info = env.step(env.expert())
        if info["is_success"]:
            break
    assert info["is_success"]
    assert (apart[parts.index(1)] < 0.3) == leaves  # the arm has returned before it begins
    assert parts == sorted(parts)
    assert min(parts.count(0), parts.count(1)) > 20
    with pytest.raises(BadInputError, match="each task once"):
        KitchenEnv("light_on+light_on")
