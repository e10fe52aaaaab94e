"""A small convolutional network that trains from scratch on a processor."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.towers import ImageTower
from counterpoint.encoders.weights import start_from_file

__all__ = ["ConvNet", "build"]

_WIDTHS = (32, 64, 128, 256)


class ConvNet(nn.Module):
    """Four 3 x 3 convolutions of stride 2, then one linear layer on the flattened map, which keeps positions.

    No normalisation layer: a frame's embedding depends on no other frame, so nothing about the batch can leak
    into a contrastive loss. Four layers do not need one to train.

    Args:
        image_size: S; made for 64 to 112 px.
        embed_dim: D.
    """

    def __init__(self, image_size: int, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in, side = 3, image_size
        for width in _WIDTHS:
            layers += [nn.Conv2d(width_in, width, 3, 2, 1), nn.ReLU()]
            width_in, side = width, (side + 1) // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width_in * side * side, embed_dim)

    def forward(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.body(images).flatten(1))
        return embedded


def build(config: EncoderConfig) -> ImageTower:
    """The tower: 64 px and 256 dimensions unless told otherwise."""
    size, embed_dim = config.image_size or 64, config.embed_dim or 256
    module = ConvNet(size, embed_dim)
    # Channels last is how frames arrive, and the faster layout for small images on a processor.
    module.to(memory_format=torch.channels_last)
    start_from_file(module, config.pretrained)
    return ImageTower(module, embed_dim, size)
