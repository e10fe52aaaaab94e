"""Goal-reaching environments with one interface: `make_goal_env(EnvConfig(name="FetchPush-v4"))`.

Any gymnasium environment can be used if its observations are dictionaries with `observation`, `achieved_goal` and
`desired_goal` (gymnasium-robotics' Fetch and mazes, or your own).
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Spaces
from counterpoint.envs.goal.mazes import Cell, MazeGrid
from counterpoint.envs.goal.tasks import FAMILIES, OGBENCH_TASKS, PREFIX, OGBenchGoals, Raw, as_read, task_of
from counterpoint.envs.rendering import FastRenderer, import_mujoco, import_robotics
from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError, require, suggestion
from counterpoint.parameter_types import Listed

Env = gymnasium.Env[Any, Any]
Observation = dict[str, NDArray[Any]]

KEYS = ("observation", "achieved_goal", "desired_goal")
_SLACK = 1e-5  # tolerance for actions outside the box, due to rounding
_VIDEO_SIZE = 240  # height and width of `render`'s images, in pixels, if agents observe states
_OGBENCH_KINDS = ("navigate", "stitch", "explore", "play", "noisy")  # of data sets; the last word of their names
_POOL_SEED, _POOL_EPISODES, _POOL_STEPS = 2**30, 20, 50


class EnvConfig(FrozenConfig):
    """A goal-reaching environment.

    Attributes:
        name: The environment's gymnasium id, such as `FetchPush-v4` or `PointMaze_Medium-v3`. For `module:MyEnv-v0`,
            the module is imported first, to register the environment. OGBench's ids are `ogbench:pointmaze-medium-v0`
            and so on; `ogbench/pointmaze-medium-stitch` is the environment of OGBench's data set of this name.
        observations: `state` for state vectors, or `image` for images; with `image`, goals are images too.
        goals: `coordinates` for the coordinates of the object to move, or `state` for the whole observation, also for
            the commanded goal. With `state_zero_padded`, goals in training are whole observations, but commanded goals
            are coordinates padded with zeros. The TD InfoNCE authors do this; it is inconsistent, and kept for
            comparison.
        corruption: Probability that an observation is replaced by another one.
        repeat: Number of environment steps per action, fewer at the end of an episode. The state after the last of
            these steps is the one that the agent observes and that determines success.
        max_episode_steps: Length of an episode in environment steps; by default the environment's length.
        image_size: Height and width of images in pixels; the agents' convolutions need at least 36.
        start_cells: (row, column) of the maze's cells where episodes begin; if empty, the maze's default rule.
        goal_cells: (row, column) of the cells of goals; if empty, the maze's default rule.
        task: Number of OGBench's task, from 1; by default the tasks take turns.
        success_distance: Distance within which a goal counts as reached. By default, success is the environment's
            `info["is_success"]`; for an environment without it, the task's default distance is used.
    """

    name: str
    observations: Literal["state", "image"] = "state"
    goals: Literal["coordinates", "state", "state_zero_padded"] = "coordinates"
    corruption: float = Field(default=0.0, ge=0, le=1)
    repeat: PositiveInt = 1
    max_episode_steps: int | None = Field(default=None, ge=1)
    image_size: int = Field(default=64, ge=36)
    start_cells: Listed[tuple[Cell, ...]] = ()
    goal_cells: Listed[tuple[Cell, ...]] = ()
    task: int | None = Field(default=None, ge=1)
    success_distance: float | None = Field(default=None, gt=0)

    @property
    def tasks(self) -> int:
        """Number of tasks that take turns in an evaluation."""
        return OGBENCH_TASKS if self.name.startswith(f"{PREFIX}:") and self.task is None else 1

    @field_validator("name")
    @classmethod
    def _environment_of_a_data_set(cls, name: str) -> str:
        suite, _, dataset = name.partition("/")
        world, _, kind = dataset.removesuffix("-v0").rpartition("-")
        if suite == PREFIX and kind not in _OGBENCH_KINDS:
            expected = f"a data set's name, which ends in one of {', '.join(_OGBENCH_KINDS)}"
            raise ValueError(f"{expected}; {suggestion(kind, _OGBENCH_KINDS)}".rstrip("; "))
        return f"{PREFIX}:{world}-v0" if suite == PREFIX else name

    @field_validator("goals")
    @classmethod
    def _images_have_no_zeros_around_them(cls, goals: str, others: ValidationInfo) -> str:
        if others.data.get("observations") == "image" and goals == "state_zero_padded":
            raise ValueError('another value: with observations = "image" goals are images')
        return goals


def make_goal_env(config: EnvConfig, env: Env | Callable[[], Env] | None = None) -> gymnasium.Env[Observation, Any]:
    """Make an environment. `functools.partial(make_goal_env, config)` can be sent to a worker process.

    Observations are `{"observation", "achieved_goal", "desired_goal"}`. The observation is float32 [O] and the goals
    are float32 [G], or all three are images, uint8 [size, size, 3] (Powderworld's: [32, 32, 6]). Actions are float32
    [A] in [-1, 1] (or an integer from 0 on). The reward is 1 if the goal is reached, otherwise 0. At reset and at every
    step, `info["is_success"]` is a bool, and `info["distance"]` is the Euclidean distance between achieved and desired
    coordinates, in the environment's unit (metres). Both refer to the true state, even if observations are not.

    Args:
        config: The environment's name and settings.
        env: An environment, or a function that makes one, instead of the environment named in `config.name`.

    Raises:
        BadInputError: If the environment does not exist, has no goals, or does not support these settings.
        MissingExtraError: If the simulator is not installed.
    """
    if env is None:
        env = _registered(config)
    elif not isinstance(env, gymnasium.Env):
        env = env()
    try:
        made = GoalEnv(_with_standard_actions(config.name, env), config)
    except BadInputError:
        env.close()
        raise
    return CorruptedObservations(made, config.corruption) if config.corruption else made


def _registered(config: EnvConfig) -> Env:
    """Make an environment by its gymnasium id."""
    if config.observations == "image" or "mujoco" not in sys.modules:
        import_mujoco()
    gymnasium.register_envs(import_robotics())
    name = config.name
    module, _, own = name.rpartition(":")
    if module:
        _import(name, module)
    if own not in gymnasium.registry:
        hint = suggestion(own, list(gymnasium.registry)) or "register it, in a module named before a colon"
        expected = "a gymnasium id with its version, such as FetchReach-v4, or module:MyEnv-v0 of your own"
        raise BadInputError(f"env {name!r}", "no such environment", expected, hint)
    arguments = task_of(own).arguments(own)
    if not task_of(own).can_stand_at_goal and "rgb_array" in _render_modes(own):
        arguments["render_mode"] = "rgb_array"
    try:
        env = gymnasium.make(own, max_episode_steps=config.max_episode_steps, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        family = gymnasium.registry[own].namespace, gymnasium.registry[own].name
        newest = registration.get_env_id(*family, registration.find_highest_version(*family))
        if isinstance(error, TypeError) and newest == own:
            raise  # the environment's code is up to date, so the error is a fault in that code
        reason = str(error.args[0] if error.args else error).split(". ")[0]
        found = f"{'an environment' if newest == own else 'a version out of date'} that cannot be made ({reason})"
        hint = "install what it needs" if newest == own else f"choose {newest}"
        raise BadInputError(f"env {name}", found, "one that runs here", hint) from error
    written = getattr(env.unwrapped, "tmp_xml_file_path", None)
    if written:  # mazes leave their model file in the temporary folder
        Path(written).unlink(missing_ok=True)
    found, expected = f"{config.task} for {name}", "none: only OGBench's environments have tasks"
    require(config.task is None or module == PREFIX, "env.task", found, expected, "leave it out")
    return OGBenchGoals(env, config.task) if module == PREFIX else env


def _with_standard_actions(name: str, env: Env) -> Env:
    """Return a goal environment whose actions are in [-1, 1] or, if they are discrete, integers from 0."""
    where, seen, space = f"env {name}", env.observation_space, env.action_space
    if not isinstance(seen, spaces.Dict) or not set(KEYS) <= set(seen):
        found = f"observations without goals ({list(seen) if isinstance(seen, spaces.Dict) else type(seen).__name__})"
        hint = "choose a goal-reaching environment (Fetch*, PointMaze_*, AntMaze_*), or wrap yours so that it has goals"
        raise BadInputError(where, found, f"a dictionary with {', '.join(KEYS)}", hint)
    forms = {key: box.shape if isinstance(box := seen[key], spaces.Box) else type(box).__name__ for key in KEYS}
    possible = all(isinstance(form, tuple) and len(form) in (1, 3) for form in forms.values())
    found, hint = ", ".join(f"{key} {form}" for key, form in forms.items()), "wrap the environment so that it has them"
    expected = "vectors or images, the achieved and the desired goal of one shape"
    require(possible and forms["achieved_goal"] == forms["desired_goal"], where, found, expected, hint)
    if isinstance(space, spaces.Discrete):
        first, own = space.start, spaces.Discrete(space.n)
        return env if not first else gymnasium.wrappers.TransformAction(env, lambda action: action + first, own)
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded()):
        hint = "wrap the environment so that its actions have bounds"
        raise BadInputError(where, f"actions {space}", "a bounded vector, or discrete actions", hint)
    standard = (space.low == -1).all() and (space.high == 1).all()
    return env if standard else gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))


def _box(values: NDArray[Any]) -> spaces.Box:
    low, high = (0, 255) if values.dtype == np.uint8 else (-np.inf, np.inf)
    return spaces.Box(low, high, values.shape, values.dtype.type)


def _import(name: str, module: str) -> None:
    """Import the module that registers an environment; it may be in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that installed modules take precedence
    try:
        importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        found = f"module {module}, whose import failed ({type(error).__name__}: {error})"
        expected, hint = "a module that registers the environment", "install it, or run the command in its folder"
        raise BadInputError(f"env {name!r}", found, expected, hint) from error


def _render_modes(own: str) -> list[str]:
    entry = gymnasium.registry[own].entry_point
    try:
        creator = registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, gymnasium.error.Error):  # `gymnasium.make` will report it
        return []
    return list(getattr(creator, "metadata", {}).get("render_modes", ()))


class GoalEnv(gymnasium.Wrapper[Observation, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """A goal-reaching environment with the interface described in `make_goal_env`, which creates it."""

    def __init__(self, env: Env, config: EnvConfig) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, config=config)
        gymnasium.Wrapper.__init__(self, env)
        self.config, self.task = config, task_of(env.spec.id if env.spec else config.name)(env.unwrapped)
        steps = env.spec.max_episode_steps if env.spec else None
        self._require_possible_form(steps)
        self.episode_steps = -(-int(steps or 0) // config.repeat)
        self.success_distance = config.success_distance or self.task.success_distance
        if self.success_distance is None:
            self._require_own_success()
        self._renderer: FastRenderer | None = None
        self._command: NDArray[Any] = np.empty(0)
        self._rng = np.random.default_rng()
        self.observation_space = self._space(env.observation_space)
        if self.task.view is not None:
            self.metadata = {**env.metadata, "render_modes": ["rgb_array"]}

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """Return `rgb_array` if the task has a view, otherwise the inner environment's `render_mode`."""
        return "rgb_array" if self.task.view is not None else self.env.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; the same seed and the same actions give the same episode."""
        if seed is not None:
            self._rng = sample_rng(seed, 0, "goal")
        raw, info = self.env.reset(seed=seed, options=self._cells(options))
        self._command = self._command_of(raw)
        task = {"task": info["task"]} if "task" in info else {}
        return self._observe(raw), self._judge(raw, info) | task

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            BadInputError: If the action is not in the action box, or the simulation became unstable.
        """
        self._require_valid(action)
        for _ in range(self.config.repeat):
            raw, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                break
        judged = self._judge(raw, info)
        return self._observe(raw), float(judged["is_success"]), bool(terminated), bool(truncated), judged

    def render(self) -> Any:
        """Return an image of the scene: uint8 [size, size, 3].

        Raises:
            BadInputError: If no OpenGL context can be created.
        """
        if self.task.view is None:
            return self.env.render()
        body, images = self.task.body, self.config.observations == "image"
        if self._renderer is None:
            if images:
                self.task.hide_markers()
            self._renderer = FastRenderer(body.model, body.data, self.config.image_size if images else _VIDEO_SIZE)
        self.task.before_rendering()
        return self._renderer.render(self.task.view, body.data)

    def close(self) -> None:
        """Free the graphics context, if any, and the simulation."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        super().close()

    def _space(self, raw: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if self.config.observations == "image":
            size = self.config.image_size
            return spaces.Dict(dict.fromkeys(KEYS, _box(np.zeros((size, size, 3), np.uint8))))
        empty = {key: np.zeros(raw[key].shape) for key in KEYS}  # type: ignore[index]
        seen = self.task.observation(empty)
        goal = seen if self.config.goals != "coordinates" else as_read(empty["desired_goal"])
        return spaces.Dict({key: _box(seen if key == "observation" else goal) for key in KEYS})

    def _cells(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        chosen = {}
        for option, cells in (("reset_cell", self.config.start_cells), ("goal_cell", self.config.goal_cells)):
            if cells:
                chosen[option] = np.array(cells[self._rng.integers(len(cells))])
        return {**chosen, **(options or {})} or None

    def _command_of(self, raw: Raw) -> NDArray[Any]:
        """Return the desired goal of an episode in the form of this environment."""
        if self.config.observations == "image" or self.config.goals == "state":
            return self._at_goal()
        coordinates = as_read(raw["desired_goal"])
        if self.config.goals == "coordinates":
            return coordinates
        padded = np.zeros_like(self.task.observation(raw))
        for slot in self.task.goal_slots:
            padded[slot] = coordinates
        return padded

    def _at_goal(self) -> NDArray[Any]:
        """Return the observation at the reached goal; the simulation's state is restored exactly."""
        body = self.task.body
        kept = body.data
        # The copy holds all of MjData, including derived quantities, contacts and warm starts, not only the state.
        body.data = copy.copy(kept)
        try:
            self.task.stand_at_goal()
            seen = self.render() if self.config.observations == "image" else self.task.observation(self.task.read())
            return np.asarray(seen)
        finally:
            body.data = kept

    def _observe(self, raw: Raw) -> Observation:
        if self.config.observations == "image":
            image = self.render()
            return {"observation": image, "achieved_goal": image, "desired_goal": self._command.copy()}
        state = self.task.observation(raw)
        coordinates = self.config.goals == "coordinates"
        achieved = as_read(raw["achieved_goal"]) if coordinates else state
        return {"observation": state, "achieved_goal": achieved, "desired_goal": self._command.copy()}

    def _judge(self, raw: Raw, info: Mapping[str, Any]) -> dict[str, Any]:
        distance = float(np.linalg.norm(np.subtract(raw["achieved_goal"], raw["desired_goal"], dtype=np.float64)))
        if not (np.isfinite(distance) and np.isfinite(raw["observation"]).all()):
            hint = "the simulation blew up: begin a new episode, and check the actions"
            raise BadInputError(f"env {self.config.name}", "NaN or infinity in its observation", "finite numbers", hint)
        if self.config.success_distance is None and "is_success" in info:
            return {"is_success": bool(info["is_success"]), "distance": distance}
        return {"is_success": distance < (self.success_distance or 0.0), "distance": distance}

    def _require_valid(self, action: Any) -> None:
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return
        wrong = np.shape(action) != space.shape
        if wrong or not (np.abs(action) <= 1 + _SLACK).all():  # false for NaN too
            found = f"shape {np.shape(action)}" if wrong else np.array2string(np.asarray(action), precision=3)
            raise BadInputError("action", found, f"{space.shape[0]} numbers in [-1, 1]", "clip it to the box")

    def _require_possible_form(self, steps: int | None) -> None:
        config, task, where = self.config, self.task, f"env {self.config.name}"
        known = f"one of {', '.join(FAMILIES)}, whose goals are known as"
        seen = config.observations != "image" or (task.view and task.can_stand_at_goal)
        require(seen, where, 'observations = "image"', f"{known} images", 'use observations = "state"')
        possible = {"coordinates": True, "state": task.can_stand_at_goal, "state_zero_padded": bool(task.goal_slots)}
        found, hint = f'goals = "{config.goals}"', 'use goals = "coordinates"'
        require(possible[config.goals], where, found, f"{known} whole states", hint)
        cells = {*config.start_cells, *config.goal_cells}
        walls = sorted(cells - set(MazeGrid.of(task.simulation).free)) if cells else []
        found = f"start_cells or goal_cells in a wall: {walls}"
        require(not walls, where, found, "free cells, as (row, column)", "choose others")
        require(steps, where, "episodes without an end", "episodes of a known length", "give max_episode_steps")

    def _require_own_success(self) -> None:
        self.env.reset(seed=0)
        self.env.action_space.seed(0)
        own = "is_success" in self.env.step(self.env.action_space.sample())[4]
        found, expected = 'no distance, and no info["is_success"]', "one of the two, which says when a goal is reached"
        require(own, f"env {self.config.name}", found, expected, "give success_distance")


class CorruptedObservations(
    gymnasium.Wrapper[Observation, Any, Observation, Any], gymnasium.utils.RecordConstructorArgs
):
    """A wrapper that replaces some observations by others, and then sets `info["corrupted"]` to True.

    TD InfoNCE (section 4.1) has "observations ... corrupted with probability 0.1" and does not say by what. In this
    wrapper, each observation, including the first of an episode, is replaced with `probability` by an observation
    sampled uniformly from a pool of this environment's observations. The achieved goal, which is part of the
    observation, is replaced too; the desired goal is not. Reward, success and distance refer to the true state.

    The pool is filled before the first episode, with uniformly random actions and fixed seeds. So it is the same in
    every process, in training and evaluation, and after a run is resumed.

    Args:
        env: A goal environment.
        probability: Probability that an observation is replaced.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], probability: float) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, probability=probability)
        gymnasium.Wrapper.__init__(self, env)
        self.probability = probability
        self.pool: list[Observation] = []
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `seed` also determines the corruption."""
        self.pool = self.pool or self._explore()
        if seed is not None:
            self._rng = sample_rng(seed, 0, "corruption")
        return self._corrupt(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._corrupt(observation, info)
        return observation, float(reward), terminated, truncated, info

    def _corrupt(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        # Both numbers are sampled at every step, so that one step's corruption does not affect later steps.
        replaced, which = self._rng.random() < self.probability, self._rng.integers(len(self.pool))
        info["corrupted"] = bool(replaced)
        other = {key: value.copy() for key, value in self.pool[which].items()} if replaced else {}
        return {**observation, **other}, info

    def _explore(self) -> list[Observation]:
        rng, space, pool = sample_rng(_POOL_SEED, 0, "corruption pool"), self.env.action_space, []
        for episode in range(_POOL_EPISODES):
            observation, _ = self.env.reset(seed=_POOL_SEED + episode)
            for _ in range(_POOL_STEPS):
                pool.append({key: observation[key] for key in KEYS[:2]})
                if isinstance(space, spaces.Discrete):
                    action: Any = int(rng.integers(space.n))
                else:
                    action = rng.uniform(-1, 1, space.shape).astype(np.float32)
                observation, _, terminated, truncated, _ = self.env.step(action)
                if terminated or truncated:
                    break
        return pool


def spaces_of(env: Env) -> Spaces:
    """Return the spaces of an agent for this environment.

    Their `success_distance` is for goal coordinates. For goals that are states or images it is 0: only an equal state
    or image counts as reached.

    Raises:
        BadInputError: If the environment was not made by `make_goal_env`.
    """
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper) and not isinstance(inner, GoalEnv):
        inner = inner.env
    goals = isinstance(inner, GoalEnv)
    require(goals, "env", type(inner).__name__, "a goal environment", "make it with make_goal_env")
    space, actions = inner.observation_space, inner.action_space
    discrete = isinstance(actions, spaces.Discrete)
    coordinates = inner.config.goals == "coordinates" and inner.config.observations == "state"
    return Spaces(
        observation=space["observation"].shape,
        goal=space["desired_goal"].shape,
        action=int(actions.n if discrete else actions.shape[0]),
        discrete=discrete,
        success_distance=float(inner.success_distance or 0.0) if coordinates else 0.0,
    )


def env_facts(config: EnvConfig) -> tuple[Spaces, int]:
    """Return spaces and episode length of an environment."""
    env = make_goal_env(config)
    try:
        return spaces_of(env), int(env.get_wrapper_attr("episode_steps"))
    finally:
        env.close()


def goal_envs(config: EnvConfig, n: int, timeout: float = 60.0) -> VectorEnv:
    """Return n parallel goal environments; if n is above 1, each runs in a separate process."""
    return VectorEnv(partial(make_goal_env, config), n, processes=n > 1, timeout=timeout)


def in_another_env(env: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings `env` for the environment `name`, without cells, which are specific to one maze."""
    cells = ("start_cells", "goal_cells")
    return {key: value for key, value in env.items() if name == env.get("name") or key not in cells} | {"name": name}


def matched(wanted: Spaces, found: Spaces, data: str) -> Spaces:
    """Return the environment's spaces if the data set or agent has the same spaces.

    Raises:
        BadInputError: If observations, goals or actions differ.
    """
    for name in ("observation", "goal", "action", "discrete"):
        ours, theirs = getattr(wanted, name), getattr(found, name)
        hint = "evaluate in the environment it was made for, or set data.goals and env.goals alike"
        require(ours == theirs, data, f"{name} {theirs}", f"{ours}, as in the environment", hint)
    return wanted
