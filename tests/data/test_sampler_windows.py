"""Windows of actions around a step, windows cut out of pictures, and the robot's masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint.data.augment import centre_corner, cropped_views
from counterpoint.data.cache import cached
from counterpoint.data.episode import Episode
from counterpoint.data.masks.robot import binary_mask, mask_camera, masked_cameras, rgb_cameras
from counterpoint.data.spec import Read, Spec
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from tests.data.numbered import numbered_store
from tests.data.sampling import sampler

DIFFUSION = Spec.steps((-1, 0), 16, first_action=-1, past_end=7, stack=1, state=True)
"""Diffusion Policy's: two observations, sixteen actions from the older one on, eight executed."""


def masked_store(lengths: list[int], *, masks: tuple[str, ...] = ("top",), size: int = 12) -> MemoryStore:
    """Two cameras; where a pixel is 200 in a picture, its mask is on."""
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


def test_pictures_and_masks_are_cut_alike() -> None:
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
    pictures = small.frames(0, np.arange(6), "top")[..., 0]
    clear = np.abs(pictures.astype(int) - 145) > 15
    assert clear.mean() > 0.3
    np.testing.assert_array_equal(shown[clear], (pictures > 145)[clear])


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
