"""A scripted expert for `OpenBox`: turns the hand to the bar, grasps it from above and leads it along its arc."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite_hand import UP, Hand

__all__ = ["OpenBoxExpert"]

_NEAR = 0.025  # metres off its aim from which on the hand slows down
_ABOVE = 0.09 * UP  # metres from the bar on the way there: open fingers clear it
_ACROSS, _ALONG = (
    0.018,
    0.03,
)  # metres off the bar's middle, across and along it, at which coming down is safe
_ASKEW = 0.08  # radians that the fingers may be askew to the bar then
_GRASP, _HELD = (
    0.006,
    0.018,
)  # metres from the bar at which fingers begin to close, and within which they hold it
_CLOSING = 14  # steps that closing takes
_LEAD = 0.30  # radians on its arc that the hand's aim is ahead of the bar
_LED = 0.5  # of the fastest: the lid is led, not torn
_WIDE = 1.3  # radians open at which leading ends


class OpenBoxExpert:
    """What to do next, told by the simulator's state and how long the fingers have been closing.

    A bar that slips away is grasped again.

    Args:
        env: An `OpenBox` of one arm with robosuite's OSC_POSE controller, whose actions are changes of pose.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._hand = env, Hand(env)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._closing = 0

    def act(self) -> Array:
        """Position, rotation and gripper: float32 [7] in [-1, 1]."""
        hand, bar = self._hand.position, self._env.bar
        point, axis = self._env.hinge
        across = np.cross(axis, UP)
        away = hand - bar
        along = abs(away @ axis)
        aside = np.linalg.norm(away - (away @ axis) * axis)
        near = along < _ALONG and aside < (_HELD if self._closing else _GRASP)
        self._closing = self._closing + 1 if near else 0
        above = abs(self._hand.askew(across)) < _ASKEW and along < _ALONG and abs(away @ across) < _ACROSS
        if self._closing > _CLOSING:
            move = (point + _rotated(bar - point, axis, _LEAD) - hand) / _NEAR
            move = move.clip(-_LED, _LED) * (self._env.angle < _WIDE)
        elif self._closing or above:
            move = (bar - hand) / _NEAR
        elif away[2] > _ABOVE[2] / 2:
            move = (bar + _ABOVE - hand) / _NEAR
        else:
            move = UP
        pose = np.concatenate([move, self._hand.turn(across)]).clip(-1.0, 1.0)
        return np.append(pose, 1.0 if self._closing else -1.0).astype(np.float32)


def _rotated(vector: Array, axis: Array, angle: float) -> Array:
    """By Rodrigues' formula."""
    along = (vector @ axis) * axis
    turned: Array = along + np.cos(angle) * (vector - along) + np.sin(angle) * np.cross(axis, vector)
    return turned
