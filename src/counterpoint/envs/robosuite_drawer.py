"""`CloseDrawer` for robosuite: a drawer that stands open in a cabinet and is to be shut.

It has the makings of RLBench's Close Drawer (James et al. 2020): an articulated object placed anew in each episode, a
reward of 1 once it is shut and of 0 before.

Importing this module imports robosuite and makes the task known to `robosuite.make` by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite_table import Placement, TableTask, object_observables, on_table, place

__all__ = ["SHUT", "CloseDrawer"]

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
