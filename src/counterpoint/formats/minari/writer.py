"""Write goal-reaching episodes as a Minari data set that `minari.load_dataset` opens."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import check_episode
from counterpoint.errors import MissingExtraError, relocated, require
from counterpoint.formats.base import require_new
from counterpoint.formats.minari.files import ID, import_minari


def write_minari(
    out: Path,
    episodes: Sequence[GoalEpisode],
    *,
    env_id: str,
    description: str,
    algorithm: str = "",
    author: str = "",
    dataset_id: str | None = None,
    discrete: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a data set, completely or not at all. Images are kept as they are, not as JPEG.

    Args:
        out: The data set's folder, which must not exist. Below `MINARI_DATASETS_PATH` it can be loaded by id.
        episodes: One episode or more, all with the same shapes.
        env_id: The environment of the recording, noted under `env_id` instead of Minari's `env_spec`, because
            gymnasium's registry lacks this library's goal environments.
        description: A description of the contents, for readers.
        algorithm: Name of the policy that acted.
        author: Name of the person who recorded the data.
        dataset_id: The data set's id; by default the folder's name, with `-v0` added if the name has no version.
        discrete: The number of discrete actions; `None` if actions are continuous.
        about: Further notes for the metadata, as JSON values.

    Returns:
        `out`.

    Raises:
        BadInputError: When the folder exists, there is no episode, or an episode is malformed or unlike the first.
        MissingExtraError: When `minari` is not installed.
    """
    minari = import_minari()
    out = Path(out).absolute()  # minari joins a relative path twice
    cleaned = re.sub(r"[^-\w]", "-", out.name)
    named = cleaned if re.search(r"-v\d+$", cleaned) else f"{cleaned}-v0"
    name = named if dataset_id is None else dataset_id
    require_new(out)
    expected = "an id such as pointmaze/stitching-v0"
    require(ID.fullmatch(name), "dataset_id", repr(name), expected, "use letters, digits, - and _")
    require(episodes, out, "no episode to write", "at least one", "record some")
    alike, expected = len({episode.success is None for episode in episodes}) == 1, "success of all of them or of none"
    require(alike, out, "episodes with and without success", expected, "judge every episode, or none")
    seen, goal, action = (
        np.shape(v)[1:] for v in (episodes[0].observations, episodes[0].achieved, episodes[0].actions)
    )
    spaces = Spaces(seen, goal, int(np.prod(action)) if discrete is None else discrete, discrete is not None)
    made = out.with_name(f".{out.name}.{os.getpid()}")
    made.mkdir(parents=True)
    try:
        _check_room(made, episodes)
        observations, actions = _gymnasium(spaces)
        storage = minari.dataset.minari_storage.MinariStorage.new(
            made / "data", observation_space=observations, action_space=actions, jpeg_encoding=False
        )
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": minari.__version__,
                "env_id": env_id,
                "description": description,
                **({"algorithm_name": algorithm} if algorithm else {}),
                **({"author": {author}} if author else {}),
                **(about or {}),
            }
        )
        storage.update_episodes(_buffers(episodes, spaces))
        made.rename(out)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "h5py", "minari") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return out


def _check_room(folder: Path, episodes: Sequence[GoalEpisode]) -> None:
    """Refuse a disk that may be too small, because HDF5 crashes the process when a disk is full."""
    arrays = sum(np.asarray(part).nbytes for one in episodes for part in (one.observations, one.achieved, one.actions))
    needed = 2 * arrays + 2**16 * len(episodes) + 2**20
    free = shutil.disk_usage(folder).free
    found, expected = f"{free / 1e6:.1f} MB free", f"{needed / 1e6:.1f} MB for the data set"
    require(needed <= free, folder.parent, found, expected, "free some space, then run the same command again")


def _gymnasium(spaces: Spaces) -> tuple[Any, Any]:
    """Return gymnasium's spaces of observations and of actions."""
    from gymnasium.spaces import Box, Dict, Discrete

    def box(shape: tuple[int, ...]) -> Box:
        return Box(0, 255, shape, np.uint8) if len(shape) == 3 else Box(-np.inf, np.inf, shape, np.float32)

    goal = {"achieved_goal": box(spaces.goal), "desired_goal": box(spaces.goal)}
    actions = Discrete(spaces.action) if spaces.discrete else Box(-1, 1, (spaces.action,), np.float32)
    return Dict({"observation": box(spaces.observation), **goal}), actions


def _buffers(episodes: Sequence[GoalEpisode], spaces: Spaces) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for number, episode in enumerate(episodes):
        with relocated(f"episode {number}, "):
            checked = check_episode(spaces, episode)
        T = len(checked.actions)
        last = np.arange(T) == T - 1
        infos = None
        if episode.success is not None:
            # Minari also keeps the info of the reset, so there are as many infos as states.
            infos = {"success": np.concatenate([[False], np.asarray(episode.success, dtype=np.bool_)])}
        yield EpisodeBuffer(
            observations={
                "observation": checked.observations,
                "achieved_goal": checked.achieved,
                "desired_goal": np.repeat(checked.commanded[None], T + 1, axis=0),
            },
            actions=checked.actions,
            rewards=checked.rewards,
            terminations=last & episode.terminated,
            truncations=last & (not episode.terminated),
            infos=infos,
        )
