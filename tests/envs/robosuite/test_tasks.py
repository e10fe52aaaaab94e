from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.envs.robosuite.env import RobosuiteEnv
from tests.envs.played import act, images, masks

pytestmark = pytest.mark.sim
pytest.importorskip("robosuite", reason="needs the extra `robosuite`")


@pytest.fixture(scope="module")
def drawer() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("CloseDrawer", size=64)
    yield task
    task.close()


def play(task: RobosuiteEnv, seed: int) -> list[bool]:
    task.reset(seed=seed)
    solved: list[bool] = []
    while not any(solved) and len(solved) < task.horizon:
        solved.append(act(task, task.expert()).success)
    return solved


@pytest.mark.slow
def test_the_scripted_expert_shuts_the_drawer(drawer: RobosuiteEnv) -> None:
    # Other seeds than those of demonstrations and evaluation, and few of them, for time.
    for seed in (100, 101, 102):
        assert any(play(drawer, seed)), seed


@pytest.mark.slow
def test_the_drawer_starts_open_and_is_shut_within_a_centimetre(drawer: RobosuiteEnv) -> None:
    drawer.reset(seed=3)
    env = drawer.env
    assert 0.08 - 1e-3 <= env.joint <= 0.12 + 1e-3
    assert env.reward() == 0.0
    for opening, reward in ((0.011, 0.0), (0.0099, 1.0), (0.0, 1.0)):
        env.sim.data.qpos[env._joint] = opening
        assert env.reward() == reward


@pytest.mark.slow
def test_a_drawer_left_alone_stays_open(drawer: RobosuiteEnv) -> None:
    drawer.reset(seed=4)
    before = drawer.env.joint
    for _ in range(20):
        assert not act(drawer, np.zeros(7, np.float32)).success
    assert drawer.env.joint == pytest.approx(before, abs=2e-3)


def test_the_drawer_s_placement_is_the_seed_s_and_within_bounds(drawer: RobosuiteEnv) -> None:
    env, places = drawer.env, []
    for seed in range(12):
        drawer.reset(seed=seed)
        x, y, z = env.sim.model.body_pos[env._body]
        assert -0.06 <= x <= 0.08
        assert 0.12 <= y <= 0.20
        assert z == pytest.approx(0.85)
        assert np.arccos(-env.outward[1]) <= 0.35 + 1e-6
        places.append((x, y, env.joint, *env.handle))
    assert len(set(places)) == len(places)
    drawer.reset(seed=5)
    assert (*env.sim.model.body_pos[env._body][:2], env.joint, *env.handle) == places[5]


def test_the_image_shows_the_drawer_shut(drawer: RobosuiteEnv) -> None:
    drawer.reset(seed=6)
    before, robot = images(drawer), masks(drawer)
    drawer.env.sim.data.qpos[drawer.env._joint] = 0.0
    drawer.env.sim.forward()
    changed = (images(drawer)[0] != before[0]).any(-1)
    assert 0.002 < changed.mean() < 0.2
    assert 0.01 < robot[0].mean() < 0.5  # the robot is in the third person's image, and the cabinet is none of it
    assert (robot == masks(drawer)).mean() > 0.97


@pytest.fixture(scope="module")
def box() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("OpenBox", size=64)
    yield task
    task.close()


@pytest.mark.slow
def test_the_scripted_expert_opens_the_box(box: RobosuiteEnv) -> None:
    # Other seeds than those of demonstrations and evaluation, and few of them, for time.
    for seed in (100, 101, 102):
        box.reset(seed=seed)
        assert any(act(box, box.expert()).success for _ in range(box.horizon)), seed


@pytest.mark.slow
def test_the_lid_is_led_along_its_arc_and_not_thrown(box: RobosuiteEnv) -> None:
    box.reset(seed=1)
    angles = [box.env.joint]
    while angles[-1] < np.pi / 3:
        box.step(box.expert())
        angles.append(box.env.joint)
        assert len(angles) < box.horizon
    assert np.diff(angles).max() < 0.2  # radians in 1/20 s
    assert angles[0] == pytest.approx(0.0, abs=0.01)


@pytest.mark.slow
def test_success_is_sixty_degrees(box: RobosuiteEnv) -> None:
    box.reset(seed=2)
    env = box.env
    for degrees, reward in ((0, 0.0), (59, 0.0), (61, 1.0), (90, 1.0)):
        env.sim.data.qpos[env._joint] = np.radians(degrees)
        assert env.reward() == reward


@pytest.mark.slow
def test_a_lid_let_go_of_falls_shut(box: RobosuiteEnv) -> None:
    box.reset(seed=3)
    box.env.sim.data.qpos[box.env._joint] = np.radians(40)
    for _ in range(40):
        box.step(np.zeros(7, np.float32))
    assert box.env.joint == pytest.approx(0.0, abs=0.02)


@pytest.mark.slow
def test_the_box_s_placement_is_the_seed_s_and_within_bounds(box: RobosuiteEnv) -> None:
    env, places = box.env, []
    for seed in range(12):
        box.reset(seed=seed)
        x, y, z = env.sim.model.body_pos[env._body]
        assert -0.04 <= x <= 0.08
        assert -0.02 <= y <= 0.10
        assert z == pytest.approx(0.845)
        assert np.arccos(-env.hinge[1][0]) <= 0.35 + 1e-6
        places.append((x, y, *env.bar))
    assert len(set(places)) == len(places)
    box.reset(seed=5)
    assert (*env.sim.model.body_pos[env._body][:2], *env.bar) == places[5]
