"""The shallow ConvNet of DrQ-v2 with Premier-TACO's trunk (Appendix C, Listing 1)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["DrQConvNet"]


class DrQConvNet(nn.Module):
    """Four 3 x 3 convolutions, the first of stride 2, then linear, layer normalisation and tanh.

    At 9 x 84 x 84, width 32 and D = 100 it has 3.95 million parameters, as the paper says. (Listing 1 writes
    `Conv2d(84, 32, ...)`: 84 is the picture's side; the channels are nine.)

    Args:
        channels: Of the input: three a frame of the stack.
        size: Height and width, in pixels.
        embed_dim: D.
        width: Channels of every convolution.
    """

    def __init__(self, channels: int, size: int, embed_dim: int, *, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(4):
            layers += [
                nn.Conv2d(channels if number == 0 else width, width, 3, 2 if number == 0 else 1),
                nn.ReLU(),
            ]
        self.convnet = nn.Sequential(*layers)
        side = (size - 3) // 2 + 1 - 6
        self.trunk = nn.Sequential(
            nn.Linear(width * side * side, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh()
        )

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.trunk(self.convnet(images).flatten(1))
        return embedded
