from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.data.cache import resize
from counterpoint.data.masks.robot import as_mask, binary_mask, mask_camera, mask_frames, masked_cameras, rgb_cameras
from counterpoint.errors import BadInputError


def test_names() -> None:
    cameras = ("top", "wrist", "top_mask", "gas_mask")
    assert mask_camera("top") == "top_mask"
    assert rgb_cameras(cameras) == ("top", "wrist", "gas_mask")  # of no camera `gas`
    assert masked_cameras(cameras) == ("top",)


@given(seed=st.integers(0, 1000), height=st.integers(1, 9), width=st.integers(1, 9))
def test_frames_and_masks_are_each_others_reverse(seed: int, height: int, width: int) -> None:
    mask = np.random.default_rng(seed).random((2, height, width)) < 0.5
    frames = mask_frames(mask)
    assert frames.shape == (2, height, width, 3)
    np.testing.assert_array_equal(binary_mask(frames), mask)
    np.testing.assert_array_equal(as_mask("here", frames), mask)


def test_a_resized_mask_keeps_its_place_and_share() -> None:
    mask = np.zeros((1, 96, 96), np.bool_)
    mask[:, 24:72, 30:54] = True
    small = binary_mask(resize(mask_frames(mask), 32))
    expected = np.zeros((1, 32, 32), np.bool_)
    expected[:, 8:24, 10:18] = True
    np.testing.assert_array_equal(small, expected)


@pytest.mark.parametrize("on", [1, 255])
def test_both_ways_of_writing_a_mask(on: int) -> None:
    mask = np.eye(6, dtype=np.bool_)
    np.testing.assert_array_equal(as_mask("here", mask), mask)
    np.testing.assert_array_equal(as_mask("here", mask.astype(np.uint8) * on), mask)
    coloured = np.repeat((mask.astype(np.uint8) * on)[..., None], 4, axis=-1)
    coloured[..., 3] = 255  # opaque
    np.testing.assert_array_equal(as_mask("here", coloured), mask)


def test_masks_of_more_than_two_values_are_refused() -> None:
    grey = np.array([[0, 255, 17], [130, 0, 0]], np.uint8)
    with pytest.raises(BadInputError, match=r"here: found the values 17, 130 beside 0 and 255"):
        as_mask("here", grey)
    with pytest.raises(BadInputError, match="colours"):
        as_mask("here", np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    with pytest.raises(BadInputError, match=r"0\.5"):
        as_mask("here", np.full((2, 2), 0.5, np.float32))
