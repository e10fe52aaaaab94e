"""What actions and proprioception are like, in numbers: of demonstrations, and of each task that is trained on."""

from __future__ import annotations

from typing import Self

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore, action_mask, task_numbers
from counterpoint.errors import BadInputError

__all__ = ["Statistics", "action_statistics"]


class Statistics(FrozenConfig):
    """What each dimension was like: its mean, standard deviation, least and greatest value."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, values: Array) -> Self:
        """Of float [N, n]."""
        wide = np.asarray(values, np.float64)
        mean, deviation, low, high = (
            tuple(part.tolist()) for part in (wide.mean(0), wide.std(0), wide.min(0), wide.max(0))
        )
        return cls(mean=mean, deviation=deviation, low=low, high=high)


def action_statistics(store: EpisodeStore) -> list[Statistics]:
    """Each task's actions over all steps of its episodes, own dimensions alone, in order of `task_numbers`.

    Give it the training episodes alone.

    Raises:
        BadInputError: When an episode has no actions, or episodes of a task have other dimensions than its first.
    """
    tasks, found = task_numbers(store), []
    for task in range(int(tasks.max()) + 1):
        episodes = np.flatnonzero(tasks == task).tolist()
        parts = [_actions(store, episode) for episode in episodes]
        for episode, part in zip(episodes, parts, strict=True):
            if part.shape[1] != parts[0].shape[1]:
                raise BadInputError(
                    f"episode {episode}",
                    f"actions of {part.shape[1]} dimensions",
                    f"{parts[0].shape[1]}, as in episode {episodes[0]} of the same task",
                    "join domains that differ in a MultiTaskStore, one store a domain",
                )
        own = action_mask(store, parts[0].shape[1])[episodes[0]]
        found.append(Statistics.of(np.concatenate(parts)[:, own]))
    return found


def _actions(store: EpisodeStore, episode: int) -> Array:
    actions = store.actions(episode)
    if actions is None:
        raise BadInputError(f"episode {episode}", "no actions", "actions", "leave the episode out")
    return actions
