"""What stores of instructed videos share: one camera, a constant frame rate, no actions, state or rewards."""

from __future__ import annotations

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError

__all__ = ["ClipStore"]


class ClipStore:
    """An `EpisodeStore` of videos of people; a format says where the frames of an episode are.

    Attributes:
        cameras: The one camera's name.
        episodes: What is known of each episode.
    """

    cameras: tuple[str, ...]
    episodes: tuple[EpisodeInfo, ...]

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the content behind the store does."""
        raise NotImplementedError

    def read(self, episode: int, steps: Array) -> Array:
        """uint8 [N, H, W, 3] at N steps of an episode."""
        raise NotImplementedError

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3].

        Raises:
            BadInputError: When the camera is unknown, or a frame cannot be decoded.
        """
        if camera is not None and camera not in self.cameras:
            raise BadInputError(
                "camera", found=repr(camera), expected=f"{self.cameras[0]!r}", mend="leave the camera out"
            )
        return self.read(episode, np.asarray(indices, dtype=np.int64))

    def timestamps(self, episode: int) -> Array:
        """float64 [T], seconds since the episode's first frame."""
        info = self.episodes[episode]
        return np.arange(info.length) / info.fps

    def actions(self, episode: int) -> None:
        """Videos of people have none."""

    def state(self, episode: int) -> None:
        """Videos of people have none."""

    def rewards(self, episode: int) -> None:
        """Videos of people have none."""
