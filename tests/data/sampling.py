"""A sampler of a spec that is bound to the very store it reads."""

from __future__ import annotations

from typing import Any

from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.store import Cameras, EpisodeStore

__all__ = ["sampler"]


def sampler(
    store: EpisodeStore, spec: Spec, *, camera: Cameras = None, action_dim: int | None = None, **settings: Any
) -> Sampler:
    """Bind a spec and serve it."""
    return Sampler(store, spec.bind(store, camera, action_dim=action_dim), **{"batch_size": 8, "seed": 3, **settings})
