from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.data.store import Cameras, EpisodeStore, MemoryStore, camera_images, camera_names, frame_batches
from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import BadInputError
from tests.conftest import moving_square_store
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.formats.made import memory_store
from tests.policies.two_cameras import OUTER, WRIST, record_pairs


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


KNOWN = memory_store((2,), size=(4, 4), cameras=("a", "b", "c"))


@pytest.mark.parametrize(
    ("camera", "count", "names"),
    [
        (None, None, ("a",)),
        (None, 2, ("a", "b")),
        ("c", None, ("c",)),
        ("c", 1, ("c",)),
        (["c", "a"], None, ("c", "a")),
        (("c", "a"), 2, ("c", "a")),
    ],
)
def test_what_names_mean(camera: Cameras, count: int | None, names: tuple[str, ...]) -> None:
    assert camera_names(camera, KNOWN, count) == names


@pytest.mark.parametrize(
    ("camera", "count", "told"),
    [
        ("d", None, r"found 'd'; expected one of a, b, c"),
        (("a", "d"), 2, "found 'd'"),
        (("a", "a"), 2, "found a, a"),
        ((), None, "found none"),
        ("a", 2, "found a; expected 2 of"),
        (None, 4, "found a, b, c; expected 4 of"),
    ],
)
def test_names_that_do_not_fit_are_refused(camera: Cameras, count: int | None, told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        camera_names(camera, KNOWN, count)


def test_images_of_several_cameras_stand_beside_each_other() -> None:
    store = record_pairs(1)
    steps = np.array([3, 0, 3])
    found = camera_images(store, 0, steps, (WRIST, OUTER))
    for place, camera in enumerate((WRIST, OUTER)):
        np.testing.assert_array_equal(found[:, place], store.frames(0, steps, camera))


def test_batches_span_episodes_and_end_where_sizes_change() -> None:
    def episode(length: int, size: int, value: int) -> Episode:
        frames = {name: np.full((length, size, size, 3), value + n, np.uint8) for n, name in enumerate(("a", "b"))}
        return Episode(frames, "", np.arange(length) / 10, state=np.full((length, 2), value, np.float32))

    store = MemoryStore([episode(3, 4, 10), episode(2, 4, 20), episode(1, 5, 30)])
    found = list(frame_batches(store, range(3), ("a", "b"), 4, with_state=True))
    owners = [[(0, 0, 3), (0, 1, 1)], [(0, 1, 2), (1, 0, 2)], [(1, 1, 2)], [(2, 0, 1), (2, 1, 1)]]
    assert [list(batch.owners) for batch in found] == owners
    assert [batch.frames[:, 0, 0, 0].tolist() for batch in found] == [
        [10, 10, 10, 11], [11, 11, 20, 20], [21, 21], [30, 31]
    ]  # fmt: skip
    states = [batch.state for batch in found]
    assert [None if one is None else one[:, 0].tolist() for one in states] == [
        [10, 10, 10, 10], [10, 10, 20, 20], [20, 20], [30, 30]
    ]  # fmt: skip
    assert all(batch.state is None for batch in frame_batches(store, range(3), ("a",), 4))


def test_a_missing_state_is_told() -> None:
    store = MemoryStore([Episode({"a": np.zeros((2, 4, 4, 3), np.uint8)}, "", np.arange(2) / 10)])
    with pytest.raises(BadInputError, match="episode 0: found no state"):
        next(frame_batches(store, [0], ("a",), 4, with_state=True))
