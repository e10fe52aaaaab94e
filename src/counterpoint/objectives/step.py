"""Base of objectives on transitions: an observation encoder, and batches of steps with their actions."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import cropped_views, shifted_views
from counterpoint.data.nstep import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.base import Batch, Objective

__all__ = ["StepConfig", "StepObjective", "embed_views"]


class StepConfig(FrozenConfig):
    """Settings of every objective on transitions.

    Attributes:
        shift: Random shift of every observation, in pixels either way (DrQ-v2's is 4); 0 for none.
    """

    shift: int = Field(default=4, ge=0)


class StepObjective(Objective):
    """Base of objectives on transitions.

    Batches hold (`NStepLoader` has all of it) `frames` uint8 [B, V, S, H, W, 3], `shift` int64 [B, V, 2],
    `actions` float32 [B, K, A] with zeros beyond a task's own dimensions, `action_mask` bool [B, A],
    `near_valid` bool [B, N], `task` int64 [B], and `rewards` float32 [B, K] where the spec asks for them.

    Args:
        encoder: Observations into D dimensions; what is kept when training is over.
        spec: What a sample holds.
    """

    def __init__(self, encoder: ObservationEncoder, spec: NStepSpec) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = spec

    def sampling(self) -> NStepSpec:
        """The spec it was made with."""
        return self._spec

    def crop_to(self, size: int) -> None:
        """Take random windows of this side from larger pictures; 0 takes pictures as they are."""
        self._spec = replace(self._spec, crop=size)

    def views(self, batch: Batch) -> Tensor:
        """The batch's observations, cropped and randomly shifted where the spec says so: uint8 [B, V, S, H, W, 3]."""
        windows = cropped_views(batch["frames"], batch.get("crop"), size=self._spec.crop)
        return shifted_views(windows, batch.get("shift"), pad=self._spec.shift)

    def embed(self, views: Tensor, batch: Batch) -> Tensor:
        """Encode observations [B, v, S, H, W, 3] of the batch, all of them in one pass: [B, v, D]."""
        return embed_views(self.encoder, views, batch)

    def exports(self) -> dict[str, nn.Module]:
        """The encoder."""
        return {"encoder": self.encoder}


def embed_views(encoder: ObservationEncoder, views: Tensor, batch: Batch) -> Tensor:
    """Observations [B, v, S, H, W, 3] in one pass, told the batch's instructions where the encoder takes them.

    Returns:
        [B, v, D].
    """
    told = batch["instruction"] if encoder.takes_instruction else None
    embedded: Tensor = encoder(views.flatten(0, 1), told).unflatten(0, views.shape[:2])
    return embedded
