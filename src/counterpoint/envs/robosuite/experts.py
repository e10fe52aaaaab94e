"""Scripted experts of robosuite's cubes: from the simulator's own state to the next action of the hand.

Each is a proportional controller whose target moves through few phases, judged anew at every step from what is:
a cube that slips, or a hand that noise has pushed away, sends it back to an earlier one. Actions are bounded and,
but for the gripper's, smooth.

The scripted expert of robosuite's Door: it takes the lever, turns it down and draws the door open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite.hand import CLOSE, OPEN, SPEED, Hand, pointing_down, rotation_vector

__all__ = ["CLOSING", "DoorExpert", "LiftExpert", "StackExpert"]


CLOSING = 8  # steps that fingers need to close on a cube
_NEAR = 0.012  # metres within which the hand is where it should be
_TURNED = 0.1  # radians likewise
_STACKED = 0.006  # metres within which a cube is let go
_FUNNEL = 5.0  # how steeply the hand comes down on what it is beside
_CLEAR = 0.08  # metres above a cube
_LIFTED = 0.12  # metres above the table


class _Picker:
    """Goes to a cube from above and closes the fingers on it.

    Args:
        env: An environment of robosuite with one arm.
        cube: The cube's model.
    """

    def __init__(self, env: Any, cube: Any) -> None:
        self.hand = Hand(env)
        self._env, self._cube = env, cube
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._closed = 0
        self._along: Array | None = None

    @property
    def position(self) -> Array:
        """Of the cube's centre, in metres: [3]."""
        return self._of_body(self._env.sim.data.body_xpos)

    def pick(self, *, beside: Array | None = None) -> Array | None:
        """The next action, or `None` when the cube is held.

        Args:
            beside: What stands nearby [3]; the fingers then come down to the left and right of the way to it.
        """
        closing = self._closing(beside)
        rotation = pointing_down(closing)
        away = self.position - self.hand.position
        if self._closed >= CLOSING:
            if self.held():
                return None
            self._closed = -CLOSING  # it slipped, or was never there: up and again
        turn = float(np.linalg.norm(rotation_vector(rotation @ self.hand.rotation.T)))
        off = float(np.hypot(away[0], away[1]))
        if self._closed < 0:
            self._closed += 1
            return self.hand.towards(self.position + np.array([0.0, 0.0, _CLEAR]), rotation, OPEN)
        if self._closed or (np.linalg.norm(away) < _NEAR and turn < _TURNED):
            self._closed += 1
            return self.hand.towards(self.position, rotation, CLOSE)
        above = np.clip(_FUNNEL * max(off - _NEAR / 2, 0.1 * (turn - _TURNED)), 0.0, _CLEAR)
        return self.hand.towards(self.position + np.array([0.0, 0.0, above]), rotation, OPEN)

    def held(self) -> bool:
        """Whether both fingers touch the cube, and it is between them."""
        arm = self._env.robots[0]
        touched = self._env._check_grasp(gripper=arm.gripper[arm.arms[0]], object_geoms=self._cube)
        return bool(touched) and float(np.linalg.norm(self.position - self.hand.position)) < 2 * _NEAR

    def _closing(self, beside: Array | None) -> Array:
        """The level direction along which the fingers close: a side of the cube, the nearest at the start."""
        sides = self._of_body(self._env.sim.data.body_xmat).reshape(3, 3).T
        level = sides[np.argsort(np.abs(sides[:, 2]))[:2]] * [1.0, 1.0, 0.0]
        axes = level / np.linalg.norm(level, axis=1, keepdims=True)
        axes = np.concatenate([axes, -axes])
        wanted = self.hand.rotation[:, 0] if self._along is None else self._along
        fit = axes @ wanted
        if self._along is None and beside is not None:
            way = beside - self.position
            fit = fit - 2.0 * (np.abs(axes @ way) / np.linalg.norm(way) > np.sqrt(0.5))
        chosen: Array = axes[fit.argmax()]
        self._along = chosen
        return chosen

    def _of_body(self, values: Array) -> Array:
        value: Array = values[self._env.sim.model.body_name2id(self._cube.root_body)]
        return value


class LiftExpert:
    """Picks the cube up and holds it 10 cm above where it lay.

    Args:
        env: robosuite's Lift.
    """

    def __init__(self, env: Any) -> None:
        self._picker = _Picker(env, env.cube)
        self._height = float(env.table_offset[2]) + _LIFTED

    def reset(self) -> None:
        """An episode begins."""
        self._picker.reset()

    def act(self) -> Array:
        """The next action: float64 [7]."""
        action = self._picker.pick()
        if action is not None:
            return action
        hand = self._picker.hand
        above = np.array([*hand.position[:2], self._height])
        return hand.towards(above, pointing_down(hand.rotation[:, 0]), CLOSE)


class StackExpert:
    """Picks the red cube, carries it over the green one, puts it down and draws back.

    Args:
        env: robosuite's Stack.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._picker, self._below = _Picker(env, env.cubeA), _Picker(env, env.cubeB)
        self._gap = float(env.cubeA.size[2] + env.cubeB.size[2])  # between the centres of stacked cubes
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._picker.reset()
        self._placed = False

    def act(self) -> Array:
        """The next action: float64 [7]."""
        hand, top = self._picker.hand, self._below.position + np.array([0.0, 0.0, self._gap])
        away = top - self._picker.position
        off = float(np.hypot(away[0], away[1]))
        if self._placed and off > 2 * _NEAR:  # it fell
            self.reset()
        if self._placed:
            back = np.array([*hand.position[:2], top[2] + _CLEAR])
            return hand.towards(back, pointing_down(hand.rotation[:, 0]), OPEN, speed=SPEED / 2)
        action = self._picker.pick(beside=self._below.position)
        if action is not None:
            return action
        self._placed = bool(off < _STACKED and abs(away[2]) < _STACKED)
        low = np.clip(_FUNNEL * (off - _STACKED / 2), 0.0, _CLEAR)
        lifted = self._picker.position[2] > top[2] + min(low, _CLEAR) - 2 * _NEAR
        goal = top + np.array([0.0, 0.0, low]) if lifted else np.array([*self._picker.position[:2], top[2] + _CLEAR])
        moved = hand.position + goal - self._picker.position
        return hand.towards(moved, pointing_down(hand.rotation[:, 0]), CLOSE)


_GRIP = (0.09, -0.10, 0.0)  # on the lever, in metres from its axis, in the frame of the latch
_AJAR = 0.07  # metres between the pads, so that one fits between lever and door
_NEAR_ROBOSUITE_DOOR, _TURNED_ROBOSUITE_DOOR = (
    0.012,
    0.15,
)  # metres and radians within which the hand is where it should be
_LOST = 0.05  # metres from the grip at which the lever has slipped out
_FUNNEL_ROBOSUITE_DOOR, _CLEAR_ROBOSUITE_DOOR = (
    5.0,
    0.10,
)  # how steeply the hand comes down beside the lever, and from how far
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
        if not self._closed and (far > _NEAR_ROBOSUITE_DOOR or turn > _TURNED_ROBOSUITE_DOOR):
            into = rotation[:, 2]
            off = float(np.linalg.norm(away - (away @ into) * into))
            back = np.clip(
                _FUNNEL_ROBOSUITE_DOOR * max(off - _NEAR_ROBOSUITE_DOOR / 2, 0.1 * (turn - _TURNED_ROBOSUITE_DOOR)),
                0.0,
                _CLEAR_ROBOSUITE_DOOR,
            )
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
