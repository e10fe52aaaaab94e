"""ResNet-18 (He et al., 2016) with group normalisation, in plain torch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.towers import ImageTower
from counterpoint.encoders.weights import start_from_file

__all__ = ["ResNet18", "build"]

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_GROUPS = 32


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.GroupNorm(_GROUPS, width)
            )

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N W h w"]:
        """One residual block."""
        return torch.relu(self.body(images) + self.shortcut(images))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average over the map, linear.

    Group instead of batch normalisation: a frame's embedding depends on no other frame, so nothing about the
    batch can leak into a contrastive loss, and evaluation computes what training computed.

    Args:
        embed_dim: D.
        channels: C of the input; three a frame where frames are stacked.
    """

    def __init__(self, embed_dim: int, *, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False),
            nn.GroupNorm(_GROUPS, 64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in _STAGES:
            blocks += [BasicBlock(width_in, width, stride), BasicBlock(width, width, 1)]
            width_in = width
        self.stages = nn.Sequential(*blocks)
        self.head = nn.Linear(width_in, embed_dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))
        return embedded


def build(config: EncoderConfig) -> ImageTower:
    """The tower: 112 px and 256 dimensions unless told otherwise."""
    size, embed_dim = config.image_size or 112, config.embed_dim or 256
    module = ResNet18(embed_dim)
    module.to(memory_format=torch.channels_last)
    start_from_file(module, config.pretrained)
    return ImageTower(module, embed_dim, size)
