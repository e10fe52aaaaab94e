from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.anchors import Anchors, AnchorTable, NearNegatives
from counterpoint.data.cache import cached
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore, MemoryStore, OutputPool
from counterpoint.data.store_views import MultiTaskStore, SubsetStore
from counterpoint.errors import BadInputError
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.data.sampling import sampler
from tests.data.test_sampler import same

K, W = 3, 5
SPEC = Spec.steps((0, K), K, NearNegatives(W), shift=4, rewards=True, state=True)


def load(store: EpisodeStore, spec: Spec = SPEC, **settings: Any) -> Sampler:
    return sampler(store, spec, **settings)


def check(batch: dict[str, Any], spec: Spec, store: EpisodeStore) -> None:
    """Every number of a batch of `numbered_store`, row by row from the definition."""
    index, stack = spec.index, spec.reads["frames"].stack
    assert isinstance(index, Anchors)
    for row in range(len(batch["episode"])):
        e, t = int(batch["episode"][row]), int(batch["step"][row])
        length = store.episodes[e].length
        seen = batch["frames"][row, ..., 0, 0, 1].tolist()
        for view, offset in enumerate(index.offsets):
            at = max(0, t + offset)
            assert seen[view] == [max(0, at - s) for s in reversed(range(stack))]
            assert bool(batch["frames_valid"][row, view]) == (t + offset >= 0)
            if "state" in spec.reads:
                assert batch["state"][row, view].tolist() == pytest.approx([100 * e + at + d for d in (0, 0.1, 0.2)])
        assert (batch["frames"][row, ..., 0] == e).all()
        if index.near is not None:
            for column, valid in enumerate(batch["near_valid"][row].tolist()):
                at = seen[len(index.offsets) + column][-1]
                assert 0 <= at < length
                assert 0 < abs(at - t - index.offsets[-1]) <= index.near.window
                assert bool(batch["frames_valid"][row, len(index.offsets) + column]) == valid
        values = 100 * e + np.arange(t, t + index.actions)
        assert t + index.actions <= length
        assert batch["actions"][row, :, 0].tolist() == values.tolist()
        if "rewards" in spec.reads:
            assert batch["rewards"][row].tolist() == values.tolist()
        assert batch["instruction"][row] == store.episodes[e].instruction
        assert int(batch["task"][row]) == ["one", "two"].index(batch["instruction"][row])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 2, K, K + 1, K + W, K + W + 1, 40]), min_size=1, max_size=5),
    every=st.booleans(),
    exclude=st.booleans(),
    stack=st.integers(1, 4),
    first=st.integers(-4, 0),
    seed=st.integers(0, 2**40),
)
def test_a_batch_holds_what_its_anchors_say(
    lengths: list[int], every: bool, exclude: bool, stack: int, first: int, seed: int
) -> None:
    store = numbered_store(lengths)
    spec = Spec.steps((first, K), K, NearNegatives(W, exclude, every), stack=stack, rewards=True, state=True)
    long_enough = [e for e, length in enumerate(lengths) if length >= K + 1]
    if not long_enough:
        with pytest.raises(BadInputError, match=f"at least {K + 1} steps"):
            load(store, spec, seed=seed)
        return
    loader = load(store, spec, seed=seed)
    assert isinstance(loader.table, AnchorTable)
    assert loader.table.skipped == tuple(e for e, length in enumerate(lengths) if length < K + 1)
    assert loader.epoch_size == sum(lengths[e] - K for e in long_enough)
    batch = loader[seed % 1000]
    assert set(batch["episode"].tolist()) <= set(long_enough)
    check(batch, spec, store)


def test_shapes_and_kinds() -> None:
    batch = load(numbered_store([20, 30, 15]))[2]
    shapes = {name: (v.dtype, *v.shape) for name, v in batch.items() if isinstance(v, torch.Tensor)}
    assert shapes == {
        "frames": (torch.uint8, 8, 3, 3, 4, 4, 3),
        "frames_valid": (torch.bool, 8, 3),
        "near_valid": (torch.bool, 8, 1),
        "shift": (torch.int64, 8, 3, 2),
        "actions": (torch.float32, 8, K, 2),
        "action_mask": (torch.bool, 8, 2),
        "actions_valid": (torch.bool, 8, K),
        "rewards": (torch.float32, 8, K),
        "state": (torch.float32, 8, 2, 3),
        "task": (torch.int64, 8),
        "episode": (torch.int64, 8),
        "step": (torch.int64, 8),
        "sample": (torch.int64, 8),
    }
    assert batch["sample"].tolist() == list(range(16, 24))
    assert set(load(numbered_store([20]), Spec.steps((0,), 0))[0]) == {
        *("frames", "frames_valid", "task", "episode", "step", "sample", "instruction")
    }


def test_shifts_are_uniform_and_differ_between_views() -> None:
    shifts = torch.cat([load(numbered_store([30]), batch_size=512)[k]["shift"] for k in range(10)])
    counts = shifts.flatten().bincount()
    assert len(counts) == 9
    assert (counts / counts.sum() - 1 / 9).abs().max() < 4.5 * (1 / 9 / counts.sum().item()) ** 0.5
    assert (shifts[:, 0] == shifts[:, 1]).all(1).float().mean() < 0.02


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    store = numbered_store([20, 30, 15])
    alone = list(load(store).batches(2, 9))
    helped = list(load(store, workers=workers).batches(2, 9))
    assert len(alone) == 7
    assert all(same(a, b) for a, b in zip(alone, helped, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_same_global_batches(ranks: int) -> None:
    store = numbered_store([20, 30, 15])
    whole = load(store)
    parts = [load(store, rank=r, world_size=ranks) for r in range(ranks)]
    for step in range(4):
        batches = [part[step] for part in parts]
        for name, value in whole[step].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(torch.cat([b[name] for b in batches]), value), name
            else:
                assert [text for b in batches for text in b[name]] == value


def test_other_negatives_leave_anchors_and_shifts_alone() -> None:
    store = numbered_store([20, 30, 15])
    one, other = (load(store, Spec.steps((0, K), K, near, shift=4))[5] for near in (NearNegatives(5), NearNegatives(2)))
    for name in ("episode", "step", "shift"):
        assert torch.equal(one[name], other[name])
    assert not torch.equal(load(store, seed=4)[5]["step"], load(store)[5]["step"])
    assert not torch.equal(load(store)[6]["step"], load(store)[5]["step"])


@pytest.mark.parametrize("camera", [None, "back"])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: SubsetStore(s, [2, 0])])
def test_the_training_store_gives_the_same_batches(
    tmp_path: Path, camera: str | None, wrap: Callable[[EpisodeStore], EpisodeStore]
) -> None:
    store = numbered_store([20, 30, 15])
    mapped = cached(store, size=4, root=tmp_path, progress=False)
    for step in range(3):
        assert same(load(wrap(store), camera=camera)[step], load(wrap(mapped), camera=camera)[step])


@pytest.mark.slow
def test_memory_is_used_again_only_when_its_batch_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputPool, "large", 1)
    loader = load(numbered_store([20, 30, 15]))
    first = loader[0]
    place, kept = first["frames"].data_ptr(), first["frames"].clone()
    second = loader[1]
    assert second["frames"].data_ptr() != place
    assert torch.equal(first["frames"], kept)
    view = first["frames"][:1, 0]
    del first
    gc.collect()
    loader[2]
    assert torch.equal(view, kept[:1, 0])
    assert loader[3]["frames"].data_ptr() != place
    del view
    gc.collect()
    assert loader[4]["frames"].data_ptr() == place


def test_short_episodes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loader = load(numbered_store([2, 20, 3]))
    assert isinstance(loader.table, AnchorTable)
    assert loader.table.skipped == (0, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 episodes are left out, the first is episode 0 with 2 steps: expected at least 4 steps, which this "
        "objective's sampling needs"
    ]


def test_wider_actions_are_padded_and_masked() -> None:
    store = numbered_store([20, 30, 15])
    batch, wide = load(store)[0], load(store, action_dim=5)[0]
    assert torch.equal(wide["actions"][..., :2], batch["actions"])
    assert not wide["actions"][..., 2:].any()
    assert wide["action_mask"].tolist() == [[True, True, False, False, False]] * 8


def missing(name: str) -> MemoryStore:
    whole = read_episode(numbered_store([9]), 0)
    changes: dict[str, Any] = {name: None}
    return MemoryStore([replace(whole, **changes)])


@pytest.mark.parametrize("name", ["actions", "state", "rewards"])
def test_what_is_missing_is_one_message(name: str) -> None:
    with pytest.raises(BadInputError, match=f"episode 0: found no {name}; expected {name}"):
        load(missing(name))


def test_uneven_actions_are_one_message() -> None:
    mixed = [read_episode(numbered_store([20], action_dim=dim), 0) for dim in (2, 3)]
    with pytest.raises(BadInputError, match=r"episode 1: found actions of 3 dimensions; expected 2"):
        load(MemoryStore(mixed))


def test_uneven_state_is_no_matter_of_domains() -> None:
    arm = numbered_store([20])
    other = read_episode(arm, 0)
    assert other.state is not None
    wide = MemoryStore([replace(other, state=np.repeat(other.state, 2, 1))])
    with pytest.raises(BadInputError, match="found state of 6 dimensions; expected 3") as refused:
        load(MultiTaskStore([arm, wide], ["arm", "wide"]))
    assert "MultiTaskStore" not in str(refused.value)  # they are in one already


def test_frames_of_two_sizes_are_one_message() -> None:
    store = MemoryStore([read_episode(numbered_store([20], size=size), 0) for size in (4, 6)])
    with pytest.raises(BadInputError, match="episode 1: found frames of 6 x 6; expected 4 x 4"):
        load(store, batch_size=64)[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 9, "world_size": 2}, "multiple of the number of processes"),
        ({"camera": "wrist"}, "camera"),
        ({"action_dim": 1}, "action_dim: found 1; expected at least the data's 2"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        load(numbered_store([20]), **settings)


def test_an_unknown_balance_is_refused() -> None:
    with pytest.raises(BadInputError, match="balance: found 'task'; expected 'steps' or 'tasks'"):
        SPEC.with_index(balance="task")
