"""What can be wrong with the robot masks of a data set, for `counterpoint data doctor`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.masks import as_mask, binary_mask, mask_camera, masked_cameras
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["constant", "examine_masks"]

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
                    found=f"masks of {frames.shape[2]}x{frames.shape[1]} pixels",
                    expected=f"{size[1]}x{size[0]}, the size of the pictures",
                    mend="make the masks anew at that size",
                )
            ]
        mask = as_mask(where, frames)
        if (binary_mask(frames) != mask).any():
            return [
                BadInputError(
                    where,
                    found="1 on the robot",
                    expected="255, which readers take for the robot; 1 is as good as 0 to them",
                    mend="make the masks anew with 255",
                )
            ]
        kinds.add(constant(mask))
    if len(kinds) == 1 and None not in kinds:
        return [
            BadInputError(
                where,
                found=f"a mask that is {kinds.pop()} in every frame",
                expected="robot and surroundings in some frames",
                mend="make the masks anew, or drop the episode: no loss on masks can use it",
            )
        ]
    return []
