"""Features of a frozen backbone, computed once for every frame of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from counterpoint.blocks import one_torch_thread
from counterpoint.data.augment import Transform, ViewShape, images
from counterpoint.data.cache import featured
from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.dual import DualEncoder


def frames_at_once(encoder: DualEncoder) -> int:
    """Return the number of frames to encode at once; on a CPU, large batches take longer to allocate than to encode."""
    side = encoder.image_size
    return 64 if encoder.mean.device.type != "cpu" else min(32, max(1, 8 * 224**2 // side**2))


def features_of(
    encoder: DualEncoder,
    store: EpisodeStore,
    *,
    rows: int = 1,
    transforms: Mapping[str, Transform] | None = None,
    root: str | Path | None = None,
    device: str = "cpu",
) -> EpisodeStore:
    """Return a store with a frozen backbone's features [T, rows, E]; features that are missing are computed first.

    For a `SubsetStore`, the features of the whole store are computed, so that all its subsets share them. After an
    interruption, the next call resumes at the episode that was reached. Each augmented row has one random crop per
    episode.

    Args:
        encoder: The encoder; its backbone's digest is part of the store's key.
        store: Episodes; the first camera is read at its recorded size.
        rows: Number of rows of features per frame: one for the unchanged frame, then one for each augmented copy.
        transforms: Random changes of the augmented copies, by name: `frames.crop`, `frames.jitter`.
        root: Folder of training stores; the user's cache folder by default.
        device: The device that computes.

    Raises:
        BadInputError: If the encoder has no frozen backbone, the source is damaged, or the disk is too small.
    """
    if isinstance(store, SubsetStore):
        options: Any = {"rows": rows, "transforms": transforms, "root": root, "device": device}
        return SubsetStore(features_of(encoder, store.whole, **options), store.indices)
    changes = dict(transforms or {}) if rows > 1 else {}

    @torch.no_grad()
    def embed(episode: int, frames: Array) -> Array:
        views = ViewShape(1, len(frames), 1, *frames.shape[1:3])
        found, count = [], frames_at_once(encoder)
        for row in range(rows):
            rngs = {key: sample_rng(row, episode, key) for key in changes} if row else {}
            drawn = {key: torch.from_numpy(changes[key].draw(views, rng)) for key, rng in rngs.items()}
            parts = []
            for first in range(0, len(frames), count):
                some = slice(first, first + count)
                batch = {key: value[:, some] if key.endswith("jitter") else value for key, value in drawn.items()}
                batch["frames"] = torch.from_numpy(frames[None, some])
                seen = images({key: value.to(device) for key, value in batch.items()}, "frames")[0]
                parts.append(encoder.features(seen).float().cpu())
            found.append(torch.cat(parts))
        return torch.stack(found, 1).numpy()

    settings = f"{encoder.backbone_digest} {rows} {changes}"
    digest, threads = hashlib.sha256(settings.encode()).hexdigest(), torch.get_num_threads()
    encoder.to(device).eval()
    with one_torch_thread():  # a thread for each episode keeps the cores busy while another episode is decoded
        return featured(store, embed, digest=digest, root=root, threads=threads)
