"""Robot masks: which pixels of a picture show the robot.

A mask travels as one more camera of its store. That of `agentview` is `agentview_mask`: uint8 [N, H, W, 3] with three
equal channels, 0 off the robot and 255 on it. So every format, training store and loader carries masks as it
carries pictures, and a data set without them is no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = [
    "MASK_SUFFIX",
    "as_mask",
    "binary_mask",
    "mask_camera",
    "mask_frames",
    "masked_cameras",
    "picture_cameras",
]

MASK_SUFFIX = "_mask"
"""What the name of a camera's mask ends in."""

ON = 127
"""The robot is where a mask is brighter: half of a pixel that was resized."""


def mask_camera(camera: str) -> str:
    """The name of a camera's mask."""
    return camera + MASK_SUFFIX


def picture_cameras(cameras: Sequence[str]) -> tuple[str, ...]:
    """Those that are no masks of others."""
    masks = {mask_camera(camera) for camera in cameras}
    return tuple(camera for camera in cameras if camera not in masks)


def masked_cameras(cameras: Sequence[str]) -> tuple[str, ...]:
    """Those whose mask is there too."""
    return tuple(camera for camera in cameras if mask_camera(camera) in cameras)


def binary_mask(frames: UInt8[NDArray[np.uint8], "*lead H W 3"]) -> Bool[NDArray[np.bool_], "*lead H W"]:
    """Whether each pixel shows the robot, as a store gives its masks, resized or not."""
    shown: NDArray[np.bool_] = frames[..., 0] > ON
    return shown


def mask_frames(mask: Bool[NDArray[np.bool_], "*lead H W"]) -> UInt8[NDArray[np.uint8], "*lead H W 3"]:
    """A mask as a store gives it: the reverse of `binary_mask`."""
    grey = mask.astype(np.uint8) * 255
    return np.repeat(grey[..., None], 3, axis=-1)


def as_mask(where: str, values: NDArray[Any]) -> Bool[NDArray[np.bool_], "*lead H W"]:
    """A mask from what a file holds.

    Args:
        where: The file, told in errors.
        values: bool or integers: 0 off the robot, and 1 or 255 on it. Three dimensions and more may end in a
            colour axis of 3 or 4, of which the first three are equal.

    Raises:
        BadInputError: When there are other values.
    """
    grey = values
    if values.ndim >= 3 and values.shape[-1] in (3, 4):
        grey = values[..., 0]
        if (values[..., :3] != grey[..., None]).any():
            raise _not_binary(where, "a picture with colours")
    if grey.dtype == np.bool_:
        return grey
    levels = set(np.unique(grey).tolist())
    if not (levels <= {0, 1} or levels <= {0, 255}):
        others = sorted(levels - {0, 255})
        named = ", ".join(f"{level:g}" for level in others[:6]) + (", ..." if len(others) > 6 else "")
        raise _not_binary(
            where, f"the values {named}" + (" beside 0 and 255" if len(levels) > len(others) else "")
        )
    return grey > 0


def _not_binary(where: str, found: str) -> BadInputError:
    return BadInputError(
        where,
        found=found,
        expected="two values: 0 off the robot, 255 (or 1) on it",
        mend="threshold the mask and keep it without loss, as PNG",
    )
