from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.make import make_env
from counterpoint.envs.robosuite.env import TASKS, RobosuiteEnv, resolve_robosuite, robosuite_name
from tests.envs.played import act, images, masks

pytestmark = pytest.mark.sim
pytest.importorskip("robosuite", reason="needs the extra `robosuite`")

SHARED = [name for name, spec in TASKS.items() if spec.scene == "shared"]
DRAWER, LID = 28, 29  # places of the joints in the environment state
BEGINS: dict[str, tuple[int, bool]] = {
    "SharedCloseDrawer": (DRAWER, True),
    "SharedOpenDrawer": (DRAWER, False),
    "SharedOpenBox": (LID, False),
    "SharedCloseBox": (LID, True),
}
"""Name of a task -> the joint that it moves, and whether that is open at the start."""


@pytest.fixture(scope="module")
def drawer() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("SharedOpenDrawer", size=64)
    yield task
    task.close()


def begun(task: RobosuiteEnv, seed: int) -> Array:
    """The environment state at the beginning of an episode."""
    found, _ = task.reset(seed=seed)
    return np.array(found["environment_state"])


def solved_after(task: RobosuiteEnv, seed: int) -> int | None:
    task.reset(seed=seed)
    return next((step for step in range(task.horizon) if act(task, task.expert()).success), None)


def check_beginning(name: str, scene: Array) -> None:
    red, green = scene[14:17], scene[21:24]
    assert np.linalg.norm(red - green) > 0.099
    for cube in (red, green):
        assert -0.201 < cube[0] < -0.119
        assert -0.131 < cube[1] < 0.161
    joint, is_open = BEGINS.get(name, (None, False))
    if joint is not None:
        assert (scene[joint] > 0.07) == is_open


def test_the_expert_opens_the_drawer_and_moves_nothing_else(drawer: RobosuiteEnv) -> None:
    before = begun(drawer, 100)
    assert solved_after(drawer, 100) is not None
    moved = np.abs(drawer.environment_state() - before)
    assert moved[DRAWER] > 0.07
    assert np.delete(moved, DRAWER).max() < 0.01


def test_a_seed_decides_the_scene_and_its_states_are_drawn_evenly(drawer: RobosuiteEnv) -> None:
    scenes = [begun(drawer, seed) for seed in range(30)]
    for scene in scenes:
        check_beginning("SharedOpenDrawer", scene)
    lids = np.array([scene[LID] for scene in scenes])
    assert 0.3 < (lids > 1.7).mean() < 0.7
    np.testing.assert_allclose(lids[lids < 1.7], 0.0, atol=0.01)
    np.testing.assert_array_equal(begun(drawer, 5), scenes[5])
    assert len({scene.tobytes() for scene in scenes}) == len(scenes)


def test_the_image_shows_all_objects(drawer: RobosuiteEnv) -> None:
    drawer.reset(seed=6)
    before, robot = images(drawer)[0], masks(drawer)[0]
    model = drawer.env.sim.model._model
    assert 0.01 < robot.mean() < 0.5
    for thing in drawer.env.objects.values():
        body = model.body(thing.root_body).id
        parts = np.flatnonzero(model.body_rootid[model.geom_bodyid] == body)
        groups = model.geom_group[parts].copy()
        model.geom_group[parts] = 0
        gone = (images(drawer)[0] != before).any(-1)
        model.geom_group[parts] = groups
        assert 0.0005 < gone.mean() < 0.2
        assert not (gone & robot).any()
        edges = np.concatenate([gone[0], gone[-1], gone[:, 0], gone[:, -1]])
        assert not edges.any()  # the object is completely inside the image


def test_names_are_those_of_other_tasks() -> None:
    for task in SHARED:
        name = robosuite_name(task, "IIWA")
        assert resolve_robosuite(name.partition("/")[2]) == (task, "IIWA")
    assert TASKS["SharedLift"].instruction == "lift the red cube"


@pytest.mark.slow
def test_all_tasks_share_the_scene_but_for_the_task_s_own_joint() -> None:
    tasks = {name: make_env(f"robosuite/{name}", cameras=[]) for name in SHARED}
    for seed in range(8):
        scenes = {name: begun(task, seed) for name, task in tasks.items()}  # type: ignore[arg-type]
        reference = scenes["SharedLift"]
        np.testing.assert_array_equal(reference, scenes["SharedStack"])
        for name, scene in scenes.items():
            check_beginning(name, scene)
            joint, _ = BEGINS.get(name, (None, False))
            kept = [place for place in range(len(scene)) if place != joint]
            np.testing.assert_allclose(scene[kept], reference[kept], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_experts_solve_their_tasks(name: str) -> None:
    task = RobosuiteEnv(name, cameras=[])
    steps = [solved_after(task, seed) for seed in range(120, 125)]
    assert sum(step is not None and step > 10 for step in steps) >= 4, steps


@pytest.mark.slow
def test_success_needs_the_cube_on_the_other_one_and_let_go() -> None:
    task = RobosuiteEnv("SharedStack", cameras=[])
    task.reset(seed=1)
    env = task.env
    assert env.reward() == 0.0
    for height, reward in ((0.0451, 1.0), (0.2, 0.0)):
        place = env.sim.data.get_joint_qpos(env.cubeB.joints[0]).copy()
        place[2] += height - 0.0005
        env.sim.data.set_joint_qpos(env.cubeA.joints[0], place)
        env.sim.forward()
        assert env.reward() == reward
