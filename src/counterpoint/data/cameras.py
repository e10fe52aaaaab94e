"""One camera or several: what callers name, and the cameras of a store that it means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["Cameras", "camera_names", "pictures"]

Cameras = str | Sequence[str] | None
"""A camera, several in the order wanted, or `None` for the first that there are."""


def camera_names(camera: Cameras, known: Sequence[str], count: int | None = None) -> tuple[str, ...]:
    """The cameras that are meant.

    Args:
        camera: As it was asked for.
        known: Those of the store.
        count: How many there must be (`ObservationConfig.cameras`), and how many `None` means.

    Raises:
        BadInputError: When one is unknown or named twice, or there are not `count`.
    """
    chosen = known[: count or 1] if camera is None else camera
    names = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInputError("camera", repr(unknown[0]), f"one of {list(known)}", "name one of these")
    if len(set(names)) < len(names) or not names or len(names) != (count or len(names)):
        raise BadInputError(
            "camera",
            ", ".join(names) or "none",
            f"{count} of {list(known)}, one for each of the encoder's" if count else "each once",
            "name as many cameras as the encoder has (encoder.cameras), each once",
        )
    return names


def pictures(store: EpisodeStore, episode: int, indices: Array, cameras: Sequence[str]) -> Array:
    """What several cameras saw at the same N steps: uint8 [N, C, H, W, 3]."""
    return np.stack([store.frames(episode, indices, camera) for camera in cameras], 1)
