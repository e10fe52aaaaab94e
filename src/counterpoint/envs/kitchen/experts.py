"""Scripted experts of the kitchen's tasks: the hand goes to a handle and moves it along the path its joint allows.

At each step, an expert solves for the joint velocities that move the hand as desired, within the joints' speeds and
limits. It then commands target positions with which the motors reach these velocities despite gravity and damping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.rendering import import_mujoco
from counterpoint.envs.robosuite.experts import bounded, rotation_vector

FORWARD = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
"""The hand's rotation when it points into the kitchen and closes its fingers sideways; columns are its axes."""
ARM = slice(7)
OPEN, CLOSE = 1.0, -1.0
HAND = "end_effector"
Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way of moving a handle. Lengths are in metres, angles in radians.

    Attributes:
        ahead: Distance by which the hand's target leads the joint's position, in the joint's unit.
        offset: Vector from the handle's site to the hand's position when the joint is at 0; it turns with the handle.
        tilt: Rotations of the hand about the vertical, the sideways axis and the hand's axis.
        grasps: True if the fingers hold the handle; otherwise closed fingers push it.
        turns: Share of the handle's rotation that the hand follows.
        stiff: Weight of the hand's rotation, relative to its position, while it moves the handle, in metres per radian.
        until: Share of the way to the goal after which the next way begins.
        past: A position that the hand passes before it goes to the handle, given like `offset`.
    """

    ahead: float
    offset: Vector = (0.0, 0.0, 0.0)
    tilt: Vector = (0.0, 0.0, 0.0)
    grasps: bool = True
    turns: float = 0.0
    stiff: float = 0.02
    until: float = 1.0
    past: Vector | None = None


class KitchenExpert:
    """The expert of a task.

    Args:
        model: The `mujoco.MjModel` of the kitchen, whose first joints are the arm's.
        data: The state of the model.
        joint: Name of the joint to move.
        site: Name of the site of the joint's handle.
        goal: The joint's goal.
        ways: The ways of moving the handle, one after the other.
        pose: Positions of the arm's joints [7] from which the ways begin. If the arm is elsewhere at the beginning of
            an episode, for example where another task ended, it first moves there.
        over: Positions of the arm's joints [7] that it passes on this way, so that it does not hit the kitchen.
        seconds: Duration of an action in seconds.
        fastest: Velocity of a joint for an action of 1, in radians per second.
    """

    # Metres: the hand has arrived within `_near`; until it is in line, it waits `_before` in front of the handle.
    _near, _before = 0.03, 0.1
    # Metres: the hand has passed a position within `_past`; after letting go, it moves `_free` away from the handle.
    _past, _free = 0.06, 0.09
    _closing = 3  # number of actions in which the fingers close
    _speed, _turn, _gain = 0.8, 3.0, 8.0  # maximum metres and radians per second; speed per remaining distance, in 1/s
    _rest = 0.05  # weight of the joint velocities, to keep them small, in metres per radian
    _aligning = 0.3  # weight of the hand's rotation until it moves the handle, in metres per radian
    _margin = 0.02  # distance from a joint's limits, in radians
    # Radians: an arm with a joint farther than `_away` from its pose returns. It has passed the position on the way
    # when all joints are within `_passes` of it, and is back when they are within `_home` of the pose.
    _away, _passes, _home = 0.5, 0.45, 0.3
    _retreat = 3  # number of actions in which the hand lets go and moves back before the arm returns

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        joint: str,
        site: str,
        goal: float,
        ways: tuple[Way, ...],
        pose: Any,
        over: Any,
        seconds: float,
        fastest: float,
    ) -> None:
        mujoco = self._mujoco = import_mujoco()
        self._model, self._data, self._goal, self._ways = model, data, goal, ways
        self._poses = np.array([over, pose])
        self._seconds, self._unit = seconds, fastest * seconds
        self._posed = mujoco.MjData(model)
        self._hand, self._site = model.site(HAND).id, model.site(site).id
        self._joint = model.joint(joint)
        self._stiffness, self._damping = -model.actuator_biasprm[ARM, 1], model.dof_damping[ARM]
        self._fastest = np.minimum(0.7 * fastest, 0.98 * model.actuator_forcerange[ARM, 1] / self._damping)

    def reset(self) -> None:
        """Begin an episode."""
        self._number = 0
        self._begin()
        self._returned = 0 if self._from(1) > self._away else len(self._poses)
        self._backed, self._leaves = 0, False

    def leave(self) -> None:
        """Let go of the handle at the next action, and move to the position `over`, which all tasks share."""
        if not self._leaves:
            self._backed, self._leaves = 0, True

    def _begin(self) -> None:
        self._arrived = self._let_go = False
        self._passed = self._way.past is None
        self._closed = 0
        self._last = np.full(3, np.inf)

    @property
    def _way(self) -> Way:
        return self._ways[self._number]

    def act(self) -> Array:
        """Return the next action: float64 [9] in [-1, 1]."""
        way, here = self._way, float(self._data.qpos[self._joint.qposadr[0]])
        place = np.array(self._data.site_xpos[self._hand])
        if self._leaves or self._returned < len(self._poses):
            return self._return(place)
        target, rotation = self._at(here, way.offset)
        if self._let_go or (self._number + 1 < len(self._ways) and here / self._goal > way.until):
            if not self._let_go or np.linalg.norm(place - target) < self._free:
                return self._let(place)
            self._number += 1
            self._begin()
            return self.act()
        fingers = OPEN if way.grasps else CLOSE
        if not self._passed:
            point = self._at(here, way.past or way.offset)[0]
            self._passed = bool(np.linalg.norm(place - point) <= self._past)
            if not self._passed:
                return self._towards(point, rotation, fingers, self._rest)
        if not self._arrived and not self._arrives(place, target):
            away, into = place - target, rotation[:, 2]
            aside = float(np.linalg.norm(away - (away @ into) * into))
            before = float(np.clip(4 * (aside - 0.5 * self._near), 0, self._before))
            return self._towards(target - before * into, rotation, fingers, self._aligning)
        self._arrived = True
        if way.grasps and self._closed < self._closing:
            self._closed += 1
            return self._towards(target, rotation, CLOSE, self._aligning)
        low, high = self._joint.range
        there = float(np.clip(here + np.sign(self._goal) * way.ahead, low, high))
        return self._towards(*self._at(there, way.offset), CLOSE, way.stiff)

    def _arrives(self, place: Array, target: Array) -> bool:
        """Return True if the hand is at the handle, or has stopped near the handle."""
        away, moved = np.linalg.norm(place - target), np.linalg.norm(place - self._last)
        self._last = place
        stopped = away < 3 * self._near and moved < 0.2 * self._near
        return bool(stopped or away <= (1 if self._way.grasps else 2) * self._near)

    def _let(self, place: Array) -> Array:
        """Return the action that opens the fingers or, at later calls, moves the hand back."""
        back = 0.15 if self._let_go else 0.0
        self._let_go = True
        return self._backwards(place, back)

    def _backwards(self, place: Array, by: float) -> Array:
        """Return the action that opens the fingers and moves the hand back along its own axis, by metres."""
        turned = np.array(self._data.site_xmat[self._hand].reshape(3, 3))
        return self._towards(place - by * turned[:, 2], turned, OPEN, 2 * self._rest)

    def _from(self, number: int) -> float:
        """Return the largest distance of a joint from a pose on the way to the beginning, in radians."""
        return float(np.abs(self._poses[number] - self._data.qpos[ARM]).max())

    def _return(self, place: Array) -> Array:
        """Return the action that moves the hand back or, at later calls, the arm to its pose."""
        self._backed += 1
        if self._backed <= self._retreat:
            return self._backwards(place, 0.15)
        number = 0 if self._leaves else self._returned
        away = (self._poses[number] - self._data.qpos[ARM]) / self._seconds
        if not self._leaves:
            self._returned += self._from(number) <= (self._passes, self._home)[number]
        return self._told(np.clip(away, -self._fastest, self._fastest), OPEN)

    def _at(self, joint: float, offset: Vector) -> tuple[Array, Array]:
        """Return the hand's place [3] and rotation [3, 3] at the handle for a position of the joint."""
        (place, turn), (_, first) = self._handle(joint), self._handle(0.0)
        turned, (about, sideways, roll) = rotation_vector(turn @ first.T), self._way.tilt
        tilt = _rotation((0, 0, about)) @ _rotation((sideways, 0, 0)) @ _rotation((0, roll, 0))
        return place + _rotation(turned) @ np.array(offset), _rotation(self._way.turns * turned) @ tilt @ FORWARD

    def _handle(self, joint: float) -> tuple[Array, Array]:
        """Return the place and rotation of the handle's site for a position of the joint."""
        data = self._posed
        data.qpos[:] = self._data.qpos
        data.qpos[self._joint.qposadr[0]] = joint
        self._mujoco.mj_kinematics(self._model, data)
        return data.site_xpos[self._site].copy(), data.site_xmat[self._site].reshape(3, 3).copy()

    def _towards(self, place: Array, rotation: Array, fingers: float, stiff: float) -> Array:
        """Return the action that moves the hand to a pose; `stiff` weighs the rotation, in metres per radian."""
        from scipy.optimize import lsq_linear

        model, data, seconds = self._model, self._data, self._seconds
        jacobian = np.zeros((6, model.nv))
        self._mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._hand)
        move = bounded(self._gain * (place - data.site_xpos[self._hand]), self._speed)
        turned = data.site_xmat[self._hand].reshape(3, 3)
        spin = bounded(self._gain * rotation_vector(rotation @ turned.T), self._turn)
        weights, limits = np.repeat([1.0, stiff], 3), model.jnt_range[ARM]
        low = (limits[:, 0] + self._margin - data.qpos[ARM]) / seconds
        high = (limits[:, 1] - self._margin - data.qpos[ARM]) / seconds
        bounds = np.clip(low, -self._fastest, -1e-3), np.clip(high, 1e-3, self._fastest)
        system = np.concatenate([weights[:, None] * jacobian[:, ARM], self._rest * np.eye(7)])
        wanted = np.concatenate([weights * np.concatenate([move, spin]), np.zeros(7)])
        return self._told(lsq_linear(system, wanted, bounds).x, fingers)

    def _told(self, velocity: Array, fingers: float) -> Array:
        """Return the action that moves the joints at the given velocities [7]."""
        # A motor pulls with stiffness x (target - position) against damping. In one action, it covers the share `share`
        # of the way to the target.
        share = 1 - np.exp(-self._seconds * self._stiffness / self._damping)
        told = velocity * self._seconds / share + self._data.qfrc_bias[ARM] / self._stiffness
        return np.append(told / self._unit, [fingers, fingers]).clip(-1.0, 1.0)


def _rotation(vector: Any) -> Array:
    """Return the matrix of a rotation given as axis times angle: [3, 3]."""
    from scipy.spatial.transform import Rotation

    return np.asarray(Rotation.from_rotvec(np.asarray(vector, float)).as_matrix())
