from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.statistics import Statistics, action_statistics
from counterpoint.data.store import MemoryStore
from counterpoint.data.store_views import MultiTaskStore, SubsetStore
from counterpoint.errors import BadInputError
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode

ARM, WALKER = numbered_store([9, 12, 8], action_dim=2), numbered_store([30, 7], action_dim=4)


def test_statistics_are_those_of_each_task() -> None:
    store = MultiTaskStore([ARM, WALKER], ["arm", "walker"])
    found = action_statistics(store)
    of_tasks = [(ARM, [0, 2]), (ARM, [1]), (WALKER, [0]), (WALKER, [1])]
    assert len(found) == len(of_tasks)
    for statistics, (own, episodes) in zip(found, of_tasks, strict=True):
        parts = [own.actions(episode) for episode in episodes]
        actions = np.concatenate([part for part in parts if part is not None]).astype(np.float64)
        np.testing.assert_allclose(statistics.mean, actions.mean(0))
        np.testing.assert_allclose(statistics.deviation, actions.std(0))
        np.testing.assert_array_equal(statistics.low, actions.min(0))
        np.testing.assert_array_equal(statistics.high, actions.max(0))
    assert action_statistics(SubsetStore(store, [4])) == found[3:]
    assert Statistics.model_validate_json(found[0].model_dump_json()) == found[0]


def test_statistics_need_actions_of_one_width() -> None:
    frames = {"front": np.zeros((3, 4, 4, 3), np.uint8)}
    bare = MemoryStore([type(read_episode(ARM, 0))(frames, "look", np.arange(3) / 10)])
    with pytest.raises(BadInputError, match="episode 0: found no actions"):
        action_statistics(bare)
    mixed = MemoryStore([read_episode(ARM, 0), read_episode(WALKER, 0)])
    with pytest.raises(BadInputError, match="episode 1: found actions of 4 dimensions; expected 2"):
        action_statistics(mixed)
