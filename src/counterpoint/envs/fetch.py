"""The Fetch robot's four tasks: where the camera stands, and what the world looks like once a goal is reached.

Cameras are those of the contrastive RL and TD InfoNCE authors, but for FetchPush. The tasks stay
gymnasium-robotics' own (start positions, goals, distance in three dimensions): the authors' image forms change
them (see `docs/environments.md`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.goal_tasks import GoalTask, Raw
from counterpoint.envs.rendering import View, import_mujoco

__all__ = ["FETCH_TASKS", "FetchTask"]

_GRIPPER, _OBJECT = slice(0, 3), slice(3, 6)  # their coordinates in an observation
_FINGERS = ("robot0:l_gripper_finger_joint", "robot0:r_gripper_finger_joint")
_STEP = 0.05  # metres that an action of 1 moves the gripper
_NEAR = 2e-3
_MOST_STEPS = 40


class FetchTask(GoalTask):
    """FetchReach: the gripper is to be at the goal. The tasks with an object derive from it.

    Args:
        simulation: The unwrapped environment.
    """

    view = View((1.2, 0.8, 0.5), distance=0.8, azimuth=180, elevation=-30)
    goal_slots: ClassVar[tuple[slice, ...]] = (_GRIPPER,)
    can_stand_at_goal = True

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        self.success_distance = float(simulation.distance_threshold)

    def read(self) -> Raw:
        """The simulation's observation as it stands."""
        raw: Raw = self.simulation._get_obs()
        return raw

    def stand_at_goal(self) -> None:
        """The gripper at the goal."""
        self._move_gripper(self.simulation.goal)
        self._come_to_rest()

    def hide_markers(self) -> None:
        """Neither the goal's red ball nor the cross that stands for the point the gripper is drawn to."""
        model = self.simulation.model
        model.site_rgba[model.site("target0").id, 3] = 0
        model.geom_rgba[model.geom_bodyid == model.body("robot0:mocap").id] = 0

    def _move_gripper(self, point: NDArray[np.float64]) -> None:
        """By the task's own actions, so that every goal asks for what the robot can do."""
        simulation = self.simulation
        for _ in range(_MOST_STEPS):
            offset = point - simulation.data.site("robot0:grip").xpos
            if np.linalg.norm(offset) < _NEAR:
                break
            action = simulation._set_action(np.append(np.clip(offset / _STEP, -1, 1), 0.0))
            simulation._mujoco_step(action)
            simulation._step_callback()

    def _come_to_rest(self) -> None:
        simulation = self.simulation
        simulation.data.qvel[:] = 0
        import_mujoco().mj_forward(simulation.model, simulation.data)


class _ObjectTask(FetchTask):
    goal_slots = (_GRIPPER, _OBJECT)

    def _put_object(self, point: NDArray[np.float64]) -> None:
        self.simulation.data.joint("object0:joint").qpos[:] = [*point, 1, 0, 0, 0]


class PushTask(_ObjectTask):
    """FetchPush: the block is at the goal, the closed gripper just above it."""

    # The authors' camera (lookat 1.25, 0.8, 0.4; distance 0.65; elevation -40) fits their own starts and goals.
    # Of this task's it leaves 10% and 4% outside the picture; this one shows them all.
    view = View((1.345, 0.75, 0.44), distance=0.75, azimuth=90, elevation=-45)
    above = np.array([0.0, 0.0, 0.06])

    def stand_at_goal(self) -> None:
        """The block at the goal, the gripper six centimetres above its middle."""
        goal = self.simulation.goal
        self._move_gripper(goal + self.above)
        self._put_object(goal)
        self._come_to_rest()


class PickAndPlaceTask(_ObjectTask):
    """FetchPickAndPlace: the block is at the goal, in the air or on the table, between the fingers."""

    view = View((1.25, 0.8, 0.5), distance=1.2, azimuth=90, elevation=-30)
    grip = 0.024  # of each finger, in metres: just touching a block of five centimetres

    def stand_at_goal(self) -> None:
        """The block at the goal, held."""
        goal = self.simulation.goal
        self._move_gripper(goal)
        self._put_object(goal)
        for finger in _FINGERS:
            self.simulation.data.joint(finger).qpos[:] = self.grip
        self._come_to_rest()


class SlideTask(_ObjectTask):
    """FetchSlide: the puck is at the goal, out of reach; the gripper is where it began."""

    view = View((1.35, 0.8, 0.4), distance=1.75, azimuth=90, elevation=-40)

    def stand_at_goal(self) -> None:
        """The puck at the goal."""
        self._put_object(self.simulation.goal)
        self._come_to_rest()


FETCH_TASKS: dict[str, type[FetchTask]] = {
    "FetchReach": FetchTask,
    "FetchPush": PushTask,
    "FetchPickAndPlace": PickAndPlaceTask,
    "FetchSlide": SlideTask,
}
"""By the part of the environment's name before the version."""
