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
    assert area.min() >= 0.2 - 1e-6
    assert area.max() <= 1.0


@pytest.mark.parametrize(("H", "W"), [(256, 456), (8, 8), pytest.param(100, 10, marks=pytest.mark.slow)])
def test_crops_are_drawn_as_torchvision_draws_them(H: int, W: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image, scale, ratio = torch.empty(3, 64 * H, 64 * W, device="meta"), (0.2, 1.0), (3 / 4, 4 / 3)
    torch.manual_seed(0)
    theirs = np.array([transforms.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(4000)])
    theirs = theirs / np.array([64 * H, 64 * W, 64 * H, 64 * W])
    ours = ResizedCrop(scale, ratio).draw(ViewShape(4000, 1, 1, H, W), sample_rng(0, 0, "crop"))
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(ours, share, axis=0) == pytest.approx(np.quantile(theirs, share, axis=0), abs=0.03)
    assert ours[:, 3] * W / (ours[:, 2] * H) == pytest.approx(1, abs=1 / 3 + 1e-4)


def test_a_crop_of_a_wide_frame_shows_the_pixels_that_torchvision_shows() -> None:
    functional_v1 = pytest.importorskip("torchvision.transforms.functional")
    frames = torch.rand(1, 2, 64, 114, 3)
    top, left, height, width = 8, 30, 40, 48
    crop = torch.tensor([[top / 64, left / 114, height / 64, width / 114]])
    expected = functional_v1.resized_crop(
        frames[0].permute(0, 3, 1, 2), top, left, height, width, [32, 32], antialias=False
    )
    found = resized_crop(frames, crop, 32)[0].permute(0, 3, 1, 2)
    torch.testing.assert_close(found[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1])  # edges blend with what is outside


def test_whole_crop_is_the_identity() -> None:
    frames = torch.rand(2, 2, 9, 9, 3)
    crop = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(2, 4)
    torch.testing.assert_close(resized_crop(frames, crop, 9), frames, atol=1e-5, rtol=0)


def test_bytes_are_shares_of_255() -> None:
    batch = {"frames": torch.tensor([0, 128, 255], dtype=torch.uint8).expand(1, 1, 4, 4, 3)}
    batch["frames.crop"] = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    torch.testing.assert_close(images(batch, "frames")[0, 0, 0, 0], torch.tensor([0.0, 128 / 255, 1.0]))


def test_crop_equals_slice_and_resize() -> None:
    frames = torch.rand(1, 2, 16, 16, 3)
    crop = torch.tensor([[4 / 16, 2 / 16, 8 / 16, 8 / 16]])
    cut = frames[0, :, 4:12, 2:10].permute(0, 3, 1, 2)
    expected = functional.interpolate(cut, (16, 16), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)
    # Away from the window's edge, where a slice has no neighbours to blend with.
    torch.testing.assert_close(resized_crop(frames, crop, 16)[0, :, 1:-1, 1:-1], expected[:, 1:-1, 1:-1])


def test_neutral_jitter_is_the_identity() -> None:
    frames = torch.rand(2, 3, 6, 6, 3)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(2, 3, 4)
    torch.testing.assert_close(color_jitter(frames, neutral), frames, atol=1e-5, rtol=0)


def test_each_frame_has_its_own_jitter_within_bounds() -> None:
    drawn = Jitter(0.5, 0.4, 0.3, 0.1).draw(ViewShape(1, 400, 1, 8, 8), sample_rng(1, 2, "jitter"))[0]
    assert drawn.shape == (400, 4)
    assert np.all(np.abs(drawn - [1, 1, 1, 0]) <= [0.5, 0.4, 0.3, 0.1])
    assert len(np.unique(drawn[:, 0])) == 400


def test_one_number_is_the_brightness_alone_as_in_torchvision() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    theirs = transforms.ColorJitter(0.5)
    assert (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue) == ((0.5, 1.5), None, None, None)
    drawn = Jitter(0.5).draw(ViewShape(1, 400, 1, 8, 8), sample_rng(1, 2, "jitter"))[0]
    assert drawn[:, 1:].tolist() == [[1, 1, 0]] * 400
    assert np.ptp(drawn[:, 0]) > 0.95


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
