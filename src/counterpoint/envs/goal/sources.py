"""What a goal-reaching environment must know of one family of simulations; the families are files beside this one.

PointMaze and AntMaze of gymnasium-robotics, with the position in the observation and episodes of fixed length.

The Fetch robot's four tasks: where the camera stands, and what the world looks like once a goal is reached.

Cameras are those of the contrastive RL and TD InfoNCE authors, but for FetchPush. The tasks stay
gymnasium-robotics' own (start positions, goals, distance in three dimensions): the authors' image forms change
them (see `docs/environments.md`).

Where goal-reaching environments come from: gymnasium's registry, with the families that are known here.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from counterpoint.envs.rendering import View, choose_backend, import_mujoco
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "FAMILIES",
    "FETCH_TASKS",
    "KEYS",
    "AntMazeTask",
    "FetchTask",
    "GoalTask",
    "MazeTask",
    "PointMazeTask",
    "make_base",
    "task_of",
]


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


try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

KEYS = ("observation", "achieved_goal", "desired_goal")

FAMILIES: dict[str, type[GoalTask]] = {**FETCH_TASKS, "PointMaze": PointMazeTask, "AntMaze": AntMazeTask}
"""By the part of the environment's name before the first underscore or hyphen."""


def make_base(name: str, *, max_episode_steps: int | None, pictures: bool) -> gymnasium.Env[Any, Any]:
    """An environment with goals, as it comes, but for actions in [-1, 1], or counted from 0.

    Args:
        name: Its gymnasium id; with `module:` before it, the module is imported first.
        max_episode_steps: Where episodes are cut off; at its own length where `None`.
        pictures: Whether it will be drawn.

    Raises:
        BadInputError: When there is none, it is out of date, has no goals (or not of one vector), or actions without
            bounds.
        MissingExtraError: When gymnasium-robotics is not installed.
    """
    if pictures or "mujoco" not in sys.modules:
        choose_backend()
    _register()
    module, _, own = name.rpartition(":")
    if module:
        _import(name, module)
    if own not in gymnasium.registry:
        raise _unknown(name, own)
    arguments = FAMILIES.get(_family(own), GoalTask).arguments(own)
    try:
        env = gymnasium.make(own, max_episode_steps=max_episode_steps, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        newest = _newest(own)
        if isinstance(error, TypeError) and newest == own:
            raise  # of code that is not out of date: its own fault, to be seen where it lies
        raise _not_made(name, newest, error) from error
    written = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if written:  # mazes leave their model behind in the folder for temporary files
        Path(written).unlink(missing_ok=True)
    _refuse_goalless(name, env)
    _refuse_other_goals(name, env)
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return _from_zero(env)
    return _in_unit_box(name, env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


def task_of(name: str, simulation: Any) -> GoalTask:
    """What is known of an environment: its family's, or nothing."""
    return FAMILIES.get(_family(name), GoalTask)(simulation)


def _family(name: str) -> str:
    return name.rpartition(":")[2].split("_")[0].split("-")[0]


def _import(name: str, module: str) -> None:
    """Import the module that registers an environment, from the current folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that nothing there hides an installed module
    try:
        importlib.import_module(module)
    except Exception as error:  # a module raises whatever its code does
        raise BadInputError(
            f"env {name!r}",
            f"module {module}, whose import failed ({type(error).__name__}: {error})",
            "a module that can be imported and registers the environment",
            "install the module, or run the command in its folder",
        ) from error


def _newest(own: str) -> str:
    """The newest version of an environment; itself where there is no newer one."""
    spec = gymnasium.registry[own]
    newest = gymnasium.envs.registration.find_highest_version(spec.namespace, spec.name)
    return own if newest is None else gymnasium.envs.registration.get_env_id(spec.namespace, spec.name, newest)


def _not_made(name: str, newest: str, error: Exception) -> BadInputError:
    reason = str(error.args[0] if error.args else error).split(". ")[0]
    outdated = newest != name.rpartition(":")[2]
    return BadInputError(
        f"env {name}",
        f"{'a version out of date' if outdated else 'an environment'} that cannot be made ({reason})",
        "one that runs here",
        f"choose {newest}" if outdated else "install what it asks for",
    )


def _register() -> None:
    """Make known gymnasium-robotics' environments, without its note on Adroit, which no one here uses."""
    try:
        _silence_adroit()
        import gymnasium_robotics
    except ModuleNotFoundError:
        raise MissingExtraError("gymnasium-robotics", "sim") from None
    gymnasium.register_envs(gymnasium_robotics)


def _silence_adroit() -> None:
    """Take the note on Adroit out of what gymnasium-robotics prints when it is first imported."""
    try:
        from farama_notifications import notifications
    except ImportError:
        return
    notes = notifications.get("gymnasium_robotics", {})
    for version in [version for version, note in notes.items() if note.startswith("Adroit")]:
        del notes[version]


def _unknown(name: str, own: str) -> BadInputError:
    close = difflib.get_close_matches(own, gymnasium.registry, n=3)
    return BadInputError(
        f"env {name!r}",
        "no such environment",
        "a gymnasium id with its version, such as FetchReach-v4, or module:MyEnv-v0 of your own",
        f"did you mean {' or '.join(close)}?" if close else "register it, in a module named before a colon",
    )


def _refuse_goalless(name: str, env: gymnasium.Env[Any, Any]) -> None:
    space = env.observation_space
    held = list(space) if isinstance(space, gymnasium.spaces.Dict) else type(space).__name__
    if not isinstance(space, gymnasium.spaces.Dict) or not set(KEYS) <= set(space):
        env.close()
        raise BadInputError(
            f"env {name}",
            f"observations without goals ({held})",
            f"a dictionary with {', '.join(KEYS)}",
            "choose a goal-reaching environment (Fetch*, PointMaze_*, AntMaze_*), or wrap yours so that it has goals",
        )


def _refuse_other_goals(name: str, env: gymnasium.Env[Any, Any]) -> None:
    """Distances, and goals that stand in for each other, need goals that are vectors of one length."""
    held = cast("gymnasium.spaces.Dict", env.observation_space)
    boxes = [isinstance(held[key], gymnasium.spaces.Box) and len(held[key].shape or ()) == 1 for key in KEYS]
    if all(boxes) and held["achieved_goal"].shape == held["desired_goal"].shape:
        return
    env.close()
    found = ", ".join(
        f"{key} {held[key].shape if isinstance(held[key], gymnasium.spaces.Box) else type(held[key]).__name__}"
        for key in KEYS
    )
    raise BadInputError(
        f"env {name}",
        found,
        "vectors, the achieved and the desired goal of one length",
        "wrap the environment so that it has them",
    )


def _in_unit_box(name: str, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    box = cast("gymnasium.spaces.Box", env.action_space)
    if len(box.shape) != 1 or not box.is_bounded():
        raise BadInputError(
            f"env {name}",
            f"actions {box}",
            "a bounded vector, or discrete actions",
            "wrap the environment so that its actions have bounds",
        )
    if (box.low == -1).all() and (box.high == 1).all():
        return env
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))


def _from_zero(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Agents count discrete actions from 0; an environment may count them from another number."""
    own = cast("gymnasium.spaces.Discrete", env.action_space)
    first = own.start
    if not first:
        return env
    return gymnasium.wrappers.TransformAction(env, lambda action: action + first, gymnasium.spaces.Discrete(own.n))
