"""Convert RLBench's poses to actions of seven numbers and states of fourteen, and back.

Table 4 of the ICon paper has actions of seven numbers, and states of fourteen: "arm joint positions, end-effector
poses, and gripper status", 7 + 6 + 1. So a rotation is three numbers: a rotation vector, measured from the gripper
pointing straight down, since the arm mostly works close to this pose. (Measured from the world's axes, this pose is
half a turn, where rotation vectors jump in sign.)

Actions are scaled to about [-1, 1] by this library's own scale (the paper does not give its scale). For position, 0 is
(0.25, 0, 1.25) m in the world and 1 is a distance of 0.75 m from there; for rotation, 1 is half a turn; for the
gripper, 1 is open and -1 closed.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Numbers = NDArray[np.floating]

_DOWN = np.array((0.0, 1.0, 0.0, 0.0))  # x, y, z, w: half a turn about y
_CENTRE, _REACH = np.array((0.25, 0.0, 1.25)), 0.75  # metres


def to_action(
    pose: Float[Numbers, "*lead 7"], opened: Float[Numbers, "*lead"]
) -> Float[NDArray[np.float32], "*lead 7"]:
    """Return the action that moves the gripper to a pose.

    Args:
        pose: Position in metres and quaternion x, y, z, w in the world, as RLBench's `gripper_pose`.
        opened: 1 for an open and 0 for a closed gripper, as RLBench's `gripper_open`.
    """
    position = (pose[..., :3] - _CENTRE) / _REACH
    grip = np.where(np.asarray(opened) > 0.5, 1.0, -1.0)
    parts = [position, rotation_vector(pose[..., 3:]) / np.pi, grip[..., None]]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def from_action(action: Float[Numbers, "*lead 7"]) -> Float[NDArray[np.float64], "*lead 8"]:
    """Return RLBench's action: position, unit quaternion x, y, z, w, and gripper (1 open, 0 closed)."""
    wide = np.asarray(action, np.float64)
    position = wide[..., :3] * _REACH + _CENTRE
    grip = (wide[..., 6:] > 0.0).astype(np.float64)
    return np.concatenate([position, to_quaternion(wide[..., 3:6] * np.pi), grip], axis=-1)


def to_state(
    joints: Float[Numbers, "*lead 7"], pose: Float[Numbers, "*lead 7"], opened: Float[Numbers, "*lead"]
) -> Float[NDArray[np.float32], "*lead 14"]:
    """Return joint angles (radians), gripper position (metres), rotation vector from straight down, gripper opening."""
    parts = [joints, pose[..., :3], rotation_vector(pose[..., 3:]), np.asarray(opened)[..., None]]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def rotation_vector(quaternion: Float[Numbers, "*lead 4"]) -> Float[NDArray[np.float64], "*lead 3"]:
    """Return the rotation from straight down to a quaternion x, y, z, w, about the world's axes, in radians."""
    turn = _product(np.asarray(quaternion, np.float64), _DOWN * (-1, -1, -1, 1))
    turn = np.where(turn[..., 3:] < 0, -turn, turn)  # the shorter of the two rotations
    sine = np.linalg.norm(turn[..., :3], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(sine, turn[..., 3:])
    vector: NDArray[np.float64] = turn[..., :3] * np.where(sine > 1e-12, angle / np.maximum(sine, 1e-12), 2.0)
    return vector


def to_quaternion(vector: Float[Numbers, "*lead 3"]) -> Float[NDArray[np.float64], "*lead 4"]:
    """Return the unit quaternion x, y, z, w of a rotation vector: the reverse of `rotation_vector`."""
    wide = np.asarray(vector, np.float64)
    angle = np.linalg.norm(wide, axis=-1, keepdims=True)
    turn = np.concatenate([wide * np.sinc(angle / (2 * np.pi)) / 2, np.cos(angle / 2)], axis=-1)
    return _product(turn, _DOWN)


def _product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Hamilton product of quaternions x, y, z, w."""
    u, a = left[..., :3], left[..., 3:]
    v, b = right[..., :3], right[..., 3:]
    vector = a * v + b * u + np.cross(u, v)
    return np.concatenate([vector, a * b - (u * v).sum(-1, keepdims=True)], axis=-1)
