from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from counterpoint.formats.rlbench.poses import from_action, rotation_vector, to_action, to_quaternion, to_state

DOWN = np.array((0.0, 1.0, 0.0, 0.0))


def unit(numbers: list[float]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.array(numbers)
    values /= np.linalg.norm(values)
    return values


quaternions = st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: np.linalg.norm(q) > 0.1).map(unit)


def matrix(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """A rotation matrix, by the textbook's formula, of a quaternion x, y, z, w."""
    x, y, z, w = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@given(quaternions)
def test_a_rotation_survives_the_way_there_and_back(quaternion: NDArray[np.float64]) -> None:
    vector = rotation_vector(quaternion)
    assert np.linalg.norm(vector) <= np.pi + 1e-9
    np.testing.assert_allclose(matrix(to_quaternion(vector)), matrix(quaternion), atol=1e-9)


@given(quaternions, st.lists(st.floats(-0.3, 1.7), min_size=3, max_size=3), st.booleans())
def test_an_action_asks_for_the_pose_it_was_made_of(
    quaternion: NDArray[np.float64], position: list[float], opened: bool
) -> None:
    pose = np.concatenate([position, quaternion])
    asked = from_action(to_action(pose, np.array(float(opened))))
    np.testing.assert_allclose(asked[:3], position, atol=1e-6)
    np.testing.assert_allclose(matrix(asked[3:7]), matrix(quaternion), atol=1e-5)
    assert np.linalg.norm(asked[3:7]) == pytest.approx(1.0, abs=1e-9)
    assert asked[7] == opened


def test_pointing_down_is_no_rotation_and_half_turns_lie_at_one() -> None:
    np.testing.assert_array_equal(rotation_vector(DOWN), np.zeros(3))
    # A quarter turn of the hand about the vertical, on top of pointing down.
    s = np.sqrt(0.5)
    turned = np.array((-s, s, 0.0, 0.0))  # z(90 degrees) times y(180 degrees)
    np.testing.assert_allclose(rotation_vector(turned), (0, 0, np.pi / 2), atol=1e-12)
    action = to_action(np.array((0.25, 0.75, 1.25, *turned)), np.array(0.0))
    np.testing.assert_allclose(action, (0, 1, 0, 0, 0, 0.5, -1), atol=1e-6)


def test_both_signs_of_a_quaternion_are_one_rotation() -> None:
    quaternion = unit([0.3, 0.9, -0.2, 0.1])
    np.testing.assert_allclose(rotation_vector(quaternion), rotation_vector(-quaternion), atol=1e-12)


def test_near_straight_down_nothing_jumps() -> None:
    nearly = [unit([x, 1.0, z, w]) for x in (-1e-3, 1e-3) for z in (-1e-3, 1e-3) for w in (-1e-3, 1e-3)]
    vectors = np.stack([rotation_vector(sign * q) for q in nearly for sign in (-1, 1)])
    assert np.abs(vectors).max() < 5e-3


def test_a_state_has_fourteen_numbers() -> None:
    joints, pose = np.arange(14.0).reshape(2, 7), np.tile(np.array((1.0, 2.0, 3.0, *DOWN)), (2, 1))
    state = to_state(joints, pose, np.array((1.0, 0.0)))
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state[:, :7], joints)
    np.testing.assert_array_equal(state[:, 7:], [[1, 2, 3, 0, 0, 0, 1], [1, 2, 3, 0, 0, 0, 0]])
