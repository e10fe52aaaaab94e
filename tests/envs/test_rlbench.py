from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.envs.make import make_env
from counterpoint.envs.rlbench import TASKS, RLBenchEnv
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats.rlbench.poses import from_action, to_action
from tests.envs.played import act, images, masks
from tests.envs.rlbench_made import HOME, Environment, rlbench_simulated


@pytest.fixture
def simulated() -> Iterator[None]:
    with rlbench_simulated():
        yield


def test_without_rlbench_the_error_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rlbench", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"rlbench, which comes from GitHub.*\[rlbench\]"):
        RLBenchEnv("open_box")


@pytest.mark.usefixtures("simulated")
def test_the_five_tasks_have_the_paper_s_lengths() -> None:
    lengths = [RLBenchEnv(task, size=8).horizon for task in TASKS]
    assert lengths == [150, 200, 200, 200, 300]
    assert RLBenchEnv("open_box", size=8, steps=7).horizon == 7
    task = make_env("rlbench/open_box", size=8, cameras="wrist")
    assert isinstance(task, RLBenchEnv)
    assert task.name == "rlbench/open_box"
    assert task.render().shape == (8, 8, 3)


@pytest.mark.usefixtures("simulated")
def test_rlbench_is_asked_for_inverse_kinematics_and_what_is_looked_at_alone() -> None:
    RLBenchEnv("close_microwave", size=12)
    made = Environment.made[-1]
    assert made.headless
    assert made.action_mode.modes == ("ik", "discrete")
    assert made.config.front_camera.image_size == made.config.wrist_camera.image_size == (12, 12)
    assert made.config.front_camera.mask
    assert not made.config.front_camera.depth
    assert not made.config.overhead_camera.rgb
    assert not made.config.joint_velocities


@pytest.mark.usefixtures("simulated")
def test_images_masks_and_state() -> None:
    task = RLBenchEnv("close_microwave", size=8)
    assert task.robot_handles == (34, 39)
    rendered, robot = images(task), masks(task)
    assert rendered.shape == (2, 8, 8, 3)
    assert rendered.dtype == np.uint8
    np.testing.assert_array_equal(rendered[:, 0, 0, 0], (0, 1))
    expected = np.zeros((8, 8), bool)
    expected[[0, 2]] = True
    np.testing.assert_array_equal(robot, np.stack([expected, expected]))
    state = task.state()
    assert state.shape == (task.state_dim,)
    assert state.dtype == np.float32
    np.testing.assert_allclose(state[[0, 6, 9, 13]], (0, 6, HOME[2], 1))
    one = RLBenchEnv("close_microwave", cameras="overhead", size=8)
    assert one.render().shape == (8, 8, 3)
    assert masks(one).shape == (1, 8, 8)


@pytest.mark.usefixtures("simulated")
def test_an_action_moves_the_gripper_where_it_says_and_success_is_a_reward_of_one() -> None:
    task = RLBenchEnv("close_drawer", size=8)
    task.reset(seed=3)
    there = HOME.copy()
    there[2] = 1.1
    first = act(task, to_action(there, np.array(0.0)))
    assert (first.reward, first.success, first.ended) == (0.0, False, False)
    np.testing.assert_allclose(task.state()[7:], (0.25, 0, 1.1, 0, 0, 0, 0), atol=1e-6)
    there[2] = 0.8
    last = act(task, to_action(there, np.array(1.0)))
    assert (last.reward, last.success, last.ended) == (1.0, True, True)
    assert task.state()[13] == 1.0


@pytest.mark.usefixtures("simulated")
def test_a_pose_out_of_reach_spends_the_step() -> None:
    task = RLBenchEnv("open_box", size=8)
    before = task.state()
    outcome = act(task, np.array((1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 1.0), np.float32))
    assert not outcome.success
    assert not outcome.ended
    np.testing.assert_array_equal(task.state(), before)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("action", [np.zeros(8), np.array((0, 0, np.nan, 0, 0, 0, 1)), np.zeros((1, 7))])
def test_an_action_of_another_form_is_refused(action: Array) -> None:
    with pytest.raises(BadInputError, match=r"rlbench/open_box: action.*7 finite numbers"):
        RLBenchEnv("open_box", size=8).step(action)


@pytest.mark.usefixtures("simulated")
def test_a_seed_decides_the_episode_and_leaves_numpy_s_generator_alone() -> None:
    task = RLBenchEnv("open_box", size=8)
    np.random.seed(0)
    untouched = np.random.random(3)
    np.random.seed(0)
    states = []
    for seed in (4, 5, 4):
        task.reset(seed=seed)
        states.append(task.state())
    np.testing.assert_array_equal(np.random.random(3), untouched)
    np.testing.assert_array_equal(states[0], states[2])
    assert (states[0] != states[1]).any()


@pytest.mark.usefixtures("simulated")
def test_a_state_s_pose_asked_for_again_keeps_the_gripper_where_it_is() -> None:
    task = RLBenchEnv("open_box", size=8)
    task.reset(seed=1)
    position = task.state()[7:10]
    task.step(to_action(np.concatenate([position, HOME[3:]]), np.array(1.0)))
    np.testing.assert_allclose(task.state()[7:13], np.concatenate([position, np.zeros(3)]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(from_action(np.zeros(7))[3:7]), 1.0)


@pytest.mark.usefixtures("simulated")
def test_variations_and_instructions() -> None:
    assert RLBenchEnv("close_drawer", size=8, variation=2).instruction == "close drawer 2"
    with pytest.raises(BadInputError, match="0 to 2"):
        RLBenchEnv("close_drawer", size=8, variation=3)
    assert not Environment.made[-1].running  # nothing is left behind
    task = RLBenchEnv("close_drawer", size=8)
    task.close()
    assert not Environment.made[-1].running


def test_unknown_names_are_told_without_a_simulator() -> None:
    with pytest.raises(BadInputError, match="take_lid_off_saucepan"):
        RLBenchEnv("open_door")
    with pytest.raises(BadInputError, match="left_shoulder"):
        RLBenchEnv("open_box", cameras=("front", "agentview"))
