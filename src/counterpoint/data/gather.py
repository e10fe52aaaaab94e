"""Frames of many episodes at once, copied straight into the batch.

A store that can do so has `gather_frames` (the training store, and stores made of others); of any other store the
frames are read episode by episode.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

if TYPE_CHECKING:
    from counterpoint.data.store import EpisodeStore

__all__ = ["Buffers", "GatheringStore", "gather_frames", "other_size"]

Places = NDArray[np.int64]
Pixels = NDArray[np.uint8]


@runtime_checkable
class GatheringStore(Protocol):
    """A store that reads many episodes in one call."""

    def gather_frames(self, episodes: Places, steps: Places, camera: str | None, out: Pixels) -> None:
        """See the function `gather_frames`."""


def gather_frames(
    store: EpisodeStore,
    episodes: Int[Places, " N"],
    steps: Int[Places, "N S"],
    camera: str | None,
    out: UInt8[Pixels, "N S H W 3"],
) -> None:
    """Read S frames of each of N episodes.

    Args:
        store: Where from.
        episodes: Which; any order, repeats allowed.
        steps: Which steps of each, in range.
        camera: Which camera; the store's first where `None`.
        out: Where to, contiguous.

    Raises:
        BadInputError: When an episode's frames are of another size than `out`.
    """
    if isinstance(store, GatheringStore):
        store.gather_frames(episodes, steps, camera, out)
        return
    order = np.argsort(episodes, kind="stable")
    firsts = np.flatnonzero(np.diff(episodes[order], prepend=-1))
    for rows in np.split(order, firsts[1:]):
        frames = store.frames(int(episodes[rows[0]]), steps[rows].reshape(-1), camera)
        if frames.shape[1:] != out.shape[2:]:
            raise other_size(int(episodes[rows[0]]), frames.shape[1:3], out.shape[2:4])
        out[rows] = frames.reshape(len(rows), *out.shape[1:])


def other_size(episode: int, found: tuple[int, ...], expected: tuple[int, ...]) -> BadInputError:
    """An episode with frames of another height and width than those before it."""
    return BadInputError(
        f"episode {episode}",
        found=f"frames of {found[0]} x {found[1]}",
        expected=f"{expected[0]} x {expected[1]}, as in the other episodes",
        mend="make a training store of one size (`counterpoint.data.cache.cached`)",
    )


class Buffers:
    """Arrays for batches, given out again once nobody holds them.

    Fresh memory of a batch's size comes from the system page by page, which takes longer than the copying into it. A
    tensor made of an array holds it, and so does every view of either: an array without holders is free.
    """

    def __init__(self) -> None:
        self._arrays: list[Pixels] = []

    def get(self, shape: tuple[int, ...]) -> Pixels:
        """An array of this shape with anything in it."""
        for index in range(len(self._arrays)):
            # Two references: the list's, and the one `getrefcount` is called with.
            if sys.getrefcount(self._arrays[index]) == 2:
                if self._arrays[index].shape == shape:
                    return self._arrays[index]
                del self._arrays[index]
                break
        self._arrays = [array for array in self._arrays if array.shape == shape][-7:]
        self._arrays.append(np.empty(shape, np.uint8))
        return self._arrays[-1]

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        """Another process starts with none."""
        return Buffers, ()
