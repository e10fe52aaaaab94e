from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.envs.robosuite.env import RobosuiteEnv
from tests.envs.played import act, images, masks

pytestmark = pytest.mark.sim
pytest.importorskip("robosuite", reason="needs the extra `robosuite`")


@pytest.fixture(scope="module")
def task() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("CloseDrawer", size=64)
    yield task
    task.close()


def play(task: RobosuiteEnv, seed: int) -> list[bool]:
    task.reset(seed=seed)
    solved: list[bool] = []
    while not any(solved) and len(solved) < task.horizon:
        solved.append(act(task, task.expert()).success)
    return solved


def test_the_scripted_expert_shuts_the_drawer(task: RobosuiteEnv) -> None:
    # Other seeds than those of demonstrations and evaluation, and few of them, for time.
    for seed in (100, 101, 102):
        assert any(play(task, seed)), seed


def test_the_drawer_starts_open_and_is_shut_within_a_centimetre(task: RobosuiteEnv) -> None:
    task.reset(seed=3)
    env = task.env
    assert 0.08 - 1e-3 <= env.joint <= 0.12 + 1e-3
    assert env.reward() == 0.0
    for opening, reward in ((0.011, 0.0), (0.0099, 1.0), (0.0, 1.0)):
        env.sim.data.qpos[env._joint] = opening
        assert env.reward() == reward


def test_a_drawer_left_alone_stays_open(task: RobosuiteEnv) -> None:
    task.reset(seed=4)
    before = task.env.joint
    for _ in range(20):
        assert not act(task, np.zeros(7, np.float32)).success
    assert task.env.joint == pytest.approx(before, abs=2e-3)


def test_placement_is_the_seed_s_and_within_bounds(task: RobosuiteEnv) -> None:
    env, places = task.env, []
    for seed in range(12):
        task.reset(seed=seed)
        x, y, z = env.sim.model.body_pos[env._body]
        assert -0.06 <= x <= 0.08
        assert 0.12 <= y <= 0.20
        assert z == pytest.approx(0.85)
        assert np.arccos(-env.outward[1]) <= 0.35 + 1e-6
        places.append((x, y, env.joint, *env.handle))
    assert len(set(places)) == len(places)
    task.reset(seed=5)
    assert (*env.sim.model.body_pos[env._body][:2], env.joint, *env.handle) == places[5]


def test_the_picture_shows_the_drawer_shut(task: RobosuiteEnv) -> None:
    task.reset(seed=6)
    before, robot = images(task), masks(task)
    task.env.sim.data.qpos[task.env._joint] = 0.0
    task.env.sim.forward()
    changed = (images(task)[0] != before[0]).any(-1)
    assert 0.002 < changed.mean() < 0.2
    assert 0.01 < robot[0].mean() < 0.5  # the robot is in the third person's picture, and the cabinet is none of it
    assert (robot == masks(task)).mean() > 0.97
