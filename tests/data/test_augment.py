from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from counterpoint.data.augment import (
    Jitter,
    ResizedCrop,
    Shift,
    ViewShape,
    color_jitter,
    images,
    random_shift,
    resized_crop,
    shifted_views,
)
from counterpoint.data.draws import sample_rng
from tests.golden.load import golden


def test_without_parameters_frames_stay_as_they_are() -> None:
    frames = torch.zeros(2, 3, 8, 8, 3, dtype=torch.uint8)
    assert images({"frames": frames}, "frames") is frames


def test_drawn_crops_lie_inside_the_image_and_keep_their_share() -> None:
    crops = ResizedCrop(scale=(0.2, 1.0)).draw(ViewShape(500, 2, 1, 8, 8), sample_rng(0, 0, "crop"))
    top, left, height, width = crops.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 1 + 1e-6).all()
    assert (left + width <= 1 + 1e-6).all()
    area = height * width
    assert area.min() > 0.17
    assert area.max() <= 1.0


def test_whole_crop_is_the_identity() -> None:
    frames = torch.rand(2, 2, 9, 9, 3)
    crop = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(2, 4)
    torch.testing.assert_close(resized_crop(frames, crop), frames, atol=1e-5, rtol=0)


def test_crop_equals_slice_and_resize() -> None:
    frames = torch.rand(1, 2, 16, 16, 3)
    crop = torch.tensor([[4 / 16, 2 / 16, 8 / 16, 8 / 16]])
    cut = frames[0, :, 4:12, 2:10].permute(0, 3, 1, 2)
    expected = functional.interpolate(cut, (16, 16), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)
    # Away from the window's edge, where a slice has no neighbours to blend with.
    torch.testing.assert_close(resized_crop(frames, crop)[0, :, 1:-1, 1:-1], expected[:, 1:-1, 1:-1])


def test_neutral_jitter_is_the_identity() -> None:
    frames = torch.rand(2, 3, 6, 6, 3)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(2, 3, 4)
    torch.testing.assert_close(color_jitter(frames, neutral), frames, atol=1e-5, rtol=0)


def test_each_frame_has_its_own_jitter_within_bounds() -> None:
    drawn = Jitter(0.5).draw(ViewShape(1, 400, 1, 8, 8), sample_rng(1, 2, "jitter"))[0]
    assert drawn.shape == (400, 4)
    assert np.all(np.abs(drawn - [1, 1, 1, 0]) <= [0.5, 0.5, 0.5, 0.1])
    assert len(np.unique(drawn[:, 0])) == 400


def test_no_saturation_leaves_grey() -> None:
    frames = torch.rand(1, 1, 5, 5, 3)
    grey = color_jitter(frames, torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]))
    assert float((grey.amax(-1) - grey.amin(-1)).max()) == pytest.approx(0, abs=1e-5)


def test_result_stays_in_range() -> None:
    batch = {
        "frames": torch.randint(0, 256, (2, 2, 8, 8, 3), dtype=torch.uint8),
        "frames.crop": torch.tensor([[0.1, 0.2, 0.5, 0.6], [0.0, 0.0, 0.9, 0.4]]),
        "frames.jitter": torch.rand(2, 2, 4) * 2,
    }
    out = images(batch, "frames")
    assert out.shape == (2, 2, 8, 8, 3)
    assert out.dtype == torch.float32
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1


def test_random_shift_is_the_authors() -> None:
    arrays, meta = golden("premier_taco_aug_a")
    stored, shift = arrays["x"], arrays["shift_xy"].reshape(-1, 2).long()
    assert meta["hyper"]["pad"] == 4
    frames = stored.round().to(torch.uint8).permute(0, 2, 3, 1)[:, None]  # one frame a stack
    assert (frames[:, 0].permute(0, 3, 1, 2) == stored).all()
    shifted = random_shift(frames, shift, pad=4)
    torch.testing.assert_close(shifted[:, 0].permute(0, 3, 1, 2).to(arrays["y"].dtype), arrays["y"], rtol=0, atol=1e-2)


@pytest.mark.parametrize(("pad", "stack", "height", "width"), [(4, 3, 12, 9), (1, 1, 5, 7), (6, 2, 4, 4)])
def test_random_shift_is_a_crop_of_the_padded_image(pad: int, stack: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (20, stack, height, width, 3), dtype=torch.uint8, generator=generator)
    shift = torch.randint(2 * pad + 1, (20, 2), generator=generator)
    found = random_shift(frames, shift, pad=pad)
    assert found.dtype == torch.uint8
    for stacked, (x, y), result in zip(frames, shift.tolist(), found, strict=True):
        padded = np.pad(stacked.numpy(), [(0, 0), (pad, pad), (pad, pad), (0, 0)], mode="edge")
        np.testing.assert_array_equal(result, padded[:, y : y + height, x : x + width])


def test_shifts_are_all_whole_numbers_from_0_to_twice_the_pad() -> None:
    shifts = Shift(2).draw(ViewShape(200, 3, 2, 8, 8), sample_rng(0, 0, "shift"))
    assert shifts.shape == (200, 3, 2)
    assert [np.unique(shifts[..., axis]).tolist() for axis in range(2)] == [[0, 1, 2, 3, 4]] * 2


def test_the_middle_shift_and_no_shift_change_nothing() -> None:
    frames = torch.randint(256, (2, 3, 2, 8, 8, 3), dtype=torch.uint8)
    assert torch.equal(shifted_views(frames, torch.full((2, 3, 2), 4), pad=4), frames)
    assert shifted_views(frames, None, pad=4) is frames
