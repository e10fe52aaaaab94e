"""What a builder of towers returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Colour", "ImageTower", "Towers"]

Colour = tuple[float, float, float]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTower:
    """An image tower and what its input has to look like.

    Attributes:
        module: Normalised images [N, 3, S, S] -> embeddings [N, D].
        embed_dim: D.
        image_size: S.
        mean: Channel means of pixels in [0, 1].
        std: Their deviations.
    """

    module: nn.Module
    embed_dim: int
    image_size: int
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD


@dataclass(frozen=True)
class Towers:
    """Both towers of a dual encoder.

    Attributes:
        image: The image tower.
        text: N strings -> embeddings [N, D].
    """

    image: ImageTower
    text: nn.Module
