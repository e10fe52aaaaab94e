"""Pooled backbones: a network of another library or of the user, followed by pooling and a linear head."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.errors import require


class Backbone(nn.Module):
    """A network of another library or of the user, followed by pooling of its spatial map and a linear head.

    Args:
        network: A module that maps normalised images [N, 3, S, S] to features [N, E] or a map [N, E, h, w].
        embed_dim: Dimensions of the embedding (D).
        image_size: Side of the images in pixels (S).
        pool: Side of the grid that the spatial map is averaged to; with 1, the network's own output is used.
        dropout: Share of the features that are dropped in training.
        frozen: True to keep the network fixed and in evaluation mode.

    Attributes:
        width: Number of features per frame.
    """

    def __init__(
        self, network: nn.Module, embed_dim: int, image_size: int, *, pool: int = 1, dropout: float = 0.0, frozen: bool
    ) -> None:
        super().__init__()
        self.backbone, self.pool, self.frozen = network, pool, frozen
        if frozen:
            network.requires_grad_(False)
        mode = network.training
        with torch.no_grad():
            self.width = self.features(torch.zeros(1, 3, image_size, image_size), network.eval()).shape[1]
        network.train(mode and not frozen)
        self.dropout, self.projection = nn.Dropout(dropout), nn.Linear(self.width, embed_dim)

    def features(self, images: Float[Tensor, "N 3 S S"], network: nn.Module | None = None) -> Float[Tensor, "N E"]:
        """Return the network's pooled features, without gradient if the network is frozen."""
        network = network or self.backbone
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            found = spatial_map(network, images) if self.pool > 1 else network(images)
            found = functional.adaptive_avg_pool2d(found, self.pool) if found.ndim == 4 else found
        return found.flatten(1)

    def head(self, features: Float[Tensor, "*lead E"]) -> Float[Tensor, "*lead D"]:
        """Map features into the shared space."""
        embedded: Tensor = self.projection(self.dropout(features))
        return embedded

    def forward(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        return self.head(self.features(images))

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off; a frozen network stays in evaluation mode."""
        if not self.frozen:
            return super().train(mode)
        self.training = mode  # does not visit the network's modules, which would take as long as a step of the head
        self.dropout.train(mode)
        return self


def spatial_map(network: nn.Module, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N C h w"]:
    """Return a network's last spatial map; for a vision transformer, its patch tokens as a square map.

    Raises:
        BadInputError: If the network has no spatial map.
    """
    known: Any = network
    if hasattr(network, "forward_features"):  # timm
        found: Tensor = known.forward_features(images)
    elif hasattr(network, "forward_intermediates"):  # open_clip
        found = known.forward_intermediates(images, indices=1, intermediates_only=True)["image_intermediates"][-1]
    else:
        found = network(images)
    if found.ndim == 3:
        patches = found[:, getattr(network, "num_prefix_tokens", 0) :].movedim(1, 2)
        side = math.isqrt(patches.shape[2])
        found = patches.reshape(*patches.shape[:2], side, side) if side * side == patches.shape[2] else found
    hint = "use pool = 1, or a network that returns [N, C, h, w]"
    require(found.ndim == 4, type(network).__name__, f"an output {list(found.shape)}", "a map [N, C, h, w]", hint)
    return found
