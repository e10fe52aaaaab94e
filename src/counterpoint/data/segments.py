"""Segments of episodes as episodes of their own.

A segment is a part of an episode with its own instruction. It ends where the next segment begins, or with the episode.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.store import EpisodeStore, spread
from counterpoint.data.store_views import Integers, StoreView

Segments = Literal["episode", "task"]
"""`episode` takes whole episodes; `task` takes each segment of an episode as an episode of its own."""


class SegmentStore(StoreView):
    """A view with one episode for each segment of each episode; episodes without segments stay whole.

    A segment of a successful episode counts as a success. If an episode with several segments failed, the success of
    its segments is unknown (`None`), because any of them may have failed.

    Args:
        store: The whole store; kept as the attribute `whole`.

    Attributes:
        owner: int64 [E], the episode of the whole store that each segment belongs to.
        first: int64 [E], the first step of each segment in that episode.
    """

    def __init__(self, store: EpisodeStore) -> None:
        self.whole = store
        whole = [info.segments or ((0, info.instruction),) for info in store.episodes]
        found = [(episode, *part) for episode, parts in enumerate(whole) for part in parts]
        self.owner = np.array([episode for episode, _, _ in found], np.int64)
        self.first = np.array([first for _, first, _ in found], np.int64)
        super().__init__([store], np.zeros(len(found)), self.owner)
        last = np.append(self.owner[1:] != self.owner[:-1], True)
        stop = np.where(last, store.lengths[self.owner], np.append(self.first[1:], 0))
        parts = zip(self.episodes, (stop - self.first).tolist(), (words for _, _, words in found), strict=True)
        self.episodes = tuple(
            replace(
                info,
                length=length,
                instruction=words,
                success=_success(info),
                segments=(),
                wordings=() if info.segments else info.wordings,
            )
            for info, length, words in parts
        )

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the segments."""
        return hashlib.sha256(f"{self.whole.fingerprint}{self.first.tolist()}{self.episodes}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return super().frames(episode, np.asarray(indices, np.int64) + self.first[episode], camera)

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W]; see `EpisodeStore.depth`."""
        return super().depth(episode, np.asarray(indices, np.int64) + self.first[episode], camera)

    def _values(self, source: str, episode: int) -> Any:
        values, first = super()._values(source, episode), int(self.first[episode])
        if values is None:
            return None
        own = values[first : first + self.episodes[episode].length]
        return own - own[0] if source == "timestamps" else own

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read frames at their steps in the whole episodes, and vectors from `column`."""
        inside = steps + spread(self.first[episodes], steps) if source == "frames" else steps
        return super().gather(source, episodes, inside, camera=camera, out=out)


def by_segments(store: EpisodeStore, segments: Segments) -> EpisodeStore:
    """Return the store, or its `SegmentStore`, as the recipe key `data.segments` says."""
    return SegmentStore(store) if segments == "task" else store


def _success(info: EpisodeInfo) -> bool | None:
    return info.success if len(info.segments) < 2 or info.success else None
