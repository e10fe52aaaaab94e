from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.augment import Jitter, ResizedCrop, Transform, centre_corner, cropped_views
from counterpoint.data.cache import cached
from counterpoint.data.draws import Clips, SortedFrames, StartGoal
from counterpoint.data.episode import Episode
from counterpoint.data.robot_masks import binary_mask, mask_camera, masked_cameras, rgb_cameras
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Read, Spec
from counterpoint.data.store import MemoryStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import BadInputError
from tests.conftest import moving_square_store
from tests.data.numbered import numbered_store
from tests.data.sampling import sampler

TRANSFORMS: dict[str, Transform] = {"frames.crop": ResizedCrop(), "frames.jitter": Jitter(0.3)}
SPEC = Spec.clips(StartGoal(), transforms=TRANSFORMS)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


def test_batch_holds_what_the_spec_asks_for(store: MemoryStore) -> None:
    reads = {"frames": Read("frames", "clip"), "moves": Read("actions", "clip"), "seconds": Read("timestamps", "clip")}
    spec = Spec(Clips(SortedFrames(10)), reads)
    batch = sampler(store, spec, batch_size=4, seed=0)[0]
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
    alone = list(sampler(store, SPEC, batch_size=4, seed=3).batches(2, 9))
    helped = list(sampler(store, SPEC, batch_size=4, seed=3, workers=workers).batches(2, 9))
    assert len(alone) == 7
    assert all(same(a, b) for a, b in zip(alone, helped, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_same_global_batches(store: MemoryStore, ranks: int) -> None:
    whole = sampler(store, SPEC, batch_size=8, seed=3)
    parts = [sampler(store, SPEC, batch_size=8, seed=3, rank=r, world_size=ranks) for r in range(ranks)]
    for step in range(5):
        joined = torch.cat([part[step]["frames"] for part in parts])
        assert torch.equal(joined, whole[step]["frames"])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), batch=st.integers(1, 17))
def test_each_epoch_visits_every_episode_once(seed: int, batch: int) -> None:
    store = moving_square_store(7)
    loader = sampler(store, SPEC, batch_size=batch, seed=seed)
    steps = -(-21 // batch)
    seen = torch.cat([loader[step]["episode"] for step in range(steps)]).tolist()
    for epoch in range(3):
        assert sorted(seen[epoch * 7 : epoch * 7 + 7]) == list(range(7))


def test_unique_instructions_take_one_clip_of_each_an_epoch(store: MemoryStore) -> None:
    spec = Spec.clips(StartGoal(), per_instruction=True)
    loader = sampler(store, spec, batch_size=3, seed=0)
    assert loader.epoch_size == 3
    batches = [loader[step] for step in range(20)]
    assert all(len(set(batch["instruction"])) == 3 for batch in batches)
    assert len({int(e) for batch in batches for e in batch["episode"]}) == len(store.episodes)


def test_equal_text_has_equal_number(store: MemoryStore) -> None:
    batch = sampler(store, SPEC, batch_size=12, seed=0)[0]
    pairs = set(zip(batch["instruction"], batch["instruction_id"].tolist(), strict=True))
    assert len(pairs) == 3


def test_seeds_differ(store: MemoryStore) -> None:
    first, second = (sampler(store, SPEC, batch_size=8, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(first["clip.indices"], second["clip.indices"])


def test_short_episode_is_one_message(store: MemoryStore) -> None:
    spec = Spec.clips(SortedFrames(4))
    one = SubsetStore(store, [0])
    one.episodes = (type(one.episodes[0])(1, "wave", 10.0),)
    with pytest.raises(BadInputError, match=r"found 1 frames; expected at least 2"):
        sampler(one, spec, batch_size=1, seed=0)


def test_batch_that_does_not_divide_is_refused(store: MemoryStore) -> None:
    with pytest.raises(BadInputError, match="multiple of the number of processes"):
        sampler(store, SPEC, batch_size=9, seed=0, world_size=2)


def test_unknown_camera_is_refused(store: MemoryStore) -> None:
    with pytest.raises(BadInputError, match="camera"):
        sampler(store, SPEC, batch_size=2, seed=0, camera="wrist")


def test_a_read_must_name_a_draw() -> None:
    with pytest.raises(BadInputError, match="draw 'end'"):
        Spec(Clips(StartGoal()), {"goal": Read("frames", "end")})


def test_what_a_clip_lacks_is_one_message(store: MemoryStore) -> None:
    spec = Spec(Clips(StartGoal()), {"rewards": Read("rewards", "clip")})
    with pytest.raises(BadInputError, match="episode 0: found no rewards"):
        sampler(store, spec)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_run_resumes_at_any_step(store: MemoryStore, ranks: int) -> None:
    serve = [sampler(store, SPEC, rank=rank, world_size=ranks) for rank in range(ranks)]
    for one in serve:
        whole, rest = list(one.batches(0, 7)), list(one.batches(4, 7))
        assert all(same(a, b) for a, b in zip(whole[4:], rest, strict=True))


@pytest.mark.parametrize("lengths", [[2], [2, 10, 11], [10, 11, 9, 1000]])
def test_every_clip_of_a_batch_has_its_own_length(lengths: list[int]) -> None:
    store = numbered_store(lengths)
    batch = sampler(store, Spec.clips(SortedFrames(10)))[3]
    for row, episode in enumerate(batch["episode"].tolist()):
        assert batch["length"][row] == lengths[episode]
        assert batch["clip.valid"][row].sum() == min(10, lengths[episode])
        steps = batch["clip.indices"][row].tolist()
        assert batch["frames"][row, :, 0, 0].tolist() == store.frames(episode, np.array(steps))[:, 0, 0].tolist()


def beside(seed: int, actions: int, others: Mapping[str, Spec], **settings: Any) -> Sampler:
    spec = replace(Spec.steps((0,), actions, stack=1), beside=others)
    return sampler(numbered_store([20, 30]), spec, batch_size=4, seed=seed, **settings)


def test_auxiliary_batches_lie_beside_the_main_one() -> None:
    other = Spec.steps((0,), 3, stack=1)
    both, alone, theirs = beside(0, 2, {"curl": other}), beside(0, 2, {}), beside(1, 3, {})
    assert both.epoch_size == alone.epoch_size
    for number, batch in enumerate(both.batches(5, 8), 5):
        assert same(batch, alone[number] | {f"curl.{key}": value for key, value in theirs[number].items()})
        assert {len(value) for value in batch.values()} == {4}


def test_workers_change_no_auxiliary_batch() -> None:
    others = {"a": Spec.steps((0,), 1)}
    found = list(beside(0, 2, others, workers=2).batches(0, 3))
    assert all(same(a, b) for a, b in zip(found, beside(0, 2, others).batches(0, 3), strict=True))


DIFFUSION = Spec.steps((-1, 0), 16, first_action=-1, past_end=7, stack=1, state=True)
"""Diffusion Policy's: two observations, sixteen actions from the older one on, eight executed."""


def masked_store(lengths: list[int], *, masks: tuple[str, ...] = ("top",), size: int = 12) -> MemoryStore:
    """Two cameras; where a pixel is 200 in a image, its mask is on."""
    rng = np.random.default_rng(0)
    episodes = []
    for length in lengths:
        frames = {}
        for camera in ("top", "wrist"):
            on = rng.random((length, size, size)) < 0.4
            frames[camera] = np.where(on, 200, 90).astype(np.uint8)[..., None].repeat(3, -1)
            if camera in masks:
                frames[mask_camera(camera)] = (on * np.uint8(255))[..., None].repeat(3, -1)
        actions = np.zeros((length, 2), np.float32)
        episodes.append(Episode(frames, "lift", np.arange(length) / 20, actions=actions))
    return MemoryStore(episodes, fps=20)


@pytest.mark.parametrize("length", [8, 9, 10, 16, 40])
def test_a_window_of_actions_is_padded_as_diffusion_policy_s(length: int) -> None:
    store = numbered_store([length])
    actions = store.actions(0)
    assert actions is not None
    loader = sampler(store, DIFFUSION, batch_size=64, seed=0)
    # Starts run from one step before the episode to where seven steps lie past its end.
    assert loader.epoch_size == length - 16 + 7 + 1 + 1
    for step in range(3):
        batch = loader[step]
        for row in range(64):
            t = int(batch["step"][row])
            wanted = [t - 1 + k for k in range(16)]
            inside = [min(max(0, k), length - 1) for k in wanted]
            torch.testing.assert_close(batch["actions"][row], torch.from_numpy(actions[inside]))
            assert batch["actions_valid"][row].tolist() == [k == i for k, i in zip(wanted, inside, strict=True)]
            assert batch["frames_valid"][row].tolist() == [t > 0, True]


def test_an_episode_shorter_than_what_is_executed_has_no_window() -> None:
    with pytest.raises(BadInputError, match="none longer than 7 steps"):
        sampler(numbered_store([7]), DIFFUSION, batch_size=2, seed=0)


def test_images_and_masks_are_cut_alike() -> None:
    store = masked_store([20, 30])
    spec = Spec.steps((-1, 0), 0, stack=1, crop=9, masks=True)
    loader = sampler(store, spec, batch_size=32, seed=1, camera=("top", "wrist"))
    batch = loader[0]
    assert batch["crop"].shape == (32, 2, 2, 2)
    assert set(batch["crop"].flatten().tolist()) == {0, 1, 2, 3}
    assert not batch["masks"][:, :, 1].any()
    frames = cropped_views(batch["frames"], batch["crop"], size=9)
    masks = batch["masks"].unsqueeze(-1).expand(*batch["masks"].shape, 3).byte()
    cut = cropped_views(masks, batch["crop"], size=9)
    assert frames.shape == (32, 2, 2, 9, 9, 3)
    torch.testing.assert_close(frames[:, :, 0] == 200, cut[:, :, 0] == 1)
    for row in range(32):  # the window, from its definition
        x, y = batch["crop"][row, 1, 1].tolist()
        torch.testing.assert_close(frames[row, 1, 1], batch["frames"][row, 1, 1, y : y + 9, x : x + 9])


def test_crops_leave_the_other_draws_alone() -> None:
    store, spec = masked_store([20, 30]), Spec.steps((0,), 2, stack=1)
    masks = Read("masks", "views")
    plain, both = (
        sampler(store, s, batch_size=8, seed=3)[5] for s in (spec, spec.with_crop(8).with_read("masks", masks))
    )
    for key in plain:
        assert key == "instruction" or torch.equal(plain[key], both[key])


def test_masks_survive_the_training_store(tmp_path: Path) -> None:
    store = masked_store([6], size=16)
    small = cached(store, size=8, root=tmp_path, progress=False)
    shown = binary_mask(small.frames(0, np.arange(6), "top_mask"))
    images = small.frames(0, np.arange(6), "top")[..., 0]
    clear = np.abs(images.astype(int) - 145) > 15
    assert clear.mean() > 0.3
    np.testing.assert_array_equal(shown[clear], (images > 145)[clear])


def test_names() -> None:
    names = ("top", "top_mask", "wrist", "gas_mask")
    assert rgb_cameras(names) == ("top", "wrist", "gas_mask")
    assert masked_cameras(names) == ("top",)
    assert centre_corner(256, 300, 224) == (38, 16)


def test_refusals() -> None:
    with pytest.raises(BadInputError, match="counterpoint data masks"):
        sampler(masked_store([9], masks=()), Spec.steps((0,), 0, masks=True), batch_size=2, seed=0)
    with pytest.raises(BadInputError, match="found 12 x 12; expected at least 13 x 13"):
        sampler(masked_store([9]), Spec.steps((0,), 0, crop=13), batch_size=2, seed=0)
    with pytest.raises(BadInputError, match="rewards with actions that begin at t -1"):
        Spec.steps((0,), 3, first_action=-1, rewards=True)


def test_one_of_several_wordings_is_drawn_for_each_sample_whatever_the_rank() -> None:
    store = moving_square_store()
    texts = ("push it", "shove it", "move it away")
    store.episodes = tuple(replace(info, wordings=texts) for info in store.episodes)
    spec = Spec.clips(StartGoal())
    whole = sampler(store, spec, batch_size=32, seed=3)
    words = [word for step in range(4) for word in whole[step]["instruction"]]
    assert set(words) == set(texts)
    assert min(words.count(text) for text in texts) > 25
    assert whole[1]["instruction"] == whole[1]["instruction"]
    parts = [sampler(store, spec, batch_size=32, seed=3, rank=rank, world_size=2)[1] for rank in range(2)]
    assert [word for part in parts for word in part["instruction"]] == whole[1]["instruction"]
    assert set(sampler(store, spec, batch_size=32, seed=4)[1]["instruction"]) <= set(texts)
    store.episodes = tuple(replace(info, wordings=()) for info in store.episodes)
    assert set(sampler(store, spec, batch_size=32, seed=3)[1]["instruction"]) <= {i.instruction for i in store.episodes}
