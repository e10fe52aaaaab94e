"""Pooled backbones: a network of another library or of the user, followed by pooling and a linear head."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

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

    A frozen network computes with its batch normalisations folded into the convolutions before them (`folded`).

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
        self._folded: list[nn.Module] = []  # in a list, so that it is no submodule and not saved
        # The hook takes its module as an argument, so that a copy of the module forgets its own.
        self.register_load_state_dict_post_hook(lambda one, _: one._folded.clear())  # type: ignore[no-untyped-call]
        self.dropout, self.projection = nn.Dropout(dropout), nn.Linear(self.width, embed_dim)

    def features(self, images: Float[Tensor, "N 3 S S"], network: nn.Module | None = None) -> Float[Tensor, "N E"]:
        """Return the network's pooled features, without gradient if the network is frozen."""
        network = network or (self._fixed(images) if self.frozen else self.backbone)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            found = spatial_map(network, images) if self.pool > 1 else network(images)
            found = functional.adaptive_avg_pool2d(found, self.pool) if found.ndim == 4 else found
        return found.flatten(1)

    def _fixed(self, images: Tensor) -> nn.Module:
        """Return the frozen network in the form in which it computes, on the device of the images."""
        if not self._folded or _device(self._folded[0]) != images.device:
            self._folded[:] = [folded(self.backbone, images[:1])]
        return self._folded[0]

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


def folded(network: nn.Module, images: Float[Tensor, "1 3 S S"]) -> nn.Module:
    """Return a copy of a network in evaluation mode whose batch normalisations are folded into convolutions.

    A normalisation belongs to the convolution that stands before it in the same module. If the copy's output for
    `images` is not the network's up to rounding, or nothing can be folded, the network itself is returned.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    changed = copy.deepcopy(network)
    for module in list(changed.modules()):
        _fold(module)
    with torch.no_grad():
        expected, output = network(images), changed(images)
    same = torch.allclose(output, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    return changed if same else network


def _fold(module: nn.Module) -> None:
    children = list(module.named_children())
    for (first, before), (second, norm) in pairwise(children):
        if not isinstance(before, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
            continue
        if norm.num_features == before.out_channels and norm.running_mean is not None:
            setattr(module, first, fuse_conv_bn_eval(before, norm))
            after = [part for name in ("drop", "act") if isinstance(part := getattr(norm, name, None), nn.Module)]
            setattr(module, second, nn.Sequential(*after))  # timm's normalisations include dropout and activation


def _device(network: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in network.parameters()), None)


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
