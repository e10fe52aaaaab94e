from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.envs.robosuite.env import RobosuiteEnv
from tests.envs.played import act

pytestmark = pytest.mark.sim
pytest.importorskip("robosuite", reason="needs the extra `robosuite`")


@pytest.fixture(scope="module")
def task() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("OpenBox", size=64)
    yield task
    task.close()


def test_the_scripted_expert_opens_the_box(task: RobosuiteEnv) -> None:
    # Other seeds than those of demonstrations and evaluation, and few of them, for time.
    for seed in (100, 101, 102):
        task.reset(seed=seed)
        assert any(act(task, task.expert()).success for _ in range(task.horizon)), seed


def test_the_lid_is_led_along_its_arc_and_not_thrown(task: RobosuiteEnv) -> None:
    task.reset(seed=1)
    angles = [task.env.joint]
    while angles[-1] < np.pi / 3:
        task.step(task.expert())
        angles.append(task.env.joint)
        assert len(angles) < task.horizon
    assert np.diff(angles).max() < 0.2  # radians in 1/20 s
    assert angles[0] == pytest.approx(0.0, abs=0.01)


def test_success_is_sixty_degrees(task: RobosuiteEnv) -> None:
    task.reset(seed=2)
    env = task.env
    for degrees, reward in ((0, 0.0), (59, 0.0), (61, 1.0), (90, 1.0)):
        env.sim.data.qpos[env._joint] = np.radians(degrees)
        assert env.reward() == reward


def test_a_lid_let_go_of_falls_shut(task: RobosuiteEnv) -> None:
    task.reset(seed=3)
    task.env.sim.data.qpos[task.env._joint] = np.radians(40)
    for _ in range(40):
        task.step(np.zeros(7, np.float32))
    assert task.env.joint == pytest.approx(0.0, abs=0.02)


def test_placement_is_the_seed_s_and_within_bounds(task: RobosuiteEnv) -> None:
    env, places = task.env, []
    for seed in range(12):
        task.reset(seed=seed)
        x, y, z = env.sim.model.body_pos[env._body]
        assert -0.04 <= x <= 0.08
        assert -0.02 <= y <= 0.10
        assert z == pytest.approx(0.845)
        assert np.arccos(-env.hinge[1][0]) <= 0.35 + 1e-6
        places.append((x, y, *env.bar))
    assert len(set(places)) == len(places)
    task.reset(seed=5)
    assert (*env.sim.model.body_pos[env._body][:2], *env.bar) == places[5]
