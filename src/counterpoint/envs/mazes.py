"""PointMaze and AntMaze of gymnasium-robotics, with the position in the observation and episodes of fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.goal_tasks import GoalTask, Raw
from counterpoint.envs.rendering import View, import_mujoco

__all__ = ["AntMazeTask", "MazeTask", "PointMazeTask"]

_POSITION = slice(0, 2)
_VIEW_ANGLE = 45.0  # of MuJoCo's free camera, top to bottom, in degrees


class MazeTask(GoalTask):
    """A maze: coordinates are (x, y), and a goal counts as reached within 0.45 m, at whatever speed."""

    success_distance = 0.45
    goal_slots = (_POSITION,)
    can_stand_at_goal = True

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        maze = simulation.maze
        widest = max(maze.map_length, maze.map_width) * maze.maze_size_scaling
        distance = 0.5 * widest / np.tan(np.radians(_VIEW_ANGLE / 2)) + maze.maze_height
        self.view = View((0.0, 0.0, 0.0), float(distance), azimuth=90, elevation=-90)

    @staticmethod
    def arguments(name: str) -> dict[str, Any]:
        """Reaching the goal ends no episode and moves no goal, so that all episodes are of one length."""
        arguments: dict[str, Any] = {"continuing_task": True, "reset_target": False}
        if name.startswith("AntMaze") and name.endswith("-v5"):
            # 29 numbers with the position, as in D4RL and in versions 3 and 4, instead of 107.
            arguments["include_cfrc_ext_in_observation"] = False
        return arguments

    def stand_at_goal(self) -> None:
        """At the goal, at rest, in the posture in which episodes begin."""
        simulation, body = self.simulation, self.body
        simulation.data.qpos[:] = body.init_qpos
        simulation.data.qpos[_POSITION] = simulation.goal
        simulation.data.qvel[:] = 0
        import_mujoco().mj_forward(simulation.model, simulation.data)

    def before_drawing(self) -> None:
        """A step of the simulator leaves the bodies one step behind the state, which is what is observed."""
        import_mujoco().mj_kinematics(self.simulation.model, self.simulation.data)

    def hide_markers(self) -> None:
        """Not the goal's red ball."""
        model = self.simulation.model
        model.site_rgba[model.site("target").id, 3] = 0


class PointMazeTask(MazeTask):
    """A ball pushed by forces: observations are (x, y, vx, vy)."""

    def read(self) -> Raw:
        """The simulation's observation as it stands."""
        raw: Raw = self.simulation._get_obs(self.body._get_obs()[0])
        return raw

    @property
    def body(self) -> Any:
        """Whose attribute `data` is the simulation's `mujoco.MjData`."""
        return self.simulation.point_env


class AntMazeTask(MazeTask):
    """A four-legged robot: observations are (x, y) and 27 numbers of posture and speed, as in D4RL."""

    def observation(self, raw: Raw) -> NDArray[np.float32]:
        """The position, which gymnasium-robotics leaves to the achieved goal, put back in front: float32 [29]."""
        return np.concatenate([raw["achieved_goal"], raw["observation"]]).astype(np.float32)

    def read(self) -> Raw:
        """The simulation's observation as it stands."""
        raw: Raw = self.simulation._get_obs(self.body._get_obs())
        return raw

    @property
    def body(self) -> Any:
        """Whose attribute `data` is the simulation's `mujoco.MjData`."""
        return self.simulation.ant_env
