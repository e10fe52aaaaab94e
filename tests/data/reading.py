"""A whole episode of a store, as tests compare it."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoint.data.episode import Episode
from counterpoint.data.store import EpisodeStore, vectors

__all__ = ["read_episode"]


def read_episode(store: EpisodeStore, episode: int) -> Episode:
    """Decode one whole episode."""
    info = store.episodes[episode]
    steps = np.arange(info.length)
    frames = {camera: store.frames(episode, steps, camera) for camera in store.cameras}
    parts: dict[str, Any] = {name: value for name, value in vectors(store, episode).items() if name != "features"}
    depth = {camera: store.depth(episode, steps, camera) for camera in store.depth_cameras}
    return Episode(frames, info.instruction, success=info.success, segments=info.segments, depth=depth, **parts)
