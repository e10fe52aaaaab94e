from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from counterpoint.envs.robosuite.env import RobosuiteEnv
from counterpoint.envs.robosuite.experts import bounded, pointing_down, rotation_vector

needs_robosuite = pytest.mark.skipif(
    importlib.util.find_spec("robosuite") is None, reason="needs the extra `robosuite`"
)


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


@needs_robosuite
@pytest.mark.sim
def test_fingers_close_along_the_first_axis_of_the_hand() -> None:
    task = RobosuiteEnv("Lift")
    task.reset(seed=0)
    hand = task._expert.hand
    pads = [task.env.sim.data.get_geom_xpos(hand._pads[side][0]) for side in ("left_fingerpad", "right_fingerpad")]
    apart = (pads[0] - pads[1]) / np.linalg.norm(pads[0] - pads[1])
    assert abs(apart @ hand.rotation[:, 0]) > 0.99
