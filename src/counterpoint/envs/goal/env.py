"""The stochastic variant of an environment: observations are now and then another situation's.

TD InfoNCE (section 4.1) has "observations ... corrupted with probability 0.1" and does not say by what. Read here
as: each observation, the first of an episode included, is replaced with that probability by one drawn uniformly
from a pool of observations that this environment has shown. The achieved goal is part of what an agent sees of
itself, and is replaced together with it; the desired goal is not. Reward, success and distance are of the true
state.

The pool is filled before the first episode, with uniformly random actions and fixed seeds. It is therefore the same
in every process, during training and evaluation, and after a run was resumed; no policy changes it.

Goal-reaching environments in one form: `make_goal_env(EnvConfig(name="FetchPush-v4"))`.

Any gymnasium environment will do whose observations are dictionaries with `observation`, `achieved_goal` and
`desired_goal` (gymnasium-robotics' Fetch and mazes, or your own). Out comes the same dictionary, as an agent
wants it: float32 states or uint8 pictures, goals as coordinates, whole states or pictures, actions in [-1, 1],
episodes of a known length, and in `info` at every step whether the goal is reached and how far away it is.

Pictures need a graphics context, which is made when the first one is drawn, in the process that draws.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from counterpoint.data.draws import Spaces
from counterpoint.envs.goal.config import EnvConfig, episode_steps, refuse_impossible_form, success_distance
from counterpoint.envs.goal.sources import KEYS, Raw, make_base, task_of
from counterpoint.envs.rendering import FastRenderer
from counterpoint.envs.vector import VectorEnv
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "CorruptedObservations",
    "EnvConfig",
    "GoalEnv",
    "env_facts",
    "env_spaces",
    "goal_envs",
    "in_another_env",
    "make_goal_env",
    "matched",
    "spaces_of",
]


_REPLACED = ("observation", "achieved_goal")
_POOL_SEED = 2**30
_POOL_EPISODES, _POOL_STEPS = 20, 50

Observation = dict[str, NDArray[Any]]


class CorruptedObservations(gymnasium.Wrapper[Observation, Any, Observation, Any]):
    """Replaces observations by others that were seen. `info["corrupted"]` says when.

    Args:
        env: A goal environment.
        probability: Of replacing an observation.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], probability: float) -> None:
        super().__init__(env)
        self.probability = probability
        self.pool: list[Observation] = []
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `seed` decides the corruption too."""
        if not self.pool:
            self.pool = self._explore()
        if seed is not None:
            self._rng = np.random.default_rng([seed, 2])
        observation, info = self.env.reset(seed=seed, options=options)
        return self._corrupt(observation, info)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._corrupt(observation, info)
        return observation, float(reward), terminated, truncated, info

    def _corrupt(self, observation: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        # Both numbers are drawn each time, so that one step's fate does not shift those after it.
        replaced, which = self._rng.random() < self.probability, self._rng.integers(len(self.pool))
        info["corrupted"] = bool(replaced)
        return ({**observation, **self.pool[which]} if replaced else observation), info

    def _explore(self) -> list[Observation]:
        """What random actions show."""
        rng = np.random.default_rng(_POOL_SEED)
        space = self.env.action_space
        pool = []
        for episode in range(_POOL_EPISODES):
            observation, _ = self.env.reset(seed=_POOL_SEED + episode)
            for _ in range(_POOL_STEPS):
                pool.append({key: observation[key] for key in _REPLACED})
                if isinstance(space, gymnasium.spaces.Discrete):
                    action: Any = int(rng.integers(space.n))
                else:
                    action = rng.uniform(-1, 1, space.shape or ()).astype(np.float32)
                observation, _, terminated, truncated, _ = self.env.step(action)
                if terminated or truncated:
                    break
        return pool


try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None
try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

_SLACK = 1e-5  # by which an action may leave the box: rounding


def make_goal_env(config: EnvConfig) -> gymnasium.Env[Observation, Any]:
    """Make an environment. `functools.partial(make_goal_env, config)` can be sent to a worker process.

    Observations are `{"observation", "achieved_goal", "desired_goal"}`: float32 [O] and [G], or uint8
    [size, size, 3] each. Actions are float32 [A] in [-1, 1] (or an integer from 0 on). The reward is 1 at a reached
    goal and 0 elsewhere. At reset and at every step `info["is_success"]` is a bool, and `info["distance"]` the
    Euclidean distance of achieved from desired coordinates, in the environment's unit (metres); both are of the
    true state, whatever is observed.

    Args:
        config: Which environment, and in which form.

    Raises:
        BadInputError: When there is no such environment, it has no goals, or cannot take that form.
        MissingExtraError: When the simulator is not installed.
    """
    base = make_base(config.name, max_episode_steps=config.max_episode_steps, pictures=config.observations == "image")
    env: gymnasium.Env[Observation, Any] = GoalEnv(base, config)
    if config.corruption:
        env = CorruptedObservations(env, config.corruption)
    return env


def spaces_of(env: gymnasium.Env[Any, Any]) -> Spaces:
    """What an agent for this environment sees and does.

    `success_distance` is that of goal coordinates. Goals that are states or pictures count as equal only if they
    are: 0.
    """
    inner = _inner(env)
    space, actions = inner.observation_space, inner.action_space
    discrete = isinstance(actions, spaces.Discrete)
    coordinates = inner.config.goals == "coordinates" and inner.config.observations == "state"
    return Spaces(
        observation=tuple(space["observation"].shape),
        goal=tuple(space["desired_goal"].shape),
        action=int(actions.n) if discrete else int(actions.shape[0]),
        discrete=discrete,
        success_distance=inner.success_distance if coordinates else 0.0,
    )


def env_spaces(config: EnvConfig) -> Spaces:
    """Return what an agent sees and does in an environment."""
    return env_facts(config)[0]


def env_facts(config: EnvConfig) -> tuple[Spaces, int]:
    """Return spaces and episode length of an environment, which is made for a moment."""
    env = make_goal_env(config)
    try:
        return spaces_of(env), int(env.get_wrapper_attr("episode_steps"))
    finally:
        env.close()


def goal_envs(config: EnvConfig, n: int, timeout: float = 60.0) -> VectorEnv:
    """Return n goal environments side by side; several get processes of their own."""
    return VectorEnv(partial(make_goal_env, config), n, processes=n > 1, timeout=timeout)


def in_another_env(env: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return settings for another environment: the cells of one maze mean nothing in the next."""
    kept = {
        key: value for key, value in env.items() if name == env.get("name") or key not in ("start_cells", "goal_cells")
    }
    return kept | {"name": name}


def matched(wanted: Spaces, found: Spaces, data: str) -> Spaces:
    """Return the environment's spaces when the data set or agent has the same.

    Raises:
        BadInputError: When observations, goals or actions differ.
    """
    for name in ("observation", "goal", "action", "discrete"):
        ours, theirs = getattr(wanted, name), getattr(found, name)
        if ours != theirs:
            raise BadInputError(
                data,
                f"{name} {theirs}",
                f"{ours}, as in the environment",
                "evaluate in the environment it was made for, or set data.goals and env.goals alike",
            )
    return wanted


class GoalEnv(gymnasium.Wrapper[Observation, Any, Any, Any]):
    """A goal-reaching environment in the form that `make_goal_env` promises.

    Args:
        env: An environment whose observations are dictionaries with goals.
        config: Its form.

    Raises:
        BadInputError: When it cannot take that form.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: EnvConfig) -> None:
        super().__init__(env)
        self.config, self.task = config, task_of(config.name, env.unwrapped)
        refuse_impossible_form(config, self.task)
        self.success_distance = success_distance(config, self.task)
        self.episode_steps = episode_steps(config, env)
        self._renderer: FastRenderer | None = None
        self._command: NDArray[Any] = np.empty(0)
        self._rng = np.random.default_rng()
        self.observation_space = self._space(env.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `seed` decides all that follows from the same actions."""
        if seed is not None:
            self._rng = np.random.default_rng([seed, 1])
        raw, _ = self.env.reset(seed=seed, options=self._cells(options))
        self._command = self._command_of(raw)
        return self._observe(raw), self._judge(raw)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            BadInputError: When the action is not in the box, or the simulation blew up.
        """
        self._refuse_bad(action)
        raw, _, terminated, truncated, _ = self.env.step(action)
        info = self._judge(raw)
        return self._observe(raw), float(info["is_success"]), bool(terminated), bool(truncated), info

    def draw(self) -> NDArray[np.uint8]:
        """The scene as it stands: uint8 [size, size, 3].

        Raises:
            BadInputError: When there is no graphics context to be had.
        """
        body = self.task.body
        if self._renderer is None:
            self.task.hide_markers()
            self._renderer = FastRenderer(body.model, body.data, self.config.image_size)
        self.task.before_drawing()
        assert self.task.view is not None
        return self._renderer.draw(self.task.view, body.data)

    def close(self) -> None:
        """Free the graphics context, if any, and the simulation."""
        if self._renderer is not None:
            self._renderer.close()
        super().close()

    def _space(self, raw: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if self.config.observations == "image":
            size = self.config.image_size
            picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
            return spaces.Dict(dict.fromkeys(KEYS, picture))
        empty = {key: np.zeros(raw[key].shape) for key in KEYS}  # type: ignore[index]
        width = len(self.task.observation(empty))
        goal = width if self.config.goals != "coordinates" else len(empty["desired_goal"])
        widths = {"observation": width, "achieved_goal": goal, "desired_goal": goal}
        return spaces.Dict({key: spaces.Box(-np.inf, np.inf, (widths[key],), np.float32) for key in KEYS})

    def _cells(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        chosen = {}
        for option, cells in (("reset_cell", self.config.start_cells), ("goal_cell", self.config.goal_cells)):
            if cells:
                chosen[option] = np.array(cells[self._rng.integers(len(cells))])
        return {**chosen, **(options or {})} or None

    def _command_of(self, raw: Raw) -> NDArray[Any]:
        """The desired goal in the form of this environment, for one episode."""
        if self.config.observations == "image":
            return self._at_goal(pictures=True)
        if self.config.goals == "state":
            return self._at_goal(pictures=False)
        coordinates = np.asarray(raw["desired_goal"], np.float32)
        if self.config.goals == "coordinates":
            return coordinates
        padded = np.zeros_like(self.task.observation(raw))
        for slot in self.task.goal_slots:
            padded[slot] = coordinates
        return padded

    def _at_goal(self, *, pictures: bool) -> NDArray[Any]:
        """What would be observed where the goal is reached; the simulation is left exactly as it was."""
        body = self.task.body
        kept = body.data
        # The copy holds all of MjData: derived quantities, contacts and warm starts too, not the state alone.
        body.data = copy.copy(kept)
        try:
            self.task.stand_at_goal()
            return self.draw() if pictures else self.task.observation(self.task.read())
        finally:
            body.data = kept

    def _observe(self, raw: Raw) -> Observation:
        if self.config.observations == "image":
            picture = self.draw()
            return {"observation": picture, "achieved_goal": picture, "desired_goal": self._command}
        state = self.task.observation(raw)
        coordinates = self.config.goals == "coordinates"
        achieved = np.asarray(raw["achieved_goal"], np.float32) if coordinates else state
        return {"observation": state, "achieved_goal": achieved, "desired_goal": self._command}

    def _judge(self, raw: Raw) -> dict[str, Any]:
        distance = float(np.linalg.norm(raw["achieved_goal"] - raw["desired_goal"]))
        if not (np.isfinite(distance) and np.isfinite(raw["observation"]).all()):
            raise BadInputError(
                f"env {self.config.name}",
                "NaN or infinity in its observation",
                "finite numbers",
                "the simulation blew up: begin a new episode, and look at the actions",
            )
        return {"is_success": distance < self.success_distance, "distance": distance}

    def _refuse_bad(self, action: Any) -> None:
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return
        if np.shape(action) != space.shape:
            found = f"shape {np.shape(action)}"
        elif not (np.abs(action) <= 1 + _SLACK).all():  # false for NaN too
            found = f"{np.array2string(np.asarray(action), precision=3)}"
        else:
            return
        raise BadInputError("action", found, f"{space.shape[0]} numbers in [-1, 1]", "clip it to the box")


def _inner(env: gymnasium.Env[Any, Any]) -> Any:
    """The `GoalEnv` inside."""
    while not isinstance(env, GoalEnv):
        if not isinstance(env, gymnasium.Wrapper):
            raise BadInputError("env", type(env).__name__, "a goal environment", "make it with make_goal_env")
        env = env.env
    return env
