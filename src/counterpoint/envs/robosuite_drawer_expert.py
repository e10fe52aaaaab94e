"""A scripted expert for `CloseDrawer`: comes down before the handle with closed fingers and pushes the drawer in."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite_hand import UP, Hand

__all__ = ["CloseDrawerExpert"]

_NEAR = 0.025  # metres off its aim from which on the hand slows down
_ABOVE = 0.14 * UP  # metres from the handle on the way there: the fingers clear the cabinet
_BEFORE = 0.05  # metres before the handle when coming down
_ASIDE, _LEVEL = 0.015, 0.012  # metres off the middle of the handle at which coming down and pushing are safe
_WIDTH = 0.035  # metres aside at which the fingers still meet the handle
_PUSH = 0.6  # of the fastest: the drawer is pushed, not struck
_STILL = 0.004  # metres open at which pushing ends


class CloseDrawerExpert:
    """What to do next, told by the state the simulator is in alone, so that it recovers from any disturbance.

    Args:
        env: A `CloseDrawer` of one arm with robosuite's OSC_POSE controller, whose actions are changes of pose.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._hand = env, Hand(env)

    def reset(self) -> None:
        """Begin an episode; there is nothing to forget."""

    def act(self) -> Array:
        """Position, rotation and gripper (closed): float32 [7] in [-1, 1]."""
        outward, handle, hand = self._env.outward, self._env.handle, self._hand.position
        sideways = np.cross(outward, UP)
        away = hand - handle
        out, aside, up = away @ outward, away @ sideways, away[2]
        before = handle + _BEFORE * outward
        centred = abs(aside) < _ASIDE
        if self._env.opening <= _STILL:
            move = np.zeros(3)
        elif abs(aside) < _WIDTH and out > 0 and abs(up) < _LEVEL:
            move = -_PUSH * outward - (aside * sideways + up * UP) / _NEAR
        elif centred and abs(out - _BEFORE) < _ASIDE:
            move = (before - hand) / _NEAR
        elif up > _ABOVE[2] / 2:
            move = (before + _ABOVE - hand) / _NEAR
        else:  # straight there it might touch the cabinet
            move = UP
        pose = np.concatenate([move, self._hand.turn(outward)]).clip(-1.0, 1.0)
        return np.append(pose, 1.0).astype(np.float32)
