"""`EpisodeStore`: random access to many episodes, whatever they are kept in.

Every reader in `counterpoint.data.formats` and the training store in `counterpoint.data.cache` has this face;
samplers, loaders, rewards and reports know nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from counterpoint.data.episode import Array, Episode, EpisodeInfo
from counterpoint.data.gather import gather_frames
from counterpoint.errors import BadInputError

__all__ = ["EpisodeStore", "MemoryStore", "SubsetStore", "read_episode"]


@runtime_checkable
class EpisodeStore(Protocol):
    """Lengths first, pixels on demand."""

    @property
    def episodes(self) -> Sequence[EpisodeInfo]:
        """What is known of each episode, in order, with nothing decoded."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """Camera names; the first is the default."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the content behind the store does."""

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3] at the N step `indices` (in range, any order, repeats allowed)."""

    def timestamps(self, episode: int) -> Array:
        """float64 [T], seconds since the episode's start."""

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], the reward of each step's action, or `None`."""


def read_episode(store: EpisodeStore, episode: int) -> Episode:
    """Decode one whole episode."""
    info = store.episodes[episode]
    steps = np.arange(info.length)
    return Episode(
        frames={camera: store.frames(episode, steps, camera) for camera in store.cameras},
        instruction=info.instruction,
        timestamps=store.timestamps(episode),
        actions=store.actions(episode),
        state=store.state(episode),
        rewards=store.rewards(episode),
        success=info.success,
    )


class MemoryStore:
    """Episodes held in memory.

    Args:
        episodes: At least one episode; all with the same cameras.
        fps: Frames a second, told to whoever writes the episodes to disk.

    Raises:
        BadInputError: When there is no episode or the cameras differ.
    """

    def __init__(self, episodes: Sequence[Episode], fps: float = 10.0) -> None:
        if not episodes:
            raise BadInputError("episodes", found="none", expected="at least one", mend="give some episodes")
        self._episodes = tuple(episodes)
        self.cameras = tuple(episodes[0].frames)
        for index, episode in enumerate(episodes):
            if tuple(episode.frames) != self.cameras:
                raise BadInputError(
                    f"episode {index}",
                    found=f"cameras {tuple(episode.frames)}",
                    expected=f"{self.cameras}, as in episode 0",
                    mend="give every episode the same cameras in the same order",
                )
        self.episodes = tuple(EpisodeInfo(len(e), e.instruction, fps, e.success) for e in episodes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over frames, actions, state, rewards, times and instructions."""
        digest = hashlib.sha256()
        for episode in self._episodes:
            digest.update(episode.instruction.encode())
            vectors = (episode.timestamps, episode.actions, episode.state, episode.rewards)
            for array in (*episode.frames.values(), *vectors):
                if array is not None:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        selected: Array = self._episodes[episode].frames[camera or self.cameras[0]][indices]
        return selected

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self._episodes[episode].timestamps

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self._episodes[episode].actions

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self._episodes[episode].state

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self._episodes[episode].rewards


class SubsetStore:
    """Some episodes of another store, renumbered from 0: a split, a task, a leave-one-out fold.

    Args:
        store: The whole.
        indices: Which episodes, in the order wanted.

    Attributes:
        whole: The whole.
        indices: Each episode's number in it.
    """

    def __init__(self, store: EpisodeStore, indices: Sequence[int]) -> None:
        self.whole = store
        self.indices = tuple(int(i) for i in indices)
        self.cameras = store.cameras
        self.episodes = tuple(store.episodes[i] for i in self.indices)

    @property
    def fingerprint(self) -> str:
        """The whole's digest with the choice of episodes."""
        return hashlib.sha256(f"{self.whole.fingerprint}{self.indices}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        return self.whole.frames(self.indices[episode], indices, camera)

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self.whole.timestamps(self.indices[episode])

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self.whole.actions(self.indices[episode])

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self.whole.state(self.indices[episode])

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self.whole.rewards(self.indices[episode])

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """See `counterpoint.data.gather`."""
        gather_frames(self.whole, np.array(self.indices)[episodes], steps, camera, out)
