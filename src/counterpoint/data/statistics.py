"""Statistics of actions and proprioception, over demonstrations or for each task."""

from __future__ import annotations

from typing import Self

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore, action_mask, task_numbers
from counterpoint.errors import BadInputError, require


class Statistics(FrozenConfig):
    """Mean, standard deviation, smallest and largest value of each dimension."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, values: Array) -> Self:
        """Compute the statistics of float [N, n]."""
        wide = np.asarray(values, np.float64)
        parts = {"mean": wide.mean(0), "deviation": wide.std(0), "low": wide.min(0), "high": wide.max(0)}
        return cls(**{name: tuple(part.tolist()) for name, part in parts.items()})


def action_statistics(store: EpisodeStore) -> list[Statistics]:
    """Compute the statistics of each task's own action dimensions, in order of `task_numbers`.

    Args:
        store: Training episodes alone.

    Raises:
        BadInputError: When an episode has no actions, or episodes of a task have other dimensions than its first.
    """
    tasks, found = task_numbers(store), []
    for task in range(int(tasks.max()) + 1):
        episodes = np.flatnonzero(tasks == task).tolist()
        parts = [_actions(store, episode) for episode in episodes]
        for episode, part in zip(episodes, parts, strict=True):
            own, first = part.shape[1], parts[0].shape[1]
            expected = f"{first}, as in episode {episodes[0]} of the same task"
            hint = "make a domain of each"
            require(own == first, f"episode {episode}", f"actions of {own} dimensions", expected, hint)
        mask = action_mask(store, parts[0].shape[1])[episodes[0]]
        found.append(Statistics.of(np.concatenate(parts)[:, mask]))
    return found


def _actions(store: EpisodeStore, episode: int) -> Array:
    actions = store.actions(episode)
    if actions is None:
        raise BadInputError(f"episode {episode}", "no actions", "actions", "leave the episode out")
    return actions
