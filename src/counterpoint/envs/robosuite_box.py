"""`OpenBox` for robosuite: a closed box whose hinged lid is to be lifted open by the bar on it.

It has the makings of RLBench's Open Box (James et al. 2020), on which ICon's ablations were made: an articulated
object placed anew in each episode, which has to be grasped and led along an arc; a reward of 1 once it is open and of
0 before. RLBench asks for a lid turned by 90 degrees, this task for 60.

Importing this module imports robosuite and makes the task known to `robosuite.make` by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.robosuite_table import Placement, TableTask, object_observables, on_table, place

__all__ = ["OPEN", "OpenBox"]

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
            observables |= object_observables(
                self, bar_pos=lambda: self.bar, lid_angle=lambda: np.array([self.angle])
            )
        return observables

    def _reset_internal(self) -> None:
        super()._reset_internal()
        if not self.deterministic_reset:  # else a recorded state is put back
            place(self, self.box, _WHERE)
            self.sim.data.qpos[self._turn] = 0.0

    def _check_success(self) -> bool:
        return self.angle >= OPEN
