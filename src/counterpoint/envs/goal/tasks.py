"""Families of goal-reaching simulations: cameras, success distances, and states at a reached goal.

Except for FetchPush, the cameras are those of the contrastive RL and TD InfoNCE authors. Start positions, goals and
the success distance (in three dimensions) are those of gymnasium-robotics; the authors' image environments change all
three (`docs/environments.md`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.envs.rendering import View, import_mujoco
from counterpoint.errors import require

Raw = Mapping[str, NDArray[Any]]


def as_read(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy as agents read it: images, uint8 [H, W, C], unchanged, and numbers as float32."""
    return np.array(values, np.uint8 if values.ndim == 3 else np.float32)


class GoalTask:
    """Base class of goal tasks, for any gymnasium environment with goals; the families in this file derive from it.

    Args:
        simulation: The unwrapped gymnasium environment.

    Attributes:
        body: The object whose attribute `data` is the simulation's `mujoco.MjData`; in mazes, the moving body's
            environment.
    """

    success_distance: float | None = None
    """Distance within which the goal counts as reached, in metres or the task's unit."""
    view: View | None = None
    """The camera; a task without a camera does not support images."""
    goal_slots: ClassVar[tuple[slice, ...]] = ()
    """The parts of an observation that the authors fill with goal coordinates in zero-padded goals."""
    can_stand_at_goal: ClassVar[bool] = False
    """True if `stand_at_goal` is implemented, which is needed for goals that are states or images."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = self.body = simulation
        if self.success_distance is None:
            self.success_distance = getattr(simulation, "distance_threshold", None)

    @staticmethod
    def arguments(name: str) -> dict[str, Any]:
        """Return further arguments of `gymnasium.make`."""
        del name
        return {}

    def observation(self, raw: Raw) -> NDArray[Any]:
        """Return the whole observed state: float32 [O], or an image of the environment's own, uint8 [H, W, C]."""
        return as_read(raw["observation"])

    def read(self) -> Raw:
        """Return the simulation's observation of its present state."""
        raise NotImplementedError

    def stand_at_goal(self) -> None:
        """Set the simulation to a state at rest that reaches the goal; the caller restores `MjData` afterwards."""
        raise NotImplementedError

    def before_rendering(self) -> None:
        """Bring what is drawn (positions of bodies, markers) up to date before an image is rendered.

        The dynamics do not change. By default nothing is done.
        """

    def hide_markers(self) -> None:
        """Hide the markers that a real camera would not see, such as the marker at the goal."""

    def _come_to_rest(self) -> None:
        self.simulation.data.qvel[:] = 0
        import_mujoco().mj_forward(self.simulation.model, self.simulation.data)


class MazeTask(GoalTask):
    """A maze: coordinates are (x, y), and a goal counts as reached within 0.45 m, at any speed."""

    success_distance = 0.45
    goal_slots = (slice(0, 2),)
    can_stand_at_goal = True
    moving: ClassVar[str]
    """The simulation's attribute that holds the moving body's environment."""

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        self.body, maze = getattr(simulation, self.moving), simulation.maze
        widest = max(maze.map_length, maze.map_width) * maze.maze_size_scaling
        distance = 0.5 * widest / np.tan(np.radians(22.5)) + maze.maze_height  # MuJoCo's free camera spans 45 degrees
        self.view = View((0.0, 0.0, 0.0), float(distance), azimuth=90, elevation=-90)

    @staticmethod
    def arguments(name: str) -> dict[str, Any]:
        """Return arguments for episodes of equal length: a reached goal neither ends the episode nor moves."""
        arguments: dict[str, Any] = {"continuing_task": True, "reset_target": False}
        if name.startswith("AntMaze") and name.endswith("-v5"):
            # An observation then has 29 numbers with the position, as in D4RL and versions 3 and 4, instead of 107.
            arguments["include_cfrc_ext_in_observation"] = False
        return arguments

    def read(self) -> Raw:
        """Return the simulation's observation of its present state."""
        seen = self.body._get_obs()
        return dict(self.simulation._get_obs(seen[0] if isinstance(seen, tuple) else seen))

    def stand_at_goal(self) -> None:
        """Set the body at rest at the goal, in the initial posture of episodes."""
        self.simulation.data.qpos[:] = [*self.simulation.goal, *self.body.init_qpos[2:]]
        self._come_to_rest()

    def before_rendering(self) -> None:
        """Move the bodies to the observed state; after a simulator step they lag one step behind it."""
        import_mujoco().mj_kinematics(self.simulation.model, self.simulation.data)

    def hide_markers(self) -> None:
        """Hide the goal's red ball."""
        model = self.simulation.model
        model.site_rgba[model.site("target").id, 3] = 0


class PointMazeTask(MazeTask):
    """A ball pushed by forces: observations are (x, y, vx, vy)."""

    moving = "point_env"


class AntMazeTask(MazeTask):
    """A four-legged robot: observations are (x, y) and 27 numbers of posture and speed, as in D4RL."""

    moving = "ant_env"

    def observation(self, raw: Raw) -> NDArray[np.float32]:
        """Return the observation with the position in front, which gymnasium-robotics leaves out: float32 [29]."""
        return np.concatenate([raw["achieved_goal"], raw["observation"]]).astype(np.float32)


_GRIPPER, _OBJECT = slice(0, 3), slice(3, 6)  # coordinates of gripper and object in an observation
_FINGERS = ("robot0:l_gripper_finger_joint", "robot0:r_gripper_finger_joint")
_STEP = 0.05  # metres that an action of 1 moves the gripper
_NEAR, _MOST_STEPS = 2e-3, 40  # metres from the goal at which the gripper stops; maximum number of actions to get there


def _with_known_joints(simulation: Any) -> SimpleNamespace:
    """Return a simulation's utilities with a `robot_get_obs` that knows where the robot's joints are.

    gymnasium-robotics looks them up by name at every step.
    """
    model, names = simulation.model, simulation._model_names.joint_names
    joints = [model.joint(name).id for name in names if name.startswith("robot")]
    position, velocity = model.jnt_qposadr[joints], model.jnt_dofadr[joints]

    def robot_get_obs(_: Any, data: Any, __: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return data.qpos[position], data.qvel[velocity]

    return SimpleNamespace(**{**vars(simulation._utils), "robot_get_obs": robot_get_obs})


class FetchTask(GoalTask):
    """FetchReach: in a goal's state, the gripper is at the goal. Tasks with an object derive from this class."""

    view = View((1.2, 0.8, 0.5), distance=0.8, azimuth=180, elevation=-30)
    goal_slots: ClassVar[tuple[slice, ...]] = (_GRIPPER,)
    can_stand_at_goal = True
    above = np.zeros(3)
    """Offset of the gripper from a reached goal, in metres."""

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        model = simulation.model  # hide the cross at the gripper's target point
        model.geom_rgba[model.geom_bodyid == model.body("robot0:mocap").id] = 0
        simulation._utils = _with_known_joints(simulation)

    def read(self) -> Raw:
        """Return the simulation's observation of its present state."""
        return dict(self.simulation._get_obs())

    def stand_at_goal(self) -> None:
        """Move the gripper to the goal by the task's actions, so that the robot can reach every goal."""
        simulation = self.simulation
        for _ in range(_MOST_STEPS):
            offset = simulation.goal + self.above - simulation.data.site("robot0:grip").xpos
            if np.linalg.norm(offset) < _NEAR:
                break
            simulation._mujoco_step(simulation._set_action(np.append(np.clip(offset / _STEP, -1, 1), 0.0)))
            simulation._step_callback()
        self._come_to_rest()

    def before_rendering(self) -> None:
        """Put the goal's red ball at the goal."""
        self.simulation.data.site("target0").xpos[:] = self.simulation.goal

    def hide_markers(self) -> None:
        """Hide the goal's red ball."""
        model = self.simulation.model
        model.site_rgba[model.site("target0").id, 3] = 0


class SlideTask(FetchTask):
    """FetchSlide: in a goal's state, the puck is at the goal, out of reach; the gripper is at its start."""

    view = View((1.35, 0.8, 0.4), distance=1.75, azimuth=90, elevation=-40)
    goal_slots = (_GRIPPER, _OBJECT)

    def stand_at_goal(self) -> None:
        """Put the object at the goal."""
        self.simulation.data.joint("object0:joint").qpos[:] = [*self.simulation.goal, 1, 0, 0, 0]
        self._come_to_rest()


class PushTask(SlideTask):
    """FetchPush: in a goal's state, the block is at the goal; the closed gripper is 6 cm above the block's middle."""

    # The authors' camera (lookat 1.25, 0.8, 0.4; distance 0.65; elevation -40) fits the authors' starts and goals.
    # It leaves 10% of this task's starts and 4% of its goals outside the image; this camera shows them all.
    view = View((1.345, 0.75, 0.44), distance=0.75, azimuth=90, elevation=-45)
    above = np.array([0.0, 0.0, 0.06])

    def stand_at_goal(self) -> None:
        """Move the gripper, then put the block at the goal."""
        FetchTask.stand_at_goal(self)
        super().stand_at_goal()


class PickAndPlaceTask(PushTask):
    """FetchPickAndPlace: in a goal's state, the block is at the goal, between the fingers.

    Goals are in the air or on the table.
    """

    view = View((1.25, 0.8, 0.5), distance=1.2, azimuth=90, elevation=-30)
    above = np.zeros(3)
    grip = 0.024  # opening of each finger in metres, at which it just touches a block of five centimetres

    def _come_to_rest(self) -> None:
        for finger in _FINGERS:
            self.simulation.data.joint(finger).qpos[:] = self.grip
        super()._come_to_rest()


FETCH_TASKS: dict[str, type[FetchTask]] = {
    "FetchReach": FetchTask,
    "FetchPush": PushTask,
    "FetchPickAndPlace": PickAndPlaceTask,
    "FetchSlide": SlideTask,
}
FAMILIES: dict[str, type[GoalTask]] = {**FETCH_TASKS, "PointMaze": PointMazeTask, "AntMaze": AntMazeTask}
"""Family -> its task class; a family is the part of an environment's name before the first underscore or hyphen."""


def task_of(name: str) -> type[GoalTask]:
    """Return the task class of an environment's name; `GoalTask` if the name belongs to no family."""
    return FAMILIES.get(name.rpartition(":")[2].split("_")[0].split("-")[0], GoalTask)


PREFIX = "ogbench"
"""The name of OGBench's package, which stands before the colon of an environment's name."""
OGBENCH_TASKS = 5
"""Number of tasks of each of OGBench's environments."""


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, from which OGBench draws, and restore its state afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def remove_model_file(env: gymnasium.Env[Any, Any]) -> None:
    """Remove the file of a maze's model, which OGBench leaves in the temporary folder."""
    written = Path(getattr(env.unwrapped, "fullpath", ""))
    if written.parent == Path(tempfile.gettempdir()):
        written.unlink(missing_ok=True)


class OGBenchGoals(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """An OGBench environment (Park et al., ICLR 2025), such as `ogbench:pointmaze-medium-v0`, as a goal environment.

    Observations are `observation`, `achieved_goal` and `desired_goal`; as in OGBench, a goal is a whole observation. An
    episode is one of the environment's five tasks: a start and a goal in the maze, with noise. The remainder of the
    episode's seed by five determines the task, and `info["task"]` of `reset` is its name. The episode ends when the
    goal is reached (within a quarter of a cell in `pointmaze`), so that success at any step is success at the end.

    OGBench draws tasks and noise from NumPy's global generator. In this wrapper they depend on the seed of `reset`, and
    the state of the global generator is restored.

    Args:
        env: The environment.
        task: Number of the task of every episode, from 1; by default the tasks take turns.

    Raises:
        BadInputError: If the environment does not have this task.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], task: int | None = None) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, task=task)
        gymnasium.Wrapper.__init__(self, env)
        count = int(self.unwrapped.num_tasks)  # type: ignore[attr-defined]
        require(task is None or task <= count, "env.task", task, f"1 to {count}", "choose one of these, or none")
        self._task = task
        each = env.observation_space
        self.observation_space = spaces.Dict(observation=each, achieved_goal=each, desired_goal=each)
        self._rng, self._goal = np.random.default_rng(), np.empty(0)
        remove_model_file(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the task `options["task_id"]`, counted from 1, or of the task of the seed."""
        if seed is not None:
            self._rng = sample_rng(seed, 0, "task")
        world: Any = self.unwrapped
        turn = int(self._rng.integers(world.num_tasks)) if seed is None else seed % world.num_tasks
        chosen = {"task_id": self._task or turn + 1, **(options or {})}
        noise, posture = map(int, self._rng.integers(2**31, size=2))
        self.env.action_space.seed(posture)  # for the random steps before a goal is observed
        with global_seed(noise):
            seen, info = self.env.reset(seed=seed, options=chosen)
        self._goal = np.asarray(info.pop("goal"))
        name = world.task_infos[chosen["task_id"] - 1]["task_name"]
        return self._observe(seen), {**info, "task": name, "is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        judged = {**info, "is_success": bool(info["success"])}
        return self._observe(seen), float(reward), bool(terminated), bool(truncated), judged

    def _observe(self, seen: Any) -> dict[str, Any]:
        return {"observation": seen, "achieved_goal": seen, "desired_goal": self._goal}
