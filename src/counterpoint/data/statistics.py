"""Statistics of actions and proprioception, over demonstrations or for each task."""

from __future__ import annotations

from typing import Self

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import action_mask, task_numbers


class Statistics(FrozenConfig):
    """The mean, standard deviation, smallest and largest value of each dimension."""

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
        store: The training episodes, without any held-out episode.

    Raises:
        BadInputError: When an episode has no actions, or other action dimensions than the first episode of its domain.
    """
    actions, tasks = store.column("actions"), task_numbers(store)
    own, task_of = action_mask(store, actions.shape[1]), np.repeat(tasks, store.lengths)
    firsts = np.unique(tasks, return_index=True)[1].tolist()
    return [Statistics.of(actions[task_of == task][:, own[first]]) for task, first in enumerate(firsts)]
