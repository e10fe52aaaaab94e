from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.collect import versions
from counterpoint.envs.make import SUITES, make_env
from counterpoint.envs.robosuite.env import (
    CAMERAS,
    MASK_PARTS,
    ROBOTS,
    TASKS,
    RobosuiteEnv,
    resolve_robosuite,
    robosuite_name,
    robot_geoms,
)
from counterpoint.errors import BadInputError, MissingExtraError
from tests.envs.played import act, images, masks

needs_robosuite = pytest.mark.skipif(
    importlib.util.find_spec("robosuite") is None, reason="needs the extra `robosuite`"
)

SIZE = 48


@pytest.fixture(scope="module")
def lift() -> Iterator[RobosuiteEnv]:
    task = RobosuiteEnv("Lift", size=SIZE)
    yield task
    task.close()


def played(task: RobosuiteEnv, seed: int, steps: int = 12) -> Array:
    """States of an episode under actions that `seed` does not decide."""
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, task.action_dim))
    task.reset(seed=seed)
    states = [task.state()]
    for action in actions:
        task.step(action)
        states.append(task.state())
    return np.stack(states)


@needs_robosuite
def test_the_environment_state_is_where_the_cube_is(lift: RobosuiteEnv) -> None:
    observation, _ = lift.reset(seed=3)
    assert observation["environment_state"].shape == (lift.environment_dim,) == (10,)
    assert observation in lift.observation_space
    for _ in range(3):
        sim = lift.env.sim
        place = sim.data.body_xpos[sim.model.body_name2id("cube_main")]
        found = observation["environment_state"]
        np.testing.assert_allclose(found[:3], place, atol=1e-3)
        np.testing.assert_allclose(found[7:], found[:3] - observation["state"][:3], atol=1e-5)
        observation, *_ = lift.step(np.array([0, 0, 0.5, 0, 0, 0, -1]))


def test_names_of_tasks_and_robots() -> None:
    assert resolve_robosuite("Lift") == ("Lift", "Panda")
    assert resolve_robosuite("Stack-IIWA") == ("Stack", "IIWA")
    assert resolve_robosuite("Door", "Kinova3") == ("Door", "Kinova3")
    assert resolve_robosuite("Door-Kinova3", "Kinova3") == ("Door", "Kinova3")
    for task in TASKS:
        for robot in ROBOTS:
            name = robosuite_name(task, robot)
            assert resolve_robosuite(name.partition("/")[2]) == (task, robot)
    assert robosuite_name("Lift") == "robosuite/Lift"
    assert "robosuite" in SUITES


def test_lengths_are_those_of_the_paper() -> None:
    assert [TASKS[task].horizon for task in ("Lift", "Door", "Stack")] == [200, 300, 300]


@pytest.mark.slow
def test_unknown_names() -> None:
    with pytest.raises(BadInputError, match="task 'Fly'; expected one of Lift, Door, Stack"):
        make_env("robosuite/Fly")
    with pytest.raises(BadInputError, match="robot 'Spot'; expected one of Panda, Kinova3, IIWA"):
        make_env("robosuite/Lift-Spot")
    with pytest.raises(BadInputError, match="robot 'Panda' beside it"):
        RobosuiteEnv("Lift-IIWA", robot="Panda")
    with pytest.raises(BadInputError, match="'leg'; expected some of arm, gripper, mount"):
        RobosuiteEnv("Lift", mask_parts=("arm", "leg"))
    with pytest.raises(BadInputError, match="found none"):
        RobosuiteEnv("Lift", mask_parts=())
    with pytest.raises(BadInputError, match="at least 16 pixels"):
        RobosuiteEnv("Lift", size=8)
    with pytest.raises(BadInputError, match="1 or more"):
        RobosuiteEnv("Lift", steps=0)
    with pytest.raises(BadInputError, match="only Meta-World has a choice"):
        make_env("robosuite/Lift", repeat=2)


def test_without_robosuite(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[robosuite\]'"):
        make_env("robosuite/Lift")


@needs_robosuite
@pytest.mark.sim
def test_an_unknown_camera_is_told_with_those_known() -> None:
    with pytest.raises(BadInputError, match=r"'roof'; expected one of frontview, birdview, agentview"):
        make_env("robosuite/Lift", cameras="roof")


@needs_robosuite
@pytest.mark.sim
def test_the_face(lift: RobosuiteEnv) -> None:
    assert (lift.name, lift.instruction, lift.horizon) == ("robosuite/Lift", "lift the cube", 200)
    assert (lift.action_dim, lift.state_dim, lift.cameras) == (7, 9, CAMERAS)
    assert lift.env.action_dim == 7
    controller = lift.env.robots[0].part_controllers["right"]
    assert (controller.name, controller.input_ref_frame) == ("OSC_POSE", "base")
    np.testing.assert_array_equal(controller.output_max, [0.05] * 3 + [0.5] * 3)
    lift.reset(seed=0)
    state, rendered = lift.state(), images(lift)
    assert state.dtype == np.float32
    assert state.shape == (9,)
    assert np.linalg.norm(state[3:7]) == pytest.approx(1.0, abs=1e-5)
    assert rendered.dtype == np.uint8
    assert rendered.shape == (2, SIZE, SIZE, 3)
    outcome = act(lift, np.zeros(7, np.float32))
    assert (outcome.reward, outcome.success, outcome.ended) == (0.0, False, False)


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_a_seed_decides_everything_and_touches_no_other_generator(lift: RobosuiteEnv) -> None:
    generator = np.random.get_state()[1].copy()  # type: ignore[index]
    first = played(lift, 3)
    other = played(lift, 4)
    np.testing.assert_array_equal(played(lift, 3), first)
    fresh = RobosuiteEnv("Lift", size=SIZE)
    np.testing.assert_array_equal(played(fresh, 3), first)
    np.testing.assert_array_equal(images(fresh), images(lift))
    fresh.close()
    assert not np.array_equal(other[0], first[0])
    np.testing.assert_array_equal(generator, np.random.get_state()[1])  # type: ignore[index]


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
@pytest.mark.parametrize("name", ["Door-IIWA", pytest.param("Stack-Kinova3", marks=pytest.mark.slow)])
def test_the_other_robots_repeat_themselves_after_a_soft_reset(name: str) -> None:
    task = RobosuiteEnv(name, cameras=[])
    first = played(task, 1, steps=6)
    played(task, 2, steps=6)
    np.testing.assert_array_equal(played(task, 1, steps=6), first)
    assert first.shape == (7, 9)


@needs_robosuite
@pytest.mark.sim
def test_the_gripper_s_state_follows_its_action(lift: RobosuiteEnv) -> None:
    widths = {}
    for name, action in (("open", -1.0), ("closed", 1.0)):
        lift.reset(seed=0)
        for _ in range(15):
            lift.step(np.array([0, 0, 0, 0, 0, 0, action]))
        left, right = lift.state()[-2:]
        widths[name] = left - right
    assert widths["open"] > 0.07  # metres between Panda's fingers
    assert widths["closed"] < 0.01


@needs_robosuite
@pytest.mark.sim
def test_an_action_moves_the_hand_along_the_axes_of_the_base(lift: RobosuiteEnv) -> None:
    for axis in range(3):
        lift.reset(seed=0)
        before = lift.state()[:3]
        for _ in range(8):
            lift.step(np.eye(7)[axis])
        moved = lift.state()[:3] - before
        assert moved[axis] > 0.05
        assert np.abs(np.delete(moved, axis)).max() < 0.02


@needs_robosuite
@pytest.mark.sim
def test_actions_that_cannot_be_taken(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    for action in (np.full(7, 1.2), np.full(7, np.nan), np.array([0, 0, 0, 0, 0, 0, -np.inf])):
        with pytest.raises(BadInputError, match=r"robosuite/Lift: action.*finite numbers in \[-1, 1\]"):
            lift.step(action)
    with pytest.raises(BadInputError, match=r"shape \(4,\)"):
        lift.step(np.zeros(4))
    lift.step(np.full(7, 1.0 + 1e-6))  # rounding


@needs_robosuite
@pytest.mark.sim
def test_images_are_upright_and_have_their_colours(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    third = images(lift)[0].astype(int)
    red = (third[..., 0] - third[..., 1:].max(axis=-1)) > 60
    row, column = np.argwhere(red).mean(axis=0) / SIZE
    assert 0.3 < row < 0.6  # the cube lies on the near half of the table, below the robot
    assert 0.3 < column < 0.7
    assert third[-4:].mean() > 200  # the white table's edge below, the grey wall above
    assert third[:4].mean() < 200


@needs_robosuite
@pytest.mark.sim
def test_masks_are_the_robot_s_pixels(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    rendered, robot = images(lift), masks(lift)
    assert robot.dtype == np.bool_
    assert robot.shape == (2, SIZE, SIZE)
    assert robot[0, :8].any()  # the robot stands behind the table
    assert not robot[0, SIZE // 2 :].any()
    assert robot[1, -4:].all()  # the hand, before the wrist's camera
    red = (rendered[..., 0].astype(int) - rendered[..., 1:].max(axis=-1)) > 60
    assert red.any()
    assert not (robot & red).any()
    np.testing.assert_array_equal(images(lift), rendered)


@needs_robosuite
@pytest.mark.sim
def test_where_geometry_is_hidden_images_change_only_inside_the_mask(lift: RobosuiteEnv) -> None:
    lift.reset(seed=0)
    whole, shown = images(lift), masks(lift)
    model = lift.env.sim.model._model
    robot = np.flatnonzero(robot_geoms(model, tuple(MASK_PARTS))[:-1])
    groups = model.geom_group[robot].copy()
    model.geom_group[robot] = 0
    without = images(lift)
    model.geom_group[robot] = groups
    changed = (whole != without).any(axis=-1)
    assert not (changed & ~shown).any()
    assert changed[shown].mean() > 0.95


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_parts_of_the_robot_make_up_its_mask() -> None:
    task = RobosuiteEnv("Lift-IIWA", size=SIZE)
    task.reset(seed=0)
    whole = masks(task)
    model, parts = task.env.sim.model._model, []
    for part in MASK_PARTS:
        task._masked = robot_geoms(model, (part,))
        parts.append(masks(task))
        assert parts[-1].any()
    task.close()
    np.testing.assert_array_equal(np.sum(parts, axis=0), whole.astype(int))
    assert not robot_geoms(model, tuple(MASK_PARTS))[-1]
    names = {model.body(number).name for number in model.geom_bodyid[~robot_geoms(model, tuple(MASK_PARTS))[:-1]]}
    assert not [name for name in names if name.startswith(("robot", "gripper", "fixed_mount"))]


@needs_robosuite
@pytest.mark.sim
def test_what_robosuite_remarks_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="robosuite_logs"):
        RobosuiteEnv("Lift")
    assert not [record for record in caplog.records if record.name == "robosuite_logs"]
    logging.getLogger("robosuite_logs").warning("heard again")
    assert "heard again" in caplog.text


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_rendering_is_described() -> None:
    described = RobosuiteEnv("Door", cameras="agentview", size=256).describe_rendering()
    assert described["size"] == 256
    assert described["mesh_cell_m"] == pytest.approx(0.5 / 256)
    assert described["canary"]["task"] == "robosuite/Lift"
    assert len(described["canary"]["sha256"]) == 64
    assert list(described["camera_pose"]) == ["agentview"]
    assert set(versions(RobosuiteEnv.packages)) == {"robosuite", "mujoco", "numpy"}


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_made_by_name() -> None:
    task = make_env("robosuite/Stack-Kinova3", cameras="frontview", size=32, render=64, steps=40)
    assert (task.name, task.horizon) == ("robosuite/Stack-Kinova3", 40)
    task.reset(seed=0)
    assert task.render().shape == (32, 32, 3)
    task.close()
