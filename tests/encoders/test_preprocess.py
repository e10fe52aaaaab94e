from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.encoders.preprocess import preprocess
from counterpoint.errors import BadInputError

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.5])


def run(frames: Tensor, size: int = 8) -> Tensor:
    return preprocess(frames, size=size, mean=MEAN, std=STD)


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_scales_and_normalises_each_channel() -> None:
    frames = pixels(2, 8, 8, 3)
    expected = (frames.double() / 255 - MEAN.double()) / STD.double()
    torch.testing.assert_close(run(frames), expected.permute(0, 3, 1, 2).float())


@pytest.mark.parametrize("side", [8, 13])
def test_bytes_and_unit_floats_are_the_same_image(side: int) -> None:
    frames = pixels(2, side, side, 3)
    assert torch.equal(run(frames), run(frames.float() / 255))


@given(
    lead=st.lists(st.integers(1, 3), max_size=3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    size=st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_leading_dimensions_any_shape(lead: list[int], height: int, width: int, size: int) -> None:
    frames = pixels(*lead, height, width, 3)
    made = run(frames, size)
    assert made.shape == (int(np.prod(lead)), 3, size, size)
    assert torch.equal(made[-1:], run(frames.reshape(-1, height, width, 3)[-1], size))


def test_no_image_makes_no_image() -> None:
    assert run(pixels(0, 4, 8, 8, 3)).shape == (0, 3, 8, 8)


def test_resizing_keeps_the_whole_image_and_its_average() -> None:
    frames = torch.zeros(8, 32, 3, dtype=torch.uint8)
    frames[:, 16:] = 255
    made = run(frames) * STD[:, None, None] + MEAN[:, None, None]
    assert (made[..., :3] < 0.01).all()
    assert (made[..., -3:] > 0.99).all()
    assert made.mean().item() == pytest.approx(0.5, abs=1e-3)


def test_shrinking_is_antialiased() -> None:
    stripes = torch.zeros(64, 64, 3, dtype=torch.uint8)
    stripes[:, ::3] = 255
    made = run(stripes, 8) * STD[:, None, None] + MEAN[:, None, None]
    # Away from the border every output pixel averages over several stripes.
    assert (made[..., 1:-1] - 1 / 3).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_is_read(dtype: torch.dtype) -> None:
    frames = (pixels(1, 8, 8, 3).float() / 255).to(dtype)
    torch.testing.assert_close(run(frames), run(frames.float()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_result_has_the_type_of_the_tower(dtype: torch.dtype) -> None:
    made = preprocess(pixels(1, 9, 9, 3), size=8, mean=MEAN.to(dtype), std=STD.to(dtype))
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), run(pixels(1, 9, 9, 3)), rtol=2e-3, atol=5e-3)


def test_autocast_does_not_coarsen_pixels() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(pixels(1, 13, 13, 3))
    assert torch.equal(inside, run(pixels(1, 13, 13, 3)))


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        (torch.zeros(8, 8, 3, dtype=torch.int64), "torch.int64"),
        (torch.zeros(8, 8, 3, dtype=torch.bool), "torch.bool"),
        (torch.full((8, 8, 3), 255.0), r"\[255, 255\]"),
        (torch.full((8, 8, 3), -0.5), r"\[-0.5, -0.5\]"),
        (torch.full((8, 8, 3), torch.nan), "nan"),
        (torch.zeros(3, 8, 8), r"shape \[3, 8, 8\]"),
        (torch.zeros(8, 3), r"shape \[8, 3\]"),
        (torch.zeros(2, 0, 8, 3), r"shape \[2, 0, 8, 3\]"),
        (np.zeros((8, 8, 3), np.uint8), "ndarray"),
    ],
)
def test_what_is_no_image_is_refused(frames: Tensor, found: str) -> None:
    with pytest.raises(BadInputError, match=found):
        run(frames)
