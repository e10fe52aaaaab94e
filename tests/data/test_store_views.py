from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.cache import cached
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.data.store_views import (
    MultiTaskStore,
    OneCameraStore,
    StateStore,
    StoreView,
    SubsetStore,
    action_mask,
    join_domains,
    task_numbers,
    task_table,
)
from counterpoint.errors import BadInputError
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.data.sampling import sampler
from tests.data.test_sampler import same
from tests.formats.made import memory_store


def test_subset_renumbers(store: MemoryStore) -> None:
    subset = SubsetStore(store, [5, 2])
    assert [info.instruction for info in subset.episodes] == [store.episodes[i].instruction for i in (5, 2)]
    steps = np.array([0, 3])
    assert np.array_equal(subset.frames(1, steps), store.frames(2, steps))
    assert np.array_equal(subset.timestamps(0), store.timestamps(5))


def with_surroundings(store: MemoryStore) -> MemoryStore:
    """Episodes whose surroundings are minus their state, in two dimensions."""
    episodes = [read_episode(store, number) for number in range(len(store.episodes))]
    return MemoryStore([replace(e, environment_state=-e.state[:, :2]) for e in episodes if e.state is not None])


def test_state_of_several_sources(tmp_path: Path) -> None:
    store = with_surroundings(numbered_store([3, 5]))
    state = store.column("state")
    both = StateStore(store, ("environment_state", "state"))
    assert both.sources == {"environment_state": 2, "state": 3}
    np.testing.assert_array_equal(both.column("state"), np.concatenate([-state[:, :2], state], axis=1))
    only = cached(StateStore(store, ("environment_state",)), size=4, cameras=(), root=tmp_path, progress=False)
    np.testing.assert_array_equal(only.column("state"), -state[:, :2])
    assert only.cameras == ()
    assert len({store.fingerprint, both.fingerprint, StateStore(store, ("state",)).fingerprint}) == 3
    with pytest.raises(BadInputError, match="no environment_state"):
        StateStore(numbered_store([3]), ("environment_state",))


SPEC = Spec.steps((0, 3), 3, NearNegatives(5), rewards=True)
ARM, WALKER = numbered_store([9, 12, 8], action_dim=2), numbered_store([30, 7], action_dim=4)


def joined(first: EpisodeStore = ARM, second: EpisodeStore = WALKER) -> MultiTaskStore:
    return MultiTaskStore([first, second], ["arm", "walker"])


def test_it_has_the_face_of_a_store_and_gives_back_what_was_put_in() -> None:
    store = joined()
    assert isinstance(store, EpisodeStore)
    assert [info.length for info in store.episodes] == [9, 12, 8, 30, 7]
    assert store.domains.tolist() == [0, 0, 0, 1, 1]
    assert store.action_dims == (2, 4)
    whole, own = read_episode(store, 3), read_episode(WALKER, 0)
    for camera in ("front", "back"):
        np.testing.assert_array_equal(whole.frames[camera], own.frames[camera])
    for name in ("timestamps", "actions", "state", "rewards"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(own, name))
    actions, narrow = store.actions(1), ARM.actions(1)
    assert actions is not None
    assert narrow is not None
    np.testing.assert_array_equal(actions, np.pad(narrow, [(0, 0), (0, 2)]))


def test_fingerprint_follows_domains_and_names() -> None:
    swapped = MultiTaskStore([WALKER, ARM], ["arm", "walker"])
    renamed = MultiTaskStore([ARM, WALKER], ["arm", "dog"])
    assert len({joined().fingerprint, swapped.fingerprint, renamed.fingerprint}) == 3
    assert joined().fingerprint == joined().fingerprint


def test_tasks_are_told_apart_by_domain_and_instruction() -> None:
    assert task_numbers(ARM).tolist() == [0, 1, 0]
    assert task_numbers(joined()).tolist() == [0, 1, 0, 2, 3]
    some = SubsetStore(SubsetStore(joined(), [4, 0, 3, 2]), [0, 3, 1])
    assert task_numbers(some).tolist() == [0, 1, 1]
    assert action_mask(some, 5).sum(1).tolist() == [4, 2, 2]


def test_tasks_keep_the_numbers_they_have_elsewhere() -> None:
    """Validation episodes come in another order, without some tasks and with new ones."""
    known = task_table(joined())
    assert known == {("arm", "one"): 0, ("arm", "two"): 1, ("walker", "one"): 2, ("walker", "two"): 3}
    alone = MultiTaskStore([SubsetStore(WALKER, [1])], ["walker"])
    assert task_numbers(alone).tolist() == [0]
    assert task_numbers(alone, known).tolist() == [3]
    other = numbered_store([9, 9, 9], instructions=("three", "two", "one"))
    assert task_numbers(MultiTaskStore([other], ["arm"]), known).tolist() == [4, 1, 0]
    loader = Sampler(
        alone, Spec.steps((0,), 1).with_index(balance="tasks").bind(alone, tasks=known), batch_size=4, seed=0
    )
    assert loader[0]["task"].tolist() == [3] * 4


def test_batches_pad_actions_and_say_which_are_the_tasks_own() -> None:
    loader = sampler(joined(), SPEC.with_index(balance="tasks"), batch_size=64, seed=0)
    batch = loader[0]
    assert set(batch["task"].tolist()) == {0, 1, 2, 3}
    assert batch["actions"].shape == (64, 3, 4)
    walkers = batch["episode"] >= 3
    assert torch.equal(batch["action_mask"].sum(1), torch.where(walkers, 4, 2))
    assert not batch["actions"][~batch["action_mask"][:, None].expand(-1, 3, -1)].any()
    for row in range(64):
        e, t = int(batch["episode"][row]), int(batch["step"][row])
        assert batch["frames"][row, 0, -1, 0, 0].tolist() == [e if e < 3 else e - 3, t, 0]
        assert float(batch["rewards"][row, 0]) == 100 * (e if e < 3 else e - 3) + t


def test_memory_mapped_domains_give_the_same_batches(tmp_path: Path) -> None:
    mapped = joined(*(cached(store, size=4, root=tmp_path, progress=False) for store in (ARM, WALKER)))
    for camera in (None, "back"):
        loaders = [sampler(store, SPEC, batch_size=64, seed=0, camera=camera) for store in (joined(), mapped)]
        assert all(same(loaders[0][step], loaders[1][step]) for step in range(3))


def renamed(store: MemoryStore) -> MemoryStore:
    store.cameras = ("wrist",)
    return store


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (numbered_store([9], size=6), r"domain 'walker': found frames of 6 x 6; expected 4 x 4, as in 'arm'"),
        (renamed(numbered_store([9])), r"cameras: found .*'wrist'.* of walker; expected one that all"),
        (
            MemoryStore([read_episode(ARM, 0), read_episode(WALKER, 0)]),
            r"domain 'walker': found actions of \[2, 4\] dimensions .*; expected one number of dimensions",
        ),
    ],
)
def test_domains_that_do_not_fit_are_refused(second: EpisodeStore, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        joined(ARM, second)


@pytest.mark.parametrize("names", [["arm"], ["arm", "arm"], []])
def test_every_domain_needs_a_name_of_its_own(names: list[str]) -> None:
    with pytest.raises(BadInputError, match="name every domain once"):
        MultiTaskStore([ARM, WALKER], names)


def test_one_store_is_left_as_it_is() -> None:
    assert join_domains([ARM], ["arm"]) is ARM
    assert isinstance(join_domains([ARM, WALKER], ["arm", "walker"]), MultiTaskStore)


def test_depth_goes_through_views() -> None:
    depth = np.arange(2 * 5 * 4 * 6, dtype=np.uint16).reshape(2, 5, 4, 6)
    plain = memory_store((5, 5), cameras=("top",))
    store = MemoryStore([replace(read_episode(plain, number), depth={"deep": depth[number]}) for number in range(2)])
    assert (
        MemoryStore([read_episode(plain, 0)]).fingerprint
        != MemoryStore(
            [pickle.loads(pickle.dumps(replace(read_episode(plain, 0), depth={"deep": depth[0]})))]
        ).fingerprint
    )
    joined = MultiTaskStore([store, store], ["a", "b"])
    assert (joined.cameras, joined.depth_cameras) == (("top",), ("deep",))
    np.testing.assert_array_equal(joined.depth(3, np.array([4, 0])), depth[1][[4, 0]])
    np.testing.assert_array_equal(SubsetStore(store, [1]).depth(0, np.array([2]), "deep"), depth[1, 2:3])
    assert MultiTaskStore([store, plain], ["a", "b"]).depth_cameras == ()
    with pytest.raises(BadInputError, match="'deep', a depth camera"):
        OneCameraStore(store, "deep")


def test_a_view_of_several_stores_names_its_content() -> None:
    first, second = numbered_store([4, 5]), numbered_store([6])
    views = [
        StoreView([first, second], np.array(owner), np.array(number))
        for owner, number in (([0, 1], [1, 0]), ([0, 1], [0, 0]))
    ]
    again = StoreView([first, second], np.array([0, 1]), np.array([1, 0]))
    assert views[0].fingerprint == again.fingerprint != views[1].fingerprint
    assert views[0].lengths.tolist() == [5, 6]
