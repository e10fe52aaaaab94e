"""A robosuite arm's hand as the simulator knows it, and the actions that move it: what scripted experts share."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array

__all__ = ["CLOSE", "OPEN", "SPEED", "UP", "Hand", "bounded", "pointing_down", "rotation_vector"]

UP = np.array((0.0, 0.0, 1.0))
OPEN, CLOSE = -1.0, 1.0
SPEED = 0.7
"""The largest displacement that `Hand.towards` asks for, of 1."""

_REACH = 0.05  # metres that 1 asks for
_TURN = 0.5  # radians that 1 asks for
_GAIN = 2.0  # of what is left to go; the controller moves an eighth of what it is asked for in one step
_WIDTH_BAND = 0.008  # metres by which the fingers may miss a width that is asked for
_SWUNG = 0.3  # radians off its aim from which on `Hand.turn` asks for less than all


class Hand:
    """The hand of an environment's only arm.

    Args:
        env: An environment of robosuite with one arm and a gripper of two fingers.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    @property
    def position(self) -> Array:
        """Of the grip site between the fingertips, in the world, in metres: float64 [3]."""
        return np.array(self._data.site_xpos[self._site])

    @property
    def rotation(self) -> Array:
        """Of the grip site: [3, 3], whose columns are x along which the fingers close, y, and z out of the hand."""
        rotation: Array = self._data.site_xmat[self._site].reshape(3, 3)
        return rotation

    @property
    def width(self) -> float:
        """Between the pads of the two fingers, in metres."""
        return float(np.linalg.norm(self._between_pads))

    def towards(self, position: Array, rotation: Array, gripper: float, *, speed: float = SPEED) -> Array:
        """The action that brings the hand nearer to a pose in the world: float64 [7] in [-1, 1].

        Args:
            position: Of the grip site, in metres: [3].
            rotation: Of the grip site: [3, 3].
            gripper: Above 0 closes, below opens.
            speed: The largest displacement asked for, 1 at most.
        """
        shift = bounded(_GAIN * (position - self.position) / _REACH, speed)
        turn = bounded(_GAIN * rotation_vector(rotation @ self.rotation.T) / _TURN, speed)
        return np.concatenate([shift, turn, [gripper]])

    def opened(self, width: float) -> float:
        """The gripper's action that brings its pads about that far from each other; 0 leaves them."""
        off = width - self.width
        return 0.0 if abs(off) < _WIDTH_BAND else (OPEN if off > 0 else CLOSE)

    def askew(self, line: Array) -> float:
        """The turn about the vertical, in radians, that lays the line on which the fingers open along another.

        A line has no direction, so it is at most a right angle.
        """
        now = self._between_pads
        angle = np.arctan2(now[0] * line[1] - now[1] * line[0], now[:2] @ line[:2])
        return float((angle + np.pi / 2) % np.pi - np.pi / 2)

    def turn(self, line: Array) -> Array:
        """The rotation of an OSC_POSE action that points the hand down and its fingers along a line: float64 [3]."""
        turn: Array = (np.cross(self.rotation[:, 2], -UP) + self.askew(line) * UP) / _SWUNG
        return turn

    @property
    def _data(self) -> Any:
        return self._env.sim.data

    @property
    def _site(self) -> int:
        arm = self._env.robots[0]
        return int(arm.eef_site_id[arm.arms[0]])

    @property
    def _pads(self) -> Any:
        arm = self._env.robots[0]
        return arm.gripper[arm.arms[0]].important_geoms

    @property
    def _between_pads(self) -> Array:
        """From the right finger's pad to the left one's, in metres: [3]."""
        pads = [self._pads[side] for side in ("left_fingerpad", "right_fingerpad")]
        left, right = (self._data.geom_xpos[self._env.sim.model.geom_name2id(pad[0])] for pad in pads)
        return np.asarray(left - right)


def bounded(vector: Array, length: float) -> Array:
    """The vector, shortened where it is longer."""
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))


def rotation_vector(rotation: Array) -> Array:
    """Axis times angle of a rotation matrix: [3]."""
    from scipy.spatial.transform import Rotation

    vector: Array = Rotation.from_matrix(rotation).as_rotvec()
    return vector


def pointing_down(closing: Array) -> Array:
    """The rotation of a hand that points down and closes its fingers along a level direction [3]: [3, 3]."""
    x = np.array([closing[0], closing[1], 0.0]) / np.hypot(closing[0], closing[1])
    z = np.array([0.0, 0.0, -1.0])
    return np.stack([x, np.cross(z, x), z], axis=1)
