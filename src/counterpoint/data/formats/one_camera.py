"""A store reduced to one of its cameras."""

from __future__ import annotations

import hashlib

from counterpoint.data.episode import Array
from counterpoint.data.gather import gather_frames
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["OneCameraStore"]


class OneCameraStore:
    """Another store with `camera` as its only one, and so its default.

    Args:
        store: The whole.
        camera: The camera to keep.

    Raises:
        BadInputError: When the store has no such camera.
    """

    def __init__(self, store: EpisodeStore, camera: str) -> None:
        if camera not in store.cameras:
            raise BadInputError(
                "camera",
                found=repr(camera),
                expected=f"one of {list(store.cameras)}",
                mend="name a camera the data has",
            )
        self._store = store
        self.cameras = (camera,)
        self.episodes = store.episodes

    @property
    def fingerprint(self) -> str:
        """The whole's digest with the camera's name."""
        return hashlib.sha256(f"{self._store.fingerprint}{self.cameras}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        self._check(camera)
        return self._store.frames(episode, indices, self.cameras[0])

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self._store.timestamps(episode)

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self._store.actions(episode)

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self._store.state(episode)

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self._store.rewards(episode)

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """See `counterpoint.data.gather`."""
        self._check(camera)
        gather_frames(self._store, episodes, steps, self.cameras[0], out)

    def _check(self, camera: str | None) -> None:
        if camera not in (None, *self.cameras):
            raise BadInputError(
                "camera", found=repr(camera), expected=f"{self.cameras[0]!r}", mend="leave the camera out"
            )
