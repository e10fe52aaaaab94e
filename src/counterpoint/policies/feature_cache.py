"""Demonstrations embedded once: what a frozen encoder without augmentation makes of them never changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.cameras import Cameras, camera_names, pictures
from counterpoint.data.episode import Array
from counterpoint.data.nstep import NStepSpec
from counterpoint.data.nstep_loader import NStepLoader
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.cloning import FEATURES

__all__ = ["FeatureSource", "embed_store"]

CHUNK = 256
"""Observations a pass."""


@torch.no_grad()
def embed_store(
    encoder: ObservationEncoder, store: EpisodeStore, camera: Cameras = None
) -> Float[Tensor, "T D"]:
    """Every step's observation through an encoder in evaluation mode, episodes end to end; on the CPU."""
    encoder.eval()
    cameras = camera_names(camera, store.cameras, encoder.config.cameras)
    device = next(encoder.parameters()).device
    parts: list[Tensor] = []
    for episode, info in enumerate(store.episodes):
        frames = torch.from_numpy(pictures(store, episode, np.arange(info.length), cameras))
        # The steps before the first repeat it, as in the loader.
        behind = torch.arange(1 - encoder.config.stack, 1)
        steps = (torch.arange(info.length)[:, None] + behind).clamp_min(0)
        told = [info.instruction] if encoder.takes_instruction else None
        parts += [
            # [n, S, C, H, W, 3] -> the S frames of the first camera, then those of the next.
            encoder(frames[chunk].transpose(1, 2).flatten(1, 2).to(device), told).float().cpu()
            for chunk in torch.split(steps, CHUNK)
        ]
    return torch.cat(parts)


class FeatureSource:
    """The batches of `NStepLoader`, with `features` [B, H, D] instead of `frames`.

    Args:
        encoder: A frozen one.
        store: Demonstrations.
        spec: Without random shifts and negatives.
        camera: Which camera, or as many as the encoder has, in its order; the store's first by default.
        loader: The other arguments of `NStepLoader`, `batch_size` and `seed` among them.

    Raises:
        BadInputError: A spec with random shifts or negatives, and whatever `NStepLoader` refuses.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        store: EpisodeStore,
        spec: NStepSpec,
        *,
        camera: Cameras = None,
        **loader: Any,
    ) -> None:
        if spec.shift or spec.near is not None:
            raise BadInputError(
                "features",
                found=f"random shifts of {spec.shift} px" if spec.shift else "near negatives",
                expected="observations as they are, which can be embedded once",
                mend="set shift = 0 with freeze, or train through the encoder",
            )
        self._loader = NStepLoader(_Blind(store), spec, **loader)
        self._features = embed_store(encoder, store, camera)
        lengths = [info.length for info in store.episodes]
        self._starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64))
        self._offsets = torch.tensor(spec.offsets)

    @property
    def epoch_size(self) -> int:
        """Steps that can be an anchor."""
        return self._loader.epoch_size

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Batches number `start` to `stop - 1`."""
        for batch in self._loader.batches(start, stop):
            del batch["frames"]
            steps = (batch["step"][:, None] + self._offsets).clamp_min(0)
            yield batch | {FEATURES: self._features[self._starts[batch["episode"]][:, None] + steps]}


class _Blind(SubsetStore):
    """A store whose pictures are one black pixel: the loader draws as it always does and reads next to nothing."""

    def __init__(self, store: EpisodeStore) -> None:
        super().__init__(store, range(len(store.episodes)))

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, 1, 1, 3]."""
        return np.zeros((len(indices), 1, 1, 3), np.uint8)

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """The same of many episodes."""
        out[...] = 0
