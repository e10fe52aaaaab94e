"""Robot masks: which pixels of a picture show the robot.

A mask travels as one more camera of its store. That of `agentview` is `agentview_mask`: uint8 [N, H, W, 3] with three
equal channels, 0 off the robot and 255 on it. So every format, training store and loader carries masks as it
carries pictures, and a data set without them is no special case.

What can be wrong with the robot masks of a data set, for `counterpoint data doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = [
    "MASK_SUFFIX",
    "as_mask",
    "binary_mask",
    "constant",
    "examine_masks",
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
        raise _not_binary(where, f"the values {named}" + (" beside 0 and 255" if len(levels) > len(others) else ""))
    return grey > 0


def _not_binary(where: str, found: str) -> BadInputError:
    return BadInputError(
        where,
        found,
        "two values: 0 off the robot, 255 (or 1) on it",
        "threshold the mask and keep it without loss, as PNG",
    )


_CHUNK = 64  # frames held at a time


def constant(mask: Array) -> str | None:
    """`empty` or `full` where all of bool [T, H, W] are one: no frame tells robot from surroundings."""
    return "full" if mask.all() else None if mask.any() else "empty"


def examine_masks(path: Path, store: EpisodeStore, episode: int) -> list[BadInputError]:
    """Masks of another size than their pictures, with other values than 0 and 255, or empty or full throughout.

    Raises:
        BadInputError: When frames cannot be read.
    """
    findings: list[BadInputError] = []
    for camera in masked_cameras(store.cameras):
        where = f"{path}, {mask_camera(camera)}, episode {episode}"
        size = store.frames(episode, np.array([0]), camera).shape[1:3]
        try:
            findings += _examine_camera(where, store, episode, mask_camera(camera), size)
        except BadInputError as error:
            if error.where != where:
                raise
            findings.append(error)
    return findings


def _examine_camera(
    where: str, store: EpisodeStore, episode: int, camera: str, size: tuple[int, ...]
) -> list[BadInputError]:
    kinds = set()
    length = store.episodes[episode].length
    for first in range(0, length, _CHUNK):
        frames = store.frames(episode, np.arange(first, min(first + _CHUNK, length)), camera)
        if frames.shape[1:3] != size:
            return [
                BadInputError(
                    where,
                    f"masks of {frames.shape[2]}x{frames.shape[1]} pixels",
                    f"{size[1]}x{size[0]}, the size of the pictures",
                    "make the masks anew at that size",
                )
            ]
        mask = as_mask(where, frames)
        if (binary_mask(frames) != mask).any():
            return [
                BadInputError(
                    where,
                    "1 on the robot",
                    "255, which readers take for the robot; 1 is as good as 0 to them",
                    "make the masks anew with 255",
                )
            ]
        kinds.add(constant(mask))
    if len(kinds) == 1 and None not in kinds:
        return [
            BadInputError(
                where,
                f"a mask that is {kinds.pop()} in every frame",
                "robot and surroundings in some frames",
                "make the masks anew, or drop the episode: no loss on masks can use it",
            )
        ]
    return []
