"""`OpenBox` for robosuite: a closed box whose hinged lid is to be lifted open by the bar on it.

It has the makings of RLBench's Open Box (James et al. 2020), on which ICon's ablations were made: an articulated
object placed anew in each episode, which has to be grasped and led along an arc; a reward of 1 once it is open and of
0 before. RLBench asks for a lid turned by 90 degrees, this task for 60.

Importing this module imports robosuite and makes the task known to `robosuite.make` by its name.

A scripted expert for `OpenBox`: turns the hand to the bar, grasps it from above and leads it along its arc.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite.hand import UP, Hand
from counterpoint.envs.robosuite.table import Placement, TableTask, object_observables, on_table, place

__all__ = ["OPEN", "OpenBox", "OpenBoxExpert"]


OPEN = np.pi / 3
"""Radians from which on a lid counts as open."""

_WHERE = Placement(x=(-0.04, 0.08), y=(-0.02, 0.10), yaw=(-0.35, 0.35))


class OpenBox(TableTask):
    """A box stands on the table, closed, the hinge of its lid towards +y; turn the lid by 60 degrees.

    At each reset the box's middle is drawn from x in [-4, 8] cm and y in [-2, 10] cm of the table's, and its turn
    about the vertical from 20 degrees to either side.

    Observations of the object are the lid's angle and bar. For the arguments see `TableTask`.
    """

    @property
    def angle(self) -> float:
        """How far the lid is turned, in radians; 0 is closed."""
        return float(self.sim.data.qpos[self._turn])

    @property
    def bar(self) -> Array:
        """The middle of the lid's bar in the world, in metres: float64 [3]."""
        return np.array(self.sim.data.site_xpos[self._bar])

    @property
    def hinge(self) -> tuple[Array, Array]:
        """A point of the hinge in metres and its direction, about which the lid opens; in the world, float64 [3]."""
        axis = -np.array(self.sim.data.body_xmat[self._box]).reshape(3, 3)[:, 0]
        return np.array(self.sim.data.site_xpos[self._hinge]), axis

    def _load_model(self) -> None:
        super()._load_model()
        self.box = on_table(self, "box.xml", "Box")

    def _setup_references(self) -> None:
        super()._setup_references()
        model, prefix = self.sim.model, self.box.naming_prefix
        self._box = model.body_name2id(self.box.root_body)
        self._bar, self._hinge = (model.site_name2id(f"{prefix}{name}") for name in ("bar", "hinge"))
        self._turn = model.get_joint_qpos_addr(self.box.joints[0])

    def _setup_observables(self) -> dict[str, Any]:
        observables: dict[str, Any] = super()._setup_observables()
        if self.use_object_obs:
            observables |= object_observables(self, bar_pos=lambda: self.bar, lid_angle=lambda: np.array([self.angle]))
        return observables

    def _reset_internal(self) -> None:
        super()._reset_internal()
        if not self.deterministic_reset:  # else a recorded state is put back
            place(self, self.box, _WHERE)
            self.sim.data.qpos[self._turn] = 0.0

    def _check_success(self) -> bool:
        return self.angle >= OPEN


_NEAR = 0.025  # metres off its aim from which on the hand slows down
_ABOVE = 0.09 * UP  # metres from the bar on the way there: open fingers clear it
_ACROSS, _ALONG = (0.018, 0.03)  # metres off the bar's middle, across and along it, at which coming down is safe
_ASKEW = 0.08  # radians that the fingers may be askew to the bar then
_GRASP, _HELD = (0.006, 0.018)  # metres from the bar at which fingers begin to close, and within which they hold it
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
