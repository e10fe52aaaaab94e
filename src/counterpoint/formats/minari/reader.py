"""Minari data sets as replay buffers: D4RL's mazes, gymnasium-robotics' tasks, and the output of `write_minari`.

Two kinds of data are read: data of goal environments, whose observations have the keys `observation`, `achieved_goal`
and `desired_goal`; and, with `goals="state"`, data whose observations are flat vectors, in which whole states are the
goals. Some environments, such as AntMaze, leave the achieved coordinates out of `observation`; the reader puts them in
front, because an agent must know its location to reach a goal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array, GoalEpisode, Spaces, check_finite
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, relocated, require
from counterpoint.formats.boundary import as_numbers, as_whole
from counterpoint.formats.minari.files import open_minari, reading

if TYPE_CHECKING:
    from counterpoint.data.replay import ReplayBuffer

Goals = Literal["coordinates", "state"]

_KEYS = ("observation", "achieved_goal", "desired_goal")
_SUCCESS = ("success", "is_success")


def load_minari(source: str | Path, *, goals: Goals = "coordinates") -> ReplayBuffer:
    """Read a Minari data set into a replay buffer of the data set's size.

    Args:
        source: A data set's folder, or an id such as "D4RL/antmaze/umaze-v1", which is downloaded where it is not in
            the local root (`MINARI_DATASETS_PATH`).
        goals: `coordinates` takes the goal coordinates that the environment lists separately, `state` takes whole
            states. The commanded goal is the desired goal at the episode's start or, for whole states, the last state.

    Raises:
        BadInputError: When the data set cannot be found, downloaded or read, its spaces are not those of a
            goal-reaching task, or an episode has fewer than two states, NaN, or actions out of their bounds.
        MissingExtraError: When `minari` is not installed.
    """
    data = open_minari(source)
    form = _form(source, data, goals)
    with reading(source):
        lengths = [as_whole(about["total_steps"]) for about in data.storage.get_episode_metadata(data.episode_indices)]
    return filled_buffer(source, form.spaces, lengths, _read(source, data, form), form.bounds, goals == "state")


def read_minari(source: str | Path, *, goals: Goals = "coordinates") -> Iterator[GoalEpisode]:
    """Yield the episodes of a Minari data set, one by one; arguments and errors are those of `load_minari`."""
    data = open_minari(source)
    return _read(source, data, _form(source, data, goals))


def episode_success(source: str | Path) -> NDArray[np.bool_]:
    """Return whether each episode succeeded at any step, bool [E]; refuse data that do not record success."""
    succeeded = []
    hint = "judge success by the distance of achieved and desired goals, or record the data with it"
    for number, raw in _raw_episodes(source, open_minari(source)):
        success, found = _success(raw), f"infos with {sorted(raw.infos)}" if raw.infos else "no infos"
        where, expected = f"{source}, episode {number}", "'success' (or 'is_success') at every step"
        require(success is not None, where, found, expected, hint)
        succeeded.append(bool(np.any(success)))
    return np.array(succeeded)


def replay_from_store(store: EpisodeStore) -> ReplayBuffer:
    """Return a replay buffer with the states and actions of an `EpisodeStore`, such as a LeRobot data set.

    An episode of T steps has no state after its last action, so it gives T - 1 transitions. Goals are whole states; the
    commanded goal is the episode's last state. Rewards are zero. The minimum and the maximum of each dimension of the
    actions are scaled to -1 and 1 (`ReplayBuffer.action_bounds`).

    Raises:
        BadInputError: When the store has no state or no actions, or an episode has fewer than two steps.
    """
    vectors = [(store.state(index), store.actions(index)) for index in range(len(store.episodes))]
    states = [state for state, _ in vectors if state is not None]
    actions = [action for _, action in vectors if action is not None]
    complete = vectors and len(states) == len(vectors) == len(actions)
    found = "episodes without state or without actions"
    require(complete, "data set", found, "both, to learn to reach goals", "choose a robot's data")
    low = np.min([action.min(axis=0) for action in actions], axis=0)
    high = np.max([action.max(axis=0) for action in actions], axis=0)
    spaces = Spaces(observation=states[0].shape[1:], goal=states[0].shape[1:], action=len(low))
    episodes = (
        GoalEpisode(state, state, state[-1], _scaled(action[:-1], low, high), np.zeros(len(state) - 1, np.float32))
        for state, action in zip(states, actions, strict=True)
    )
    lengths = [len(state) - 1 for state in states]
    return filled_buffer("data set", spaces, lengths, episodes, np.stack([low, high]), True)


def describe_minari(path: Path) -> dict[str, str]:
    """Return the facts that `counterpoint data info` prints, as text keyed by their names.

    Observations without goals (flat vectors) are read in the same way as by training with `data.goals = "state"`.
    """
    note: dict[str, Any] = dict(open_minari(path).storage.metadata)
    found, whole_states = _episodes(path)
    episodes = list(found)
    lengths, first = [len(episode.actions) for episode in episodes], episodes[0]
    try:
        success = episode_success(path)
        succeeded = f"{success.mean():.0%} of {len(success)} episodes"
    except BadInputError:
        succeeded = "not recorded"
    return {
        "format": "minari",
        "name": str(note.get("dataset_id", "not recorded")),
        "environment": str(note.get("env_id", "not recorded")),
        "episodes": f"{len(lengths)}, of {min(lengths)} to {max(lengths)} transitions",
        "transitions": str(sum(lengths)),
        "observations": "x".join(map(str, first.observations.shape[1:])),
        "goals": "x".join(map(str, first.achieved.shape[1:])) + (" (whole states)" if whole_states else ""),
        "actions": "discrete" if first.actions.ndim == 1 else f"{first.actions.shape[1]} dimensions",
        "success": succeeded,
    }


def vectors_of(path: Path) -> Iterator[tuple[Array, Array]]:
    """Yield observations [T + 1, n] and actions [T, A] of each episode; errors are those of `read_minari`."""
    yield from ((episode.observations, episode.actions) for episode in _episodes(path)[0])


def examine_minari(path: Path) -> list[BadInputError]:
    """Return the first fault found while a data set is read episode by episode; an empty list if there is none."""
    try:
        deque(_episodes(path)[0], maxlen=0)
    except BadInputError as error:
        return [error]
    return []


def _episodes(path: Path) -> tuple[Iterator[GoalEpisode], bool]:
    """Return the episodes, with goal coordinates or, without these, states as goals; and True if goals are states."""
    try:
        return read_minari(path), False
    except BadInputError:  # any other fault is also found when states are the goals
        return read_minari(path, goals="state"), True


@dataclass(frozen=True)
class _Form:
    """The form of a data set, which decides how its numbers are read."""

    spaces: Spaces
    goals: Goals
    nested: bool  # observations are dictionaries
    prepend: bool  # achieved coordinates are not adjacent columns of the observation, so they go in front of it
    bounds: Array | None  # float [2, A], the actions scaled to -1 and 1; `None` for discrete actions
    first: int = 0  # number of the first discrete action


def _form(source: str | Path, data: Any, goals: Goals) -> _Form:
    from gymnasium.spaces import Box, Dict, Discrete

    seen, actions = data.observation_space, data.action_space
    nested = isinstance(seen, Dict)
    found = f"observations with the keys {sorted(seen)}" if nested else f"observations {seen}, without goals"
    right = set(_KEYS) <= set(seen) if nested else isinstance(seen, Box) and goals == "state"
    images = [key for key, part in seen.items() if len(part.shape or ()) == 3] if nested else []
    found += f", of which {', '.join(images)} are images" if images else ""
    hint = 'take whole states of flat observations as goals (goals = "state"), or data of a goal environment'
    write = "agents read no images with a state beside them: write them with LeRobotWriter, and train on LeRobot data"
    require(right, source, found, f"a dictionary with {', '.join(_KEYS)}", write if images else hint)
    require(len(data), source, "no episode", "at least one", "record some")
    with reading(source):
        shape: tuple[int, ...] = (seen["observation"] if nested else seen).shape
        prepend = False
        if nested and len(shape) == 1:
            first = data[0].observations
            state, achieved = first["observation"], first["achieved_goal"]
            parts = (state[:, k : k + achieved.shape[1]] for k in range(state.shape[1] - achieved.shape[1] + 1))
            prepend = not any(np.allclose(part, achieved, atol=1e-5, equal_nan=True) for part in parts)
            shape = (shape[0] + prepend * first["achieved_goal"].shape[1],)
        goal = seen["achieved_goal"].shape if goals == "coordinates" else shape
    if isinstance(actions, Discrete):
        spaces = Spaces(observation=shape, goal=goal, action=int(actions.n), discrete=True)
        return _Form(spaces, goals, nested, prepend, None, int(actions.start))
    good, hint = isinstance(actions, Box) and len(actions.shape) == 1, "choose a data set of such an environment"
    require(good and actions.is_bounded(), source, f"actions {actions}", "a bounded vector, or discrete actions", hint)
    spaces = Spaces(observation=shape, goal=goal, action=actions.shape[0])
    return _Form(spaces, goals, nested, prepend, np.stack([actions.low, actions.high]))


def _raw_episodes(source: str | Path, data: Any) -> Iterator[tuple[int, Any]]:
    for at in range(len(data)):
        with reading(f"{source}, episode {data.episode_indices[at]}"):
            raw = data[at]
        yield data.episode_indices[at], raw


def _read(source: str | Path, data: Any, form: _Form) -> Iterator[GoalEpisode]:
    for number, raw in _raw_episodes(source, data):
        where = f"{source}, episode {number}"
        with reading(where), np.errstate(over="ignore"):
            episode = _episode(raw, form)
        for name in ("observations", "achieved", "commanded", "actions", "rewards"):
            check_finite(f"{where}, {name}", getattr(episode, name))
        steps = len(episode)
        for name, wanted in (("observations", steps + 1), ("achieved", steps + 1), ("rewards", steps)):
            found, expected = f"{len(getattr(episode, name))} for {steps} actions", f"{wanted}"
            hint = "record the last observation too, or drop the last action and reward of each episode"
            require(len(getattr(episode, name)) == wanted, f"{where}, {name}", found, expected, hint)
        yield episode


def _episode(raw: Any, form: _Form) -> GoalEpisode:
    states = _single(raw.observations["observation"] if form.nested else raw.observations)
    if form.prepend:
        states = np.concatenate([_single(raw.observations["achieved_goal"]), states], axis=1)
    achieved, commanded, actions = states, states[-1], as_numbers(raw.actions)
    if form.goals == "coordinates":
        achieved, commanded = (_single(raw.observations[name]) for name in ("achieved_goal", "desired_goal"))
        commanded = commanded[0]
    return GoalEpisode(
        observations=states,
        achieved=achieved,
        commanded=commanded,
        actions=actions - form.first if form.bounds is None else _scaled(actions, *form.bounds),
        rewards=as_numbers(raw.rewards).astype(np.float32),
        success=_success(raw),
        terminated=bool(as_numbers(raw.terminations).reshape(-1)[-1:].any()),
    )


def _single(values: object) -> Array:
    found = as_numbers(values)
    return found if found.dtype == np.uint8 else found.astype(np.float32)


def _scaled(actions: Array, low: Array, high: Array) -> Array:
    """Scale the actions of a box to [-1, 1]; a dimension whose bounds are equal becomes 0."""
    if (low == -1).all() and (high == 1).all():
        return actions
    extent = np.where(high > low, high - low, 1).astype(np.float64)
    scaled: Array = np.where(high > low, 2 * (actions - low) / extent - 1, 0).astype(np.float32)
    return scaled


def _success(raw: Any) -> NDArray[np.bool_] | None:
    """Return success after each transition, bool [T]; `None` if infos lack it. The first info belongs to the reset."""
    infos = raw.infos or {}
    said = next((infos[name] for name in _SUCCESS if name in infos), None)
    return None if said is None else as_numbers(said).astype(np.bool_).reshape(-1)[-len(raw.rewards) :]


def filled_buffer(
    source: str | Path,
    spaces: Spaces,
    lengths: list[int],
    episodes: Iterable[GoalEpisode],
    bounds: Array | None,
    states_are_goals: bool,
) -> ReplayBuffer:
    """Return a buffer of the size of a data set, filled with its episodes.

    Args:
        source: The data set, for messages.
        spaces: Shapes of observations, goals and actions.
        lengths: Number of transitions of each episode.
        episodes: The episodes.
        bounds: The recorded actions that were scaled to -1 and 1, [2, A]; `None` for discrete actions.
        states_are_goals: True if goals are whole observations, which are then stored once.
    """
    from counterpoint.data.replay import ReplayBuffer  # imported here, so that reading data imports no torch

    total = max(sum(lengths), 1)
    mean = max(total // max(len(lengths), 1), 1)  # gives exactly enough rows for these episodes
    about: dict[str, Any] = {"goal_is_observation": states_are_goals, "action_bounds": bounds}
    buffer = ReplayBuffer(spaces, capacity=total, shortest=mean, **about)
    for number, episode in enumerate(episodes):
        with relocated(f"{source}, episode {number}, ", ", episode"):
            buffer.append(episode)
    return buffer
