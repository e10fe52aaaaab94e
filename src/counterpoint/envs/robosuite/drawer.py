"""`CloseDrawer` for robosuite: a drawer that stands open in a cabinet and is to be shut.

It has the makings of RLBench's Close Drawer (James et al. 2020): an articulated object placed anew in each episode, a
reward of 1 once it is shut and of 0 before.

Importing this module imports robosuite and makes the task known to `robosuite.make` by its name.

A scripted expert for `CloseDrawer`: comes down before the handle with closed fingers and pushes the drawer in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite.hand import UP, Hand
from counterpoint.envs.robosuite.table import Placement, TableTask, object_observables, on_table, place

__all__ = ["SHUT", "CloseDrawer", "CloseDrawerExpert"]


SHUT = 0.01
"""Metres that a drawer may still stand open and count as shut."""

_WHERE = Placement(x=(-0.06, 0.08), y=(0.12, 0.20), yaw=(-0.35, 0.35))
_OPEN = (0.08, 0.12)  # metres


class CloseDrawer(TableTask):
    """A cabinet stands on the table, its drawer open; shut it to within 1 cm.

    At each reset the cabinet's middle is drawn from x in [-6, 8] cm and y in [12, 20] cm of the table's, its turn
    about the vertical from 20 degrees to either side, and the drawer's opening, towards -y, from 8 to 12 cm.

    Observations of the object are the drawer's opening and handle. For the arguments see `TableTask`.
    """

    @property
    def opening(self) -> float:
        """How far the drawer stands open, in metres."""
        return float(self.sim.data.qpos[self._slide])

    @property
    def handle(self) -> Array:
        """The middle of the handle's outer face in the world, in metres: float64 [3]."""
        return np.array(self.sim.data.site_xpos[self._handle])

    @property
    def outward(self) -> Array:
        """The direction in which the drawer slides out, a unit vector in the world: float64 [3]."""
        return -np.array(self.sim.data.body_xmat[self._cabinet]).reshape(3, 3)[:, 1]

    def _load_model(self) -> None:
        super()._load_model()
        self.drawer = on_table(self, "drawer.xml", "Drawer")

    def _setup_references(self) -> None:
        super()._setup_references()
        model = self.sim.model
        self._cabinet = model.body_name2id(self.drawer.root_body)
        self._handle = model.site_name2id(f"{self.drawer.naming_prefix}handle")
        self._slide = model.get_joint_qpos_addr(self.drawer.joints[0])

    def _setup_observables(self) -> dict[str, Any]:
        observables: dict[str, Any] = super()._setup_observables()
        if self.use_object_obs:
            observables |= object_observables(
                self, handle_pos=lambda: self.handle, drawer_opening=lambda: np.array([self.opening])
            )
        return observables

    def _reset_internal(self) -> None:
        super()._reset_internal()
        if not self.deterministic_reset:  # else a recorded state is put back
            place(self, self.drawer, _WHERE)
            self.sim.data.qpos[self._slide] = np.random.uniform(*_OPEN)

    def _check_success(self) -> bool:
        return self.opening <= SHUT


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
