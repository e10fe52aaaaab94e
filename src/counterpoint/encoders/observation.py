"""The observation encoder of control: a stack of camera frames into a state vector."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Shaped, UInt8
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.drq import DrQConvNet

__all__ = ["ObservationConfig", "ObservationEncoder"]


class ObservationConfig(FrozenConfig):
    """Architecture and preprocessing of an `ObservationEncoder`.

    Attributes:
        kind: `drq` is the shallow ConvNet of Premier-TACO's Listing 1 (DrQ-v2's, with a trunk).
        size: Height and width of frames, in pixels.
        stack: S, frames an observation.
        embed_dim: D.
        width: Channels of `drq`'s convolutions; 32 in the papers.
        centre: Subtract the training frames' mean image and divide by their deviation, instead of the paper's
            x / 255 - 0.5. Without it the window loss of Premier-TACO does not start to learn at small scale.
    """

    kind: Literal["drq"] = "drq"
    size: PositiveInt = 84
    stack: PositiveInt = 3
    embed_dim: PositiveInt = 100
    width: PositiveInt = 32
    centre: bool = False


class ObservationEncoder(nn.Module):
    """Observations into D dimensions.

    Args:
        config: What to build.
    """

    mean_image: Tensor
    deviation: Tensor

    def __init__(self, config: ObservationConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_dim = config.embed_dim
        self.body = DrQConvNet(3 * config.stack, config.size, config.embed_dim, width=config.width)
        # [H, W, 3] and a scalar, both of pixels in [0, 1]; the paper's x / 255 - 0.5 until `centre_on` is called.
        self.register_buffer("mean_image", torch.full((config.size, config.size, 3), 0.5))
        self.register_buffer("deviation", torch.ones(()))

    def centre_on(self, frames: UInt8[Tensor, "N H W 3"]) -> None:
        """Take mean image and deviation from training frames; for `centre` encoders, before training."""
        pixels = frames.float() / 255
        mean = pixels.mean(0)
        self.mean_image.copy_(mean)
        self.deviation.copy_((pixels - mean).std().clamp_min(1e-3))

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N observations of S frames, uint8 in [0, 255]."""
        scaled = (frames.float() / 255 - self.mean_image) / self.deviation
        stacked = scaled.permute(0, 1, 4, 2, 3).flatten(1, 2)  # [N, 3 S, H, W], oldest frame first
        embedded: Tensor = self.body(stacked)
        return embedded
