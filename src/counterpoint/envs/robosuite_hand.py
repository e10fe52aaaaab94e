"""Where a robosuite arm's hand is and how it is to turn, for scripted experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array

__all__ = ["UP", "Hand"]

UP = np.array((0.0, 0.0, 1.0))

_TURN = 0.3  # radians off its aim from which on the hand turns more slowly


class Hand:
    """The hand of an environment's only arm.

    Args:
        env: An environment of robosuite with one arm and a gripper of two fingers.
    """

    def __init__(self, env: Any) -> None:
        robot = env.robots[0]
        arm = robot.arms[0]
        pads = robot.gripper[arm].important_geoms
        self._data = env.sim.data
        self._site = robot.eef_site_id[arm]
        self._pads = [
            env.sim.model.geom_name2id(pads[side][0]) for side in ("left_fingerpad", "right_fingerpad")
        ]

    @property
    def position(self) -> Array:
        """Between the fingertips, in the world, in metres: float64 [3]."""
        return np.array(self._data.site_xpos[self._site])

    def askew(self, line: Array) -> float:
        """The turn about the vertical, in radians, that lays the line on which the fingers open along another.

        A line has no direction, so it is at most a right angle.
        """
        left, right = self._data.geom_xpos[self._pads]
        now = left - right
        angle = np.arctan2(now[0] * line[1] - now[1] * line[0], now[:2] @ line[:2])
        return float((angle + np.pi / 2) % np.pi - np.pi / 2)

    def turn(self, line: Array) -> Array:
        """The rotation of an OSC_POSE action that points the hand down and its fingers along a line: float64 [3]."""
        pointing = np.array(self._data.site_xmat[self._site]).reshape(3, 3)[:, 2]
        turn: Array = (np.cross(pointing, -UP) + self.askew(line) * UP) / _TURN
        return turn
