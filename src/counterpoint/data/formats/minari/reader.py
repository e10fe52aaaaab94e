"""Minari data sets as replay buffers: D4RL's mazes, gymnasium-robotics' tasks, and what `write_minari` wrote.

Two kinds are read: goal environments, whose observations are `observation`, `achieved_goal` and `desired_goal`, and
flat vectors, whose whole states can serve as goals. Where an environment keeps the achieved coordinates out of its
observation (AntMaze does) they are put in front of it: an agent that does not see where it is cannot go anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.draws import GoalEpisode, Spaces
from counterpoint.data.formats.minari.files import damaged, is_minari, open_minari
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

if TYPE_CHECKING:
    from counterpoint.data.replay import ReplayBuffer

__all__ = ["episode_success", "is_minari", "load_minari", "read_minari", "replay_from_store"]

Array = NDArray[Any]
Goals = Literal["coordinates", "state"]

_KEYS = ("observation", "achieved_goal", "desired_goal")
_SUCCESS = ("success", "is_success")


def load_minari(source: str | Path, *, goals: Goals = "coordinates") -> ReplayBuffer:
    """Read a Minari data set into a replay buffer of its size.

    Args:
        source: A data set's folder, or an id such as "D4RL/antmaze/umaze-v1", which is downloaded where it is not in
            the local root (`MINARI_DATASETS_PATH`).
        goals: `coordinates` as the environment tells them apart, or whole states. The commanded goal is the desired
            one at the episode's start; of whole states, the last one.

    Raises:
        BadInputError: When it cannot be found, downloaded or read, its spaces are not those of a goal-reaching task,
            an episode has fewer than two states, or holds NaN or actions out of their bounds.
        MissingExtraError: When `minari` is not installed.
    """
    data = open_minari(source)
    form = _form(source, data, goals)
    lengths = _lengths(source, data)
    return _fill(source, form.spaces, lengths, _read(source, data, form), form.bounds, goals == "state")


def read_minari(source: str | Path, *, goals: Goals = "coordinates") -> Iterator[GoalEpisode]:
    """The episodes of a Minari data set, one by one; arguments and errors as those of `load_minari`."""
    data = open_minari(source)
    return _read(source, data, _form(source, data, goals))


def episode_success(source: str | Path) -> NDArray[np.bool_]:
    """Whether each episode succeeded at any step: bool [E].

    Raises:
        BadInputError: When an episode does not say, or the data set cannot be read.
        MissingExtraError: When `minari` is not installed.
    """
    return np.array([_success(source, episode).any() for episode in open_minari(source).iterate_episodes()])


def replay_from_store(store: EpisodeStore) -> ReplayBuffer:
    """States and actions of an `EpisodeStore`, such as a LeRobot data set, as a replay buffer.

    An episode of T steps has no state after its last action, so it gives T - 1 transitions. Goals are whole states;
    the commanded one is the episode's last. Actions are scaled to [-1, 1] by the least and the greatest value of each
    dimension over these episodes (`ReplayBuffer.action_bounds`). Rewards are zero.

    Args:
        store: Where episodes come from.

    Raises:
        BadInputError: When it has no state or no actions, or an episode has fewer than two steps.
    """
    vectors = [(store.state(index), store.actions(index)) for index in range(len(store.episodes))]
    states = [state for state, _ in vectors if state is not None]
    actions = [action for _, action in vectors if action is not None]
    if not vectors or len(states) < len(vectors) or len(actions) < len(vectors):
        raise BadInputError(
            "data set",
            "episodes without state or without actions",
            "both, to learn to reach goals from",
            "choose a data set of a robot",
        )
    low = np.min([action.min(axis=0) for action in actions], axis=0)
    high = np.max([action.max(axis=0) for action in actions], axis=0)
    spaces = Spaces(observation=states[0].shape[1:], goal=states[0].shape[1:], action=len(low))
    episodes = (
        GoalEpisode(state, state, state[-1], _scaled(action[:-1], low, high), np.zeros(len(state) - 1, np.float32))
        for state, action in zip(states, actions, strict=True)
    )
    lengths = [len(state) - 1 for state in states]
    return _fill("data set", spaces, lengths, episodes, np.stack([low, high]), True)


@dataclass(frozen=True)
class _Form:
    """How a data set's numbers are to be read.

    Attributes:
        spaces: What an agent sees and does.
        goals: What serves as a goal.
        nested: Whether observations are dictionaries.
        prepend: Whether achieved coordinates go in front of observations.
        bounds: float [2, A], what -1 and 1 stand for; `None` of discrete actions.
        first: Number of the first discrete action.
    """

    spaces: Spaces
    goals: Goals
    nested: bool
    prepend: bool
    bounds: Array | None
    first: int = 0


def _form(source: str | Path, data: Any, goals: Goals) -> _Form:
    import gymnasium

    nested = isinstance(data.observation_space, gymnasium.spaces.Dict)
    if nested and not set(_KEYS) <= set(data.observation_space):
        raise _no_goals(source, f"observations with the keys {sorted(data.observation_space)}")
    if not nested and goals == "coordinates":
        raise _no_goals(source, "observations without goals")
    if not nested and not isinstance(data.observation_space, gymnasium.spaces.Box):
        raise _no_goals(source, f"observations {data.observation_space}")
    if not len(data):
        raise BadInputError(source, "no episode", "at least one", "record some")
    shape: tuple[int, ...] = (data.observation_space["observation"] if nested else data.observation_space).shape
    prepend = False
    if nested and len(shape) == 1:
        first = _episode(source, data, 0).observations
        prepend = not _holds(first["observation"], first["achieved_goal"])
        shape = (shape[0] + prepend * first["achieved_goal"].shape[1],)
    goal = data.observation_space["achieved_goal"].shape if goals == "coordinates" else shape
    actions = data.action_space
    if isinstance(actions, gymnasium.spaces.Discrete):
        spaces = Spaces(observation=shape, goal=goal, action=int(actions.n), discrete=True)
        return _Form(spaces, goals, nested, prepend, None, int(actions.start))
    if not isinstance(actions, gymnasium.spaces.Box) or len(actions.shape) != 1 or not actions.is_bounded():
        raise BadInputError(
            source,
            f"actions {actions}",
            "a bounded vector, or discrete actions",
            "choose a data set of such an environment",
        )
    spaces = Spaces(observation=shape, goal=goal, action=actions.shape[0])
    return _Form(spaces, goals, nested, prepend, np.stack([actions.low, actions.high]))


def _holds(observation: Array, achieved: Array) -> bool:
    """Whether the achieved coordinates stand somewhere in the observation, side by side."""
    width = achieved.shape[1]
    places = range(observation.shape[1] - width + 1)
    return any(np.allclose(observation[:, k : k + width], achieved, atol=1e-5, equal_nan=True) for k in places)


def _read(source: str | Path, data: Any, form: _Form) -> Iterator[GoalEpisode]:
    for place in range(len(data)):
        raw = _episode(source, data, place)
        states = _single(raw.observations["observation"] if form.nested else raw.observations)
        if form.prepend:
            states = np.concatenate([_single(raw.observations["achieved_goal"]), states], axis=1)
        if form.goals == "coordinates":
            achieved = _single(raw.observations["achieved_goal"])
            commanded = _single(raw.observations["desired_goal"])[0]
        else:
            achieved, commanded = states, states[-1]
        yield GoalEpisode(
            observations=states,
            achieved=achieved,
            commanded=commanded,
            actions=raw.actions - form.first if form.bounds is None else _scaled(raw.actions, *form.bounds),
            rewards=raw.rewards.astype(np.float32),
            success=_success(source, raw) if _says_success(raw) else None,
            terminated=bool(raw.terminations[-1]) if len(raw.terminations) else False,
        )


def _episode(source: str | Path, data: Any, place: int) -> Any:
    try:
        return data[place]
    except Exception as error:  # minari raises whatever its parts do
        raise damaged(f"{source}, episode {data.episode_indices[place]}", error) from None


def _lengths(source: str | Path, data: Any) -> list[int]:
    """T of each episode, without its numbers."""
    try:
        return [int(about["total_steps"]) for about in data.storage.get_episode_metadata(data.episode_indices)]
    except Exception as error:  # minari raises whatever its parts do
        raise damaged(source, error) from None


def _single(values: Array) -> Array:
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def _scaled(actions: Array, low: Array, high: Array) -> Array:
    """Actions of a box as actions in [-1, 1]; a dimension without extent becomes 0."""
    if (low == -1).all() and (high == 1).all():
        return actions
    extent = np.where(high > low, high - low, 1).astype(np.float64)
    scaled: Array = np.where(high > low, 2 * (actions - low) / extent - 1, 0).astype(np.float32)
    return scaled


def _says_success(episode: Any) -> bool:
    return any(name in (episode.infos or {}) for name in _SUCCESS)


def _success(source: str | Path, episode: Any) -> NDArray[np.bool_]:
    """bool [T]: after each transition. Minari's infos begin with the one of the reset."""
    infos = episode.infos or {}
    for name in _SUCCESS:
        if name in infos:
            return np.asarray(infos[name], dtype=np.bool_).reshape(-1)[-len(episode.rewards) :]
    raise BadInputError(
        f"{source}, episode {episode.id}",
        f"infos with {sorted(infos)}" if infos else "no infos",
        "'success' (or 'is_success') at every step",
        "judge success by the distance of achieved and desired goals instead, or record the data with it",
    )


def _no_goals(source: str | Path, found: str) -> BadInputError:
    return BadInputError(
        source,
        found,
        f"a dictionary with {', '.join(_KEYS)}",
        'take whole states of flat observations as goals (goals = "state"), or choose data of a goal environment',
    )


def _fill(
    source: str | Path,
    spaces: Spaces,
    lengths: list[int],
    episodes: Iterable[GoalEpisode],
    bounds: Array | None,
    states_are_goals: bool,
) -> ReplayBuffer:
    from counterpoint.data.replay import ReplayBuffer  # here, so that reading data loads no agent

    total = max(sum(lengths), 1)
    buffer = ReplayBuffer(
        spaces,
        capacity=total,
        shortest=max(total // max(len(lengths), 1), 1),  # the mean: just enough rows for these episodes
        goal_is_observation=states_are_goals,
        action_bounds=bounds,
    )
    for number, episode in enumerate(episodes):
        try:
            buffer.add_episode(
                episode.observations,
                episode.actions,
                episode.achieved,
                commanded=episode.commanded,
                rewards=episode.rewards,
                terminated=episode.terminated,
            )
        except BadInputError as error:
            where = f"{source}, episode {number}, {error.where}".removesuffix(", episode")
            raise BadInputError(where, error.found, error.expected, error.hint) from None
    return buffer
