"""Robot masks mark the pixels of an image that show the robot; this module reads, converts and examines them.

A mask is stored as one more camera. The mask of `agentview` is `agentview_mask`: uint8 [N, H, W, 3] with three equal
channels, 0 off the robot and 255 on it. So all formats, training stores and samplers treat masks as images, and a data
set without masks is no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore, frames_in_chunks
from counterpoint.errors import BadInputError, require

MASK_SUFFIX = "_mask"
"""The ending of the name of a camera's mask."""
_ON = 127  # brighter pixels show the robot: half of 255, because resizing mixes pixels


def mask_camera(camera: str) -> str:
    """Return the name of a camera's mask."""
    return camera + MASK_SUFFIX


def rgb_cameras(cameras: Sequence[str]) -> tuple[str, ...]:
    """Return the cameras that are not masks."""
    masks = {mask_camera(camera) for camera in cameras}
    return tuple(camera for camera in cameras if camera not in masks)


def masked_cameras(cameras: Sequence[str]) -> tuple[str, ...]:
    """Return the cameras that have a mask."""
    return tuple(camera for camera in cameras if mask_camera(camera) in cameras)


def binary_mask(frames: UInt8[NDArray[np.uint8], "*lead H W 3"]) -> Bool[NDArray[np.bool_], "*lead H W"]:
    """Return True for the pixels of a store's mask, resized or not, that show the robot."""
    shown: NDArray[np.bool_] = frames[..., 0] > _ON
    return shown


def mask_frames(mask: Bool[NDArray[np.bool_], "*lead H W"]) -> UInt8[NDArray[np.uint8], "*lead H W 3"]:
    """Return a mask in the form in which stores keep it: the reverse of `binary_mask`."""
    grey = mask.astype(np.uint8) * 255
    return np.repeat(grey[..., None], 3, axis=-1)


def as_mask(where: str, values: NDArray[Any]) -> Bool[NDArray[np.bool_], "*lead H W"]:
    """Convert the values in a mask's file to a mask.

    Args:
        where: The file's name in errors.
        values: Booleans or integers: 0 off the robot, and 1 or 255 on it. Arrays of three or more dimensions may end in
            a colour axis of size 3 or 4, whose first three channels are equal.

    Raises:
        BadInputError: When there are other values.
    """
    grey = values
    expected, hint = "two values: 0 off the robot, 255 (or 1) on it", "threshold the mask and keep it as PNG"
    if values.ndim >= 3 and values.shape[-1] in (3, 4):
        grey = values[..., 0]
        require((values[..., :3] == grey[..., None]).all(), where, "an image with colours", expected, hint)
    if grey.dtype == np.bool_:
        return grey
    levels = set(np.unique(grey).tolist())
    if not (levels <= {0, 1} or levels <= {0, 255}):
        others = sorted(levels - {0, 255})
        named = ", ".join(f"{level:g}" for level in others[:6]) + (", ..." if len(others) > 6 else "")
        found = f"the values {named}" + (" beside 0 and 255" if len(levels) > len(others) else "")
        raise BadInputError(where, found, expected, hint)
    return grey > 0


def constant(mask: Array) -> str | None:
    """Return `empty` or `full` if no or all pixels of a mask, bool [T, H, W], show the robot; otherwise `None`."""
    return "full" if mask.all() else None if mask.any() else "empty"


def examine_masks(path: Path, store: EpisodeStore, episode: int) -> list[BadInputError]:
    """Find masks that differ in size from their images, have values other than 0 and 255, or are constant throughout.

    Raises:
        BadInputError: When frames cannot be read.
    """
    findings: list[BadInputError] = []
    for camera in masked_cameras(store.cameras):
        where = f"{path}, {mask_camera(camera)}, episode {episode}"
        try:
            _examine(where, store, episode, camera)
        except BadInputError as error:
            if error.where != where:
                raise
            findings.append(error)
    return findings


def _examine(where: str, store: EpisodeStore, episode: int, camera: str) -> None:
    kinds = set()
    height, width = store.frames(episode, np.array([0]), camera).shape[1:3]
    for frames in frames_in_chunks(store, episode, mask_camera(camera)):
        found, expected = f"masks of {frames.shape[2]}x{frames.shape[1]} pixels", f"{width}x{height}, the images' size"
        require(frames.shape[1:3] == (height, width), where, found, expected, "make the masks anew at that size")
        mask = as_mask(where, frames)
        same, expected = (binary_mask(frames) == mask).all(), "255 on the robot: readers take 1 for 0"
        require(same, where, "1 on the robot", expected, "make the masks anew with 255")
        kinds.add(constant(mask))
    found = f"a mask that is {next(iter(kinds))} in every frame"
    hint = "make the masks anew, or drop the episode: no loss on masks can use it"
    require(len(kinds) > 1 or None in kinds, where, found, "robot and surroundings in some frames", hint)
