"""Scripted experts of robosuite's tasks: they map the simulator's state to the next action of the hand.

Each expert is a proportional controller whose target passes through a few phases. The phase is determined at every
step, so that the expert returns to an earlier phase if a cube slips or noise pushes the hand away. Actions are bounded
and, except for the gripper's, smooth. All experts need one arm with robosuite's OSC_POSE controller, whose actions are
pose changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array

UP = np.array((0.0, 0.0, 1.0))
OPEN, CLOSE = -1.0, 1.0
SPEED = 0.7  # default maximum of the displacement that `Hand.towards` commands, at most 1
CLOSING = 8  # number of steps that fingers need to close on a cube or a lever


def bounded(vector: Array, length: float) -> Array:
    """Return the vector, shortened to `length` if it is longer."""
    return vector * min(1.0, length / max(float(np.linalg.norm(vector)), 1e-9))


def rotation_vector(rotation: Array) -> Array:
    """Return axis times angle of a rotation matrix: [3]."""
    from scipy.spatial.transform import Rotation

    return np.asarray(Rotation.from_matrix(rotation).as_rotvec())


def pointing_down(closing: Array) -> Array:
    """Return the rotation [3, 3] of a hand that points down and closes its fingers along a horizontal vector [3]."""
    x = np.array([closing[0], closing[1], 0.0]) / np.hypot(closing[0], closing[1])
    z = np.array([0.0, 0.0, -1.0])
    return np.stack([x, np.cross(z, x), z], axis=1)


class Hand:
    """The hand of an environment's only arm, with a gripper of two fingers; positions are in the world, in metres."""

    _reach, _turn = 0.05, 0.5  # metres and radians that an action of 1 commands
    _gain = 2.0  # factor on the remaining way; the controller moves an eighth of a command in one step
    _width_band = 0.008  # metres by which the fingers may miss a commanded width
    _swung = 0.3  # rotation error in radians below which `along` commands less than the maximum rotation

    def __init__(self, env: Any) -> None:
        self._env = env
        arm = env.robots[0]
        self._site = int(arm.eef_site_id[arm.arms[0]])
        self._pads = arm.gripper[arm.arms[0]].important_geoms

    @property
    def position(self) -> Array:
        """The grip site between the fingertips: float64 [3]."""
        return np.array(self._env.sim.data.site_xpos[self._site])

    @property
    def rotation(self) -> Array:
        """The grip site's rotation [3, 3]; the fingers close along its column x, and z points out of the hand."""
        return np.array(self._env.sim.data.site_xmat[self._site]).reshape(3, 3)

    def towards(self, position: Array, rotation: Array, gripper: float, *, speed: float = SPEED) -> Array:
        """Return the action that brings the grip site nearer to a position [3] and rotation [3, 3]: float64 [7].

        Args:
            position: The desired position in the world, in metres.
            rotation: The desired rotation in the world.
            gripper: The gripper's action; above 0 closes, below 0 opens.
            speed: The maximum displacement to command, at most 1.
        """
        shift = bounded(self._gain * (position - self.position) / self._reach, speed)
        turn = bounded(self._gain * rotation_vector(rotation @ self.rotation.T) / self._turn, speed)
        return np.concatenate([shift, turn, [gripper]])

    def opened(self, width: float) -> float:
        """Return the gripper's action that brings its finger pads about `width` metres apart; 0 if they are already."""
        off = width - float(np.linalg.norm(self._between_pads))
        return 0.0 if abs(off) < self._width_band else (OPEN if off > 0 else CLOSE)

    def askew(self, line: Array) -> float:
        """Return the rotation about the vertical that aligns the fingers with a line: at most pi / 2 radians."""
        now = self._between_pads
        angle = np.arctan2(now[0] * line[1] - now[1] * line[0], now[:2] @ line[:2])
        return float((angle + np.pi / 2) % np.pi - np.pi / 2)

    def along(self, move: Array, line: Array, gripper: float) -> Array:
        """Return the action that moves the hand and turns it to point down, with its fingers along a line: float64 [7].

        Args:
            move: The displacement to command [3], in action units; it is clipped to [-1, 1].
            line: A horizontal vector [3]; its sign does not matter.
            gripper: The gripper's action; above 0 closes, below 0 opens.
        """
        turn = (np.cross(self.rotation[:, 2], -UP) + self.askew(line) * UP) / self._swung
        return np.append(np.concatenate([move, turn]).clip(-1.0, 1.0), gripper)

    @property
    def _between_pads(self) -> Array:
        """The vector from the right finger's pad to the left finger's pad: [3]."""
        sim = self._env.sim
        pads = [self._pads[side] for side in ("left_fingerpad", "right_fingerpad")]
        left, right = (sim.data.geom_xpos[sim.model.geom_name2id(pad[0])] for pad in pads)
        return np.asarray(left - right)


class _Expert:
    """Base class of experts.

    `hand` is the robot's hand. `_closed` counts the steps since the fingers began to close; it is below 0 while a
    picker backs off.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.hand = env, Hand(env)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._closed = 0

    def act(self) -> Array:
        """Return the next action: position, rotation and gripper, float [7] in [-1, 1]."""
        raise NotImplementedError


class _Picker(_Expert):
    """An expert that goes to a cube from above and closes the fingers on it."""

    near, turned = 0.012, 0.1  # metres and radians within which the hand counts as at its target
    funnel, clear = 5.0, 0.08  # slope of the hand's descent on a cube, and its initial height above the cube in metres

    def __init__(self, env: Any, cube: Any) -> None:
        self._cube = cube
        super().__init__(env)

    def reset(self) -> None:
        super().reset()
        self._along: Array | None = None

    @property
    def position(self) -> Array:
        """The cube's centre, in metres: [3]."""
        return self._of_body(self.env.sim.data.body_xpos)

    def pick(self, *, beside: Array | None = None) -> Array | None:
        """Return the next action, or `None` if the cube is held.

        Args:
            beside: The position of a nearby object [3]; the fingers then come down to the left and right of the line
                from the cube to this object.
        """
        rotation = pointing_down(self._closing(beside))
        away = self.position - self.hand.position
        if self._closed >= CLOSING:
            if self.held():
                return None
            self._closed = -CLOSING  # the cube slipped or was never grasped: move up and try once more
        turn = float(np.linalg.norm(rotation_vector(rotation @ self.hand.rotation.T)))
        off = float(np.hypot(away[0], away[1]))
        if self._closed < 0:
            self._closed += 1
            return self.hand.towards(self.position + self.clear * UP, rotation, OPEN)
        if self._closed or (np.linalg.norm(away) < self.near and turn < self.turned):
            self._closed += 1
            return self.hand.towards(self.position, rotation, CLOSE)
        above = np.clip(self.funnel * max(off - self.near / 2, 0.1 * (turn - self.turned)), 0.0, self.clear)
        return self.hand.towards(self.position + above * UP, rotation, OPEN)

    def held(self) -> bool:
        """Return True if both fingers touch the cube, and the cube is between them."""
        arm = self.env.robots[0]
        touched = self.env._check_grasp(gripper=arm.gripper[arm.arms[0]], object_geoms=self._cube)
        return bool(touched) and float(np.linalg.norm(self.position - self.hand.position)) < 2 * self.near

    def _closing(self, beside: Array | None) -> Array:
        """Return the horizontal direction along which the fingers close: parallel to a side of the cube.

        At the start, this is the side nearest to the fingers' direction; later calls keep the same side.
        """
        sides = self._of_body(self.env.sim.data.body_xmat).reshape(3, 3).T
        level = sides[np.argsort(np.abs(sides[:, 2]))[:2]] * [1.0, 1.0, 0.0]
        axes = level / np.linalg.norm(level, axis=1, keepdims=True)
        axes = np.concatenate([axes, -axes])
        fit = axes @ (self.hand.rotation[:, 0] if self._along is None else self._along)
        if self._along is None and beside is not None:
            way = beside - self.position
            fit = fit - 2.0 * (np.abs(axes @ way) / np.linalg.norm(way) > np.sqrt(0.5))
        self._along = np.asarray(axes[fit.argmax()])
        return self._along

    def _of_body(self, values: Array) -> Array:
        return np.asarray(values[self.env.sim.model.body_name2id(self._cube.root_body)])


class _Lift(_Picker):
    """An expert that picks up the cube and holds it 10 cm above its initial position."""

    lifted = 0.12  # metres above the table

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.cube)

    def act(self) -> Array:
        action = self.pick()
        if action is not None:
            return action
        above = np.array([*self.hand.position[:2], float(self.env.table_offset[2]) + self.lifted])
        return self.hand.towards(above, pointing_down(self.hand.rotation[:, 0]), CLOSE)


class _Stack(_Picker):
    """An expert that picks up the red cube, puts it on the green cube and withdraws."""

    stacked = 0.006  # metres from its place on the other cube within which a cube is let go

    def __init__(self, env: Any) -> None:
        self._below = _Picker(env, env.cubeB)
        self._gap = float(env.cubeA.size[2] + env.cubeB.size[2])  # distance between the centres of stacked cubes
        super().__init__(env, env.cubeA)

    def reset(self) -> None:
        super().reset()
        self._placed = False

    def act(self) -> Array:
        hand, top = self.hand, self._below.position + np.array([0.0, 0.0, self._gap])
        away = top - self.position
        off = float(np.hypot(away[0], away[1]))
        if self._placed and off > 2 * self.near:  # the cube fell
            self.reset()
        if self._placed:
            back = np.array([*hand.position[:2], top[2] + self.clear])
            return hand.towards(back, pointing_down(hand.rotation[:, 0]), OPEN, speed=SPEED / 2)
        action = self.pick(beside=self._below.position)
        if action is not None:
            return action
        self._placed = bool(off < self.stacked and abs(away[2]) < self.stacked)
        low = np.clip(self.funnel * (off - self.stacked / 2), 0.0, self.clear)
        lifted = self.position[2] > top[2] + min(low, self.clear) - 2 * self.near
        goal = top + np.array([0.0, 0.0, low]) if lifted else np.array([*self.position[:2], top[2] + self.clear])
        return hand.towards(hand.position + goal - self.position, pointing_down(hand.rotation[:, 0]), CLOSE)


class _Door(_Expert):
    """An expert that grasps the door's lever from above, turns it down, and opens the door along its arc."""

    grip = (0.09, -0.10, 0.0)  # where the hand grips the lever, in metres from its axis, in the frame of the latch
    ajar = 0.07  # metres between the open finger pads, so that one pad fits between lever and door
    near, turned = 0.012, 0.15  # metres and radians within which the hand counts as at its target
    lost = 0.05  # distance of the hand from the grip, in metres, beyond which the lever has slipped out
    funnel, clear = 5.0, 0.10  # slope of the hand's descent on the lever, and its initial distance in metres
    free, down = 1.35, 1.5  # lever angles in radians: where the latch no longer catches; where the hand holds the lever
    further = 0.4  # radians by which the hand's target leads the lever
    wide, ahead = 0.37, 0.12  # radians: angle of the wide open door, and by which the hand's target leads the door

    def act(self) -> Array:
        hand = self.hand
        position, rotation = self._lever(0.0, 0.0)
        away = position - hand.position
        turn = float(np.linalg.norm(rotation_vector(rotation @ hand.rotation.T)))
        far = float(np.linalg.norm(away))
        if self._closed and far > self.lost:
            self._closed = 0
        if not self._closed and (far > self.near or turn > self.turned):
            into = rotation[:, 2]
            off = float(np.linalg.norm(away - (away @ into) * into))
            back = np.clip(self.funnel * max(off - self.near / 2, 0.1 * (turn - self.turned)), 0.0, self.clear)
            return hand.towards(position - back * into, rotation, hand.opened(self.ajar))
        self._closed += 1
        if self._closed <= CLOSING:
            return hand.towards(position, rotation, CLOSE)
        turned, opened = self._angle("latch_joint"), self._angle("hinge")
        if turned < self.free and opened < self.ahead / 4:
            return hand.towards(*self._lever(self.further, 0.0), CLOSE)
        return hand.towards(*self._lever(self.down - turned, min(self.ahead, self.wide - opened)), CLOSE)

    def _lever(self, turned: float, opened: float) -> tuple[Array, Array]:
        """Return the grip's pose after further turns of lever and door, in radians: position [3], rotation [3, 3]."""
        sim = self.env.sim
        latch = sim.model.body_name2id(self.env.door.latch_body)
        frame = sim.data.body_xmat[latch].reshape(3, 3)
        position = sim.data.body_xpos[latch] + frame @ np.array(self.grip)
        closing, out = -frame[:, 2], frame[:, 1]
        rotation = np.stack([closing, np.cross(out, closing), out], axis=1)
        for joint, angle in (("latch_joint", turned), ("hinge", opened)):
            number = sim.model.joint_name2id(self.env.door.naming_prefix + joint)
            anchor, axis = sim.data._data.xanchor[number], sim.data._data.xaxis[number]
            further = _rotation(axis, angle).as_matrix()
            position, rotation = anchor + further @ (position - anchor), further @ rotation
        return position, rotation

    def _angle(self, joint: str) -> float:
        return float(self.env.sim.data.get_joint_qpos(self.env.door.naming_prefix + joint))


class _OpenBox(_Expert):
    """An expert that turns the hand to the lid's bar, grasps the bar from above and moves it along its arc.

    If the bar slips away, the expert grasps it again.
    """

    slow = 0.025  # distance from the target, in metres, below which the hand slows down
    above = 0.09 * UP  # height of the approach above the bar, in metres, so that open fingers clear the bar
    across, along = 0.018, 0.03  # metres from the bar's middle, across and along it, within which descent is safe
    skew = 0.08  # maximum angle between the fingers and the bar's normal for the descent, in radians
    grasp, held = 0.006, 0.018  # metres from the bar within which fingers begin to close, and within which they hold it
    closing = 14  # number of steps that closing takes
    lead, led = 0.30, 0.5  # radians by which the target leads the bar; share of the top speed, to avoid tearing the lid
    wide = 1.3  # angle of the lid, in radians, at which the hand stops

    def act(self) -> Array:
        hand, bar = self.hand.position, self.env.bar
        point, axis = self.env.hinge
        across = np.cross(axis, UP)
        away = hand - bar
        along = abs(away @ axis)
        aside = np.linalg.norm(away - (away @ axis) * axis)
        near = along < self.along and aside < (self.held if self._closed else self.grasp)
        self._closed = self._closed + 1 if near else 0
        above = abs(self.hand.askew(across)) < self.skew and along < self.along and abs(away @ across) < self.across
        if self._closed > self.closing:
            move = (point + _rotation(axis, self.lead).apply(bar - point) - hand) / self.slow
            move = move.clip(-self.led, self.led) * (self.env.joint < self.wide)
        elif self._closed or above:
            move = (bar - hand) / self.slow
        elif away[2] > self.above[2] / 2:
            move = (bar + self.above - hand) / self.slow
        else:
            move = UP
        return self.hand.along(move, across, CLOSE if self._closed else OPEN)


def _rotation(axis: Array, angle: float) -> Any:
    from scipy.spatial.transform import Rotation

    return Rotation.from_rotvec(angle * axis)


class _CloseDrawer(_Expert):
    """An expert without memory that comes down in front of the handle with closed fingers and pushes the drawer in."""

    slow = 0.025  # distance from the target, in metres, below which the hand slows down
    above = 0.14 * UP  # height of the approach above the handle, in metres, so that the fingers clear the cabinet
    before = 0.05  # distance in front of the handle at which the hand comes down, in metres
    aside, level = 0.015, 0.012  # tolerances in metres: sideways for coming down, vertical for pushing
    width = 0.035  # maximum sideways distance, in metres, at which the fingers still meet the handle
    push = 0.6  # share of the top speed, so that the drawer is pushed and not struck
    still = 0.004  # opening of the drawer, in metres, at which pushing ends

    def act(self) -> Array:
        outward, handle, hand = self.env.outward, self.env.handle, self.hand.position
        sideways = np.cross(outward, UP)
        away = hand - handle
        out, aside, up = away @ outward, away @ sideways, away[2]
        before = handle + self.before * outward
        if self.env.joint <= self.still:
            move = np.zeros(3)
        elif abs(aside) < self.width and out > 0 and abs(up) < self.level:
            move = -self.push * outward - (aside * sideways + up * UP) / self.slow
        elif abs(aside) < self.aside and abs(out - self.before) < self.aside:
            move = (before - hand) / self.slow
        elif up > self.above[2] / 2:
            move = (before + self.above - hand) / self.slow
        else:  # on a straight way to the handle, the hand might touch the cabinet
            move = UP
        return self.hand.along(move, outward, CLOSE)


class _OpenDrawer(_Expert):
    """An expert without memory that puts closed fingers between handle and drawer, from above, and pulls."""

    slow = 0.025  # distance from the target, in metres, below which the hand slows down
    above = 0.10 * UP  # height of the approach above the handle, in metres, so that the fingers clear the cabinet
    behind = 0.0215  # distance of the hand from the handle's outer face, in metres, in the middle of the gap
    higher = 0.004 * UP  # height of the hand above the handle's middle, so that the hand clears the cabinet
    fits, aside, skew = 0.003, 0.02, 0.06  # metres along and across the pull, and radians, that allow the descent
    level = 0.010  # vertical distance from the target, in metres, within which the fingers hook the handle
    pull, wide = 0.5, 0.11  # share of the top speed; opening in metres at which the hand stops

    def act(self) -> Array:
        outward, hand = self.env.outward, self.hand.position
        sideways = np.cross(outward, UP)
        target = self.env.handle - self.behind * outward + self.higher
        away = hand - target
        out, aside, up = away @ outward, abs(away @ sideways), away[2]
        if abs(up) < self.level and abs(out) < self.behind and aside < 2 * self.aside:
            move = -(away - out * outward) / self.slow + self.pull * outward * (self.env.joint < self.wide)
        elif abs(out) < self.fits and aside < self.aside and abs(self.hand.askew(sideways)) < self.skew:
            move = -away / self.slow
        elif up > self.above[2] / 2:
            move = (self.above - away) / self.slow
        else:  # on a straight way to the handle, the hand might touch the cabinet
            move = UP
        return self.hand.along(move, sideways, CLOSE)


class _CloseBox(_Expert):
    """An expert without memory that comes down behind the open lid with closed fingers and pushes its bar shut."""

    slow = 0.025  # distance from the target, in metres, below which the hand slows down
    above = 0.10 * UP  # height of the approach above the target, in metres, so that the hand clears the lid
    lower = 0.01 * UP  # height of the target below the bar, in metres, so that the fingers do not slip over the bar
    behind, thick = 0.05, 0.015  # distances from the bar, in metres, at which the hand comes down, and while it pushes
    aside, level = 0.02, 0.015  # tolerances in metres: along and behind the bar for coming down, vertical for pushing
    lead, led = 0.35, 0.5  # radians by which the target leads the bar; share of the top speed
    falls = 0.8  # angle of the lid, in radians, from which it falls shut

    def act(self) -> Array:
        hand, bar = self.hand.position, self.env.bar
        point, axis = self.env.hinge
        back = np.cross(axis, UP)  # the direction in which the open lid leans
        away = hand - bar + self.lower
        behind, along, up = away @ back, abs(away @ axis), away[2]
        place = bar - self.lower + self.behind * back
        level = self.level * (2.0 if behind < 2 * self.thick else 1.0)  # the hand lags while the bar sinks
        if self.env.joint < self.falls:
            move = UP * (up < self.above[2])
        elif 0 < behind < self.behind + self.aside and along < 2 * self.aside and abs(up) < level:
            goal = point + _rotation(axis, -self.lead).apply(bar - point) - self.lower + self.thick * back
            move = ((goal - hand) / self.slow).clip(-self.led, self.led)
        elif along < self.aside and abs(behind - self.behind) < self.aside:
            move = (place - hand) / self.slow
        elif up > self.above[2] / 2:
            move = (place + self.above - hand) / self.slow
        else:  # on a straight way behind the lid, the hand might touch it
            move = UP
        return self.hand.along(move, axis, CLOSE)


EXPERTS: dict[str, type[_Expert]] = {
    "Lift": _Lift,
    "Door": _Door,
    "Stack": _Stack,
    "CloseDrawer": _CloseDrawer,
    "OpenBox": _OpenBox,
    "SharedLift": _Lift,
    "SharedStack": _Stack,
    "SharedCloseDrawer": _CloseDrawer,
    "SharedOpenDrawer": _OpenDrawer,
    "SharedOpenBox": _OpenBox,
    "SharedCloseBox": _CloseBox,
}
"""Name of a task -> class of its expert."""
