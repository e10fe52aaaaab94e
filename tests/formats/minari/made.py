"""Small goal-reaching episodes, and Minari data sets of other shapes than `write_minari` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import GoalEpisode


def goal_episodes(lengths: tuple[int, ...] = (4, 1, 7), *, seed: int = 0, success: bool = True) -> list[GoalEpisode]:
    """States (x, y, vx, vy) with goals (x, y); odd ones are terminated."""
    rng = np.random.default_rng(seed)
    made = []
    for number, T in enumerate(lengths):
        states = rng.normal(size=(T + 1, 4)).astype(np.float32)
        made.append(
            GoalEpisode(
                observations=states,
                achieved=states[:, :2].copy(),
                commanded=rng.normal(size=2).astype(np.float32),
                actions=rng.uniform(-1, 1, (T, 2)).astype(np.float32),
                rewards=rng.random(T).astype(np.float32),
                success=np.arange(T) >= 3 if success else None,
                terminated=number % 2 == 1,
            )
        )
    return made


def raw_dataset(
    out: Path, observations: Any, actions: Any, episodes: list[dict[str, Any]], *, data_format: str = "hdf5"
) -> Path:
    """What minari itself writes of raw episodes: observations, actions, rewards, terminations, truncations, infos."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    out.mkdir(parents=True)
    storage = MinariStorage.new(
        out / "data", observation_space=observations, action_space=actions, data_format=data_format
    )
    storage.update_metadata({"dataset_id": "raw/set-v0", "minari_version": minari.__version__})
    storage.update_episodes([EpisodeBuffer(**episode) for episode in episodes])
    return out


def raw_episode(observations: Any, actions: Any, **more: Any) -> dict[str, Any]:
    """An episode of T actions that a time limit ended."""
    T = len(actions)
    last = np.arange(T) == T - 1
    return {
        "observations": observations,
        "actions": actions,
        "rewards": np.zeros(T),
        "terminations": np.zeros(T, dtype=np.bool_),
        "truncations": last,
        **more,
    }
