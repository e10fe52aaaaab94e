"""What a goal-reaching environment must know of one family of simulations; the families are files beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.rendering import View

__all__ = ["GoalTask"]

Raw = Mapping[str, NDArray[Any]]


class GoalTask:
    """A task of a simulator: where its coordinates lie, and how to stand where it wants to be.

    Args:
        simulation: The unwrapped gymnasium environment.
    """

    success_distance: float
    """Metres (or the task's own unit) within which the goal counts as reached."""

    view: View | None = None
    """From where pictures are taken; a task without one has no image form."""

    goal_slots: ClassVar[tuple[slice, ...]] = ()
    """Where in an observation the goal coordinates stand when the authors zero-pad them."""

    can_stand_at_goal: ClassVar[bool] = False
    """Whether `stand_at_goal` works, which goals in the form of states and pictures need."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation

    @property
    def body(self) -> Any:
        """Whose attribute `data` is the simulation's `mujoco.MjData`."""
        return self.simulation

    @staticmethod
    def arguments(name: str) -> dict[str, Any]:
        """What `gymnasium.make` is told beside the name."""
        del name
        return {}

    def observation(self, raw: Raw) -> NDArray[np.float32]:
        """The whole observed state: float32 [O]."""
        return np.asarray(raw["observation"], np.float32)

    def read(self) -> Raw:
        """The simulation's observation as it stands, without a step."""
        raise NotImplementedError

    def stand_at_goal(self) -> None:
        """Put the simulation into a state, at rest, that reaches its goal.

        The caller has put a copy in the place of its `MjData`, and removes it afterwards.
        """
        raise NotImplementedError

    def before_drawing(self) -> None:
        """Bring up to date what pictures show, without touching what dynamics depend on."""

    def hide_markers(self) -> None:
        """Make invisible what no camera of a real scene would see: above all the mark at the goal."""
