from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.draws import SortedFrames, StartGoal
from counterpoint.data.sampler import Loader
from counterpoint.data.spec import Augment, Key, NStepSpec, Spec
from counterpoint.data.store import MemoryStore, SubsetStore
from counterpoint.errors import BadInputError
from tests.conftest import moving_square_store

SPEC = Spec({"clip": StartGoal()}, {"frames": Key("frames", "clip")}, augment=Augment(jitter=0.3))


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


def test_batch_holds_what_the_spec_asks_for(store: MemoryStore) -> None:
    spec = Spec(
        {"clip": SortedFrames(10)},
        {"frames": Key("frames", "clip"), "moves": Key("actions", "clip"), "seconds": Key("timestamps", "clip")},
    )
    batch = Loader(store, spec, batch_size=4, seed=0)[0]
    assert batch["frames"].shape == (4, 10, 24, 24, 3)
    assert batch["frames"].dtype == torch.uint8
    assert batch["moves"].shape == (4, 10, 2)
    assert batch["seconds"].shape == (4, 10)
    assert batch["clip.valid"].dtype == torch.bool
    for row in range(4):
        episode = int(batch["episode"][row])
        steps = batch["clip.indices"][row].numpy()
        assert batch["instruction"][row] == store.episodes[episode].instruction
        assert np.array_equal(batch["frames"][row].numpy(), store.frames(episode, steps))
        assert int(batch["clip.valid"][row].sum()) == min(10, store.episodes[episode].length)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_nothing(store: MemoryStore, workers: int) -> None:
    alone = list(Loader(store, SPEC, batch_size=4, seed=3).batches(2, 9))
    helped = list(Loader(store, SPEC, batch_size=4, seed=3, workers=workers).batches(2, 9))
    assert len(alone) == 7
    assert all(same(a, b) for a, b in zip(alone, helped, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_same_global_batches(store: MemoryStore, ranks: int) -> None:
    whole = Loader(store, SPEC, batch_size=8, seed=3)
    parts = [Loader(store, SPEC, batch_size=8, seed=3, rank=r, world_size=ranks) for r in range(ranks)]
    for step in range(5):
        joined = torch.cat([part[step]["frames"] for part in parts])
        assert torch.equal(joined, whole[step]["frames"])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), batch=st.integers(1, 17))
def test_each_epoch_visits_every_episode_once(seed: int, batch: int) -> None:
    store = moving_square_store(7)
    loader = Loader(store, SPEC, batch_size=batch, seed=seed)
    steps = -(-21 // batch)
    seen = torch.cat([loader[step]["episode"] for step in range(steps)]).tolist()
    for epoch in range(3):
        assert sorted(seen[epoch * 7 : epoch * 7 + 7]) == list(range(7))


def test_unique_instructions_take_one_clip_of_each_an_epoch(store: MemoryStore) -> None:
    spec = Spec({"clip": StartGoal()}, {"frames": Key("frames", "clip")}, unique_instructions=True)
    loader = Loader(store, spec, batch_size=3, seed=0)
    assert loader.epoch_size == 3
    batches = [loader[step] for step in range(20)]
    assert all(len(set(batch["instruction"])) == 3 for batch in batches)
    assert len({int(e) for batch in batches for e in batch["episode"]}) == len(store.episodes)


def test_equal_text_has_equal_number(store: MemoryStore) -> None:
    batch = Loader(store, SPEC, batch_size=12, seed=0)[0]
    pairs = set(zip(batch["instruction"], batch["instruction_id"].tolist(), strict=True))
    assert len(pairs) == 3


def test_seeds_differ(store: MemoryStore) -> None:
    first, second = (Loader(store, SPEC, batch_size=8, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(first["clip.indices"], second["clip.indices"])


def test_short_episode_is_one_message(store: MemoryStore) -> None:
    spec = Spec({"clip": SortedFrames(4)}, {"frames": Key("frames", "clip")})
    one = SubsetStore(store, [0])
    one.episodes = (type(one.episodes[0])(1, "wave", 10.0),)
    with pytest.raises(BadInputError, match=r"found 1 frames; expected at least 2"):
        Loader(one, spec, batch_size=1, seed=0)


def test_batch_that_does_not_divide_is_refused(store: MemoryStore) -> None:
    with pytest.raises(BadInputError, match="multiple of the number of processes"):
        Loader(store, SPEC, batch_size=9, seed=0, world_size=2)


def test_unknown_camera_is_refused(store: MemoryStore) -> None:
    with pytest.raises(BadInputError, match="camera"):
        Loader(store, SPEC, batch_size=2, seed=0, camera="wrist")


def test_transitions_are_another_loader_s() -> None:
    with pytest.raises(BadInputError, match="use NStepLoader"):
        Loader(moving_square_store(), NStepSpec((0,), 1), batch_size=2, seed=0)
