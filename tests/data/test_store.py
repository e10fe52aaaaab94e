from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.store import EpisodeStore, MemoryStore, SubsetStore, read_episode
from counterpoint.errors import BadInputError
from tests.conftest import moving_square_store
from tests.data.numbered import numbered_store


def test_memory_store_has_the_face_of_a_store(store: MemoryStore) -> None:
    assert isinstance(store, EpisodeStore)
    assert isinstance(SubsetStore(store, [1]), EpisodeStore)


def test_read_episode_gives_back_what_was_put_in(store: MemoryStore) -> None:
    episode = read_episode(store, 2)
    again = read_episode(MemoryStore([episode]), 0)
    assert np.array_equal(again.frames["front"], episode.frames["front"])
    assert episode.actions is not None
    assert again.actions is not None
    assert np.array_equal(again.actions, episode.actions)


def test_subset_renumbers(store: MemoryStore) -> None:
    subset = SubsetStore(store, [5, 2])
    assert [info.instruction for info in subset.episodes] == [store.episodes[i].instruction for i in (5, 2)]
    steps = np.array([0, 3])
    assert np.array_equal(subset.frames(1, steps), store.frames(2, steps))
    assert np.array_equal(subset.timestamps(0), store.timestamps(5))


def test_fingerprint_follows_content(store: MemoryStore) -> None:
    assert store.fingerprint == moving_square_store().fingerprint
    assert store.fingerprint != moving_square_store(seed=1).fingerprint
    assert SubsetStore(store, [0]).fingerprint != SubsetStore(store, [1]).fingerprint


def test_rewards_are_given_back_and_count_for_the_fingerprint() -> None:
    store = numbered_store([4, 3])
    rewards = SubsetStore(store, [1]).rewards(0)
    assert rewards is not None
    assert rewards.tolist() == [100, 101, 102]
    assert read_episode(store, 1).rewards is rewards
    without = numbered_store([4, 3], rewards=False)
    assert without.rewards(0) is None
    assert without.fingerprint != store.fingerprint


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(BadInputError, match="at least one"):
        MemoryStore([])
