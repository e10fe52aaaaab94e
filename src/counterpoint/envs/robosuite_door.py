"""The scripted expert of robosuite's Door: it takes the lever, turns it down and draws the door open."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite_experts import CLOSING
from counterpoint.envs.robosuite_hand import CLOSE, Hand, rotation_vector

__all__ = ["DoorExpert"]

_GRIP = (0.09, -0.10, 0.0)  # on the lever, in metres from its axis, in the frame of the latch
_AJAR = 0.07  # metres between the pads, so that one fits between lever and door
_NEAR, _TURNED = 0.012, 0.15  # metres and radians within which the hand is where it should be
_LOST = 0.05  # metres from the grip at which the lever has slipped out
_FUNNEL, _CLEAR = 5.0, 0.10  # how steeply the hand comes down beside the lever, and from how far
_FREE, _DOWN = 1.35, 1.5  # radians of the lever: the latch no longer catches, and where the hand keeps it
_FURTHER = 0.4  # radians by which the hand leads the lever
_WIDE, _AHEAD = 0.37, 0.12  # radians: of the door when it is open wide, and how far the hand leads it


class DoorExpert:
    """Takes the lever from above, turns it with the hand, and goes on along the door's own arc.

    Args:
        env: robosuite's Door with its latch.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._hand = env, Hand(env)
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._closed = 0

    def act(self) -> Array:
        """The next action: float64 [7]."""
        hand = self._hand
        position, rotation = self._lever(0.0, 0.0)
        away = position - hand.position
        turn = float(np.linalg.norm(rotation_vector(rotation @ hand.rotation.T)))
        far = float(np.linalg.norm(away))
        if self._closed and far > _LOST:
            self._closed = 0
        if not self._closed and (far > _NEAR or turn > _TURNED):
            into = rotation[:, 2]
            off = float(np.linalg.norm(away - (away @ into) * into))
            back = np.clip(_FUNNEL * max(off - _NEAR / 2, 0.1 * (turn - _TURNED)), 0.0, _CLEAR)
            return hand.towards(position - back * into, rotation, hand.opened(_AJAR))
        self._closed += 1
        if self._closed <= CLOSING:
            return hand.towards(position, rotation, CLOSE)
        turned, opened = self._angle("latch_joint"), self._angle("hinge")
        if turned < _FREE and opened < _AHEAD / 4:
            return hand.towards(*self._lever(_FURTHER, 0.0), CLOSE)
        return hand.towards(*self._lever(_DOWN - turned, min(_AHEAD, _WIDE - opened)), CLOSE)

    def _lever(self, turned: float, opened: float) -> tuple[Array, Array]:
        """Where the hand holds the lever once it and the door have turned further: position [3], rotation [3, 3]."""
        from scipy.spatial.transform import Rotation

        sim = self._env.sim
        latch = sim.model.body_name2id(self._env.door.latch_body)
        frame = sim.data.body_xmat[latch].reshape(3, 3)
        position = sim.data.body_xpos[latch] + frame @ np.array(_GRIP)
        closing, out = -frame[:, 2], frame[:, 1]
        rotation = np.stack([closing, np.cross(out, closing), out], axis=1)
        for joint, angle in (("latch_joint", turned), ("hinge", opened)):
            number = sim.model.joint_name2id(self._env.door.naming_prefix + joint)
            anchor, axis = sim.data._data.xanchor[number], sim.data._data.xaxis[number]
            further = Rotation.from_rotvec(angle * axis).as_matrix()
            position, rotation = anchor + further @ (position - anchor), further @ rotation
        return position, rotation

    def _angle(self, joint: str) -> float:
        """Of a joint of the door, in radians."""
        return float(self._env.sim.data.get_joint_qpos(self._env.door.naming_prefix + joint))
