"""Features of a frozen backbone, computed once for every frame of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from counterpoint.data.augment import Transform, ViewShape, images
from counterpoint.data.cache import CachedStore, featured
from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.dual import DualEncoder


def features_of(
    encoder: DualEncoder,
    store: EpisodeStore,
    *,
    rows: int = 1,
    transforms: Mapping[str, Transform] | None = None,
    root: str | Path | None = None,
    device: str = "cpu",
) -> CachedStore:
    """Return the store of a frozen backbone's features [T, rows, E], computed where they are not there yet.

    An interrupted call continues with the episode it was at. Augmented rows have one crop an episode and row.

    Args:
        encoder: Its backbone's digest is part of the store's key.
        store: Episodes; the first camera is read, as recorded.
        rows: Rows a frame: the plain one, then augmented ones.
        transforms: Random changes of the augmented rows: `frames.crop`, `frames.jitter`.
        root: Folder of training stores; the user's cache folder by default.
        device: The device that computes.

    Raises:
        BadInputError: An encoder without a frozen backbone, a damaged source, or a disk that is too small.
    """
    changes = dict(transforms or {}) if rows > 1 else {}

    @torch.no_grad()
    def embed(episode: int, frames: Array) -> Array:
        encoder.to(device).eval()
        pixels = torch.from_numpy(frames).to(device)
        found = [encoder.features(pixels)]
        views = ViewShape(1, len(frames), 1, *frames.shape[1:3])
        for row in range(1, rows):
            rngs = {key: sample_rng(row, episode, key) for key in changes}
            numbers = {key: torch.from_numpy(changes[key].draw(views, rng)).to(device) for key, rng in rngs.items()}
            found.append(encoder.features(images({"frames": pixels[None], **numbers}, "frames")[0]))
        return torch.stack(found, 1).float().cpu().numpy()

    settings = f"{encoder.backbone_digest} {rows} {changes}"
    return featured(store, embed, digest=hashlib.sha256(settings.encode()).hexdigest(), root=root)
