from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from counterpoint.envs.robosuite.env import RobosuiteEnv
from counterpoint.envs.robosuite.experts import bounded, pointing_down, rotation_vector
from tests.envs.played import act

needs_robosuite = pytest.mark.skipif(
    importlib.util.find_spec("robosuite") is None, reason="needs the extra `robosuite`"
)


def solved_after(task: RobosuiteEnv, seed: int, noise: float = 0.0) -> int | None:
    task.reset(seed=seed)
    shaken = np.random.default_rng(seed)
    for step in range(task.horizon):
        action = task.expert()
        assert action.dtype == np.float32
        assert action.shape == (7,)
        assert np.abs(action).max() <= 1.0
        np.testing.assert_array_equal(task.expert(), action)  # asked again, it says the same
        if act(task, (action + noise * shaken.standard_normal(7)).clip(-1, 1)).success:
            return step + 1
    return None


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_the_cube_is_lifted_even_when_the_hand_is_shaken() -> None:
    task = RobosuiteEnv("Lift", cameras=[])
    steps = [solved_after(task, seed) for seed in (100, 101)]
    assert all(step is not None and step < 80 for step in steps)
    assert solved_after(task, 100) == steps[0]
    assert solved_after(task, 102, noise=0.1) is not None


@pytest.mark.release
@needs_robosuite
@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lift-IIWA", "Door", "Door-Kinova3", "Stack", "Stack-Kinova3", "Stack-IIWA"])
def test_experts_solve_their_tasks(name: str) -> None:
    task = RobosuiteEnv(name, cameras=[])
    solved = [solved_after(task, seed) is not None for seed in range(100, 105)]
    assert sum(solved) >= 4


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_a_cube_that_is_taken_away_is_gone_after_again() -> None:
    task = RobosuiteEnv("Lift", cameras=[])
    task.reset(seed=100)
    for _ in range(30):
        task.step(task.expert())
    joint = task.env.cube.joints[0]
    place = task.env.sim.data.get_joint_qpos(joint).copy()
    place[:3] = [0.05, -0.06, 0.83]
    task.env.sim.data.set_joint_qpos(joint, place)
    task.env.sim.forward()
    assert any(act(task, task.expert()).success for _ in range(task.horizon - 30))


def test_a_vector_is_shortened_and_never_lengthened() -> None:
    np.testing.assert_allclose(bounded(np.array([3.0, 0.0, 4.0]), 1.0), [0.6, 0.0, 0.8])
    np.testing.assert_array_equal(bounded(np.array([0.3, 0.0, 0.4]), 1.0), [0.3, 0.0, 0.4])
    np.testing.assert_array_equal(bounded(np.zeros(3), 1.0), np.zeros(3))


def test_a_hand_that_points_down() -> None:
    rotation = pointing_down(np.array([1.0, 2.0, 0.5]))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    np.testing.assert_array_equal(rotation[:, 2], [0, 0, -1])
    np.testing.assert_allclose(rotation[:, 0], np.array([1, 2, 0]) / np.sqrt(5))
    np.testing.assert_allclose(rotation_vector(rotation @ rotation.T), np.zeros(3), atol=1e-12)


@pytest.mark.slow
@needs_robosuite
@pytest.mark.sim
def test_fingers_close_along_the_first_axis_of_the_hand() -> None:
    task = RobosuiteEnv("Lift", cameras=[])
    task.reset(seed=0)
    hand = task._expert.hand
    pads = [task.env.sim.data.get_geom_xpos(hand._pads[side][0]) for side in ("left_fingerpad", "right_fingerpad")]
    apart = (pads[0] - pads[1]) / np.linalg.norm(pads[0] - pads[1])
    assert abs(apart @ hand.rotation[:, 0]) > 0.99
