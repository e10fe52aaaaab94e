"""Crossway Diffusion (Li et al., 2024): reconstruct the observation from the U-Net's bottleneck.

L_rec = sum over cameras c of w_c MSE(image of c) + MSE(state),    images in [-1, 1], the state normalised
"""

from __future__ import annotations

import math
from typing import Self

import torch
from jaxtyping import Float, UInt8
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError, require
from counterpoint.objectives.steps import perceptron

SMALLEST_MAP = 8
"""Maximum side of the map that an image is decoded from, if the image's size can be halved down to that."""


class CrosswayConfig(FrozenConfig):
    """Settings of the reconstruction.

    Attributes:
        weight: Weight of the reconstruction relative to the diffusion loss (0.1 in the paper). The caller applies this
            weight.
        camera_weights: Weight of each camera's error; None is 1 for every camera, as in the paper's configurations.
        widths: Channels of the image decoder's levels, from the smallest map on; further levels use the last value.
        groups: Number of groups of the group normalisation, as in the original.
    """

    weight: float = Field(default=0.1, ge=0)
    camera_weights: tuple[float, ...] | None = None
    widths: tuple[int, ...] = Field(default=(128, 64, 32), min_length=1)
    groups: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(width % self.groups for width in self.widths):
            raise ValueError(f"widths multiples of groups = {self.groups}")
        return self


class CrosswayDecoder(nn.Module):
    """Decodes the newest observation from the U-Net's bottleneck at the sampled diffusion step.

    As in the original's design A, the bottleneck's first step is taken, and its M channels are cut into 2 by 2
    locations. For an image, these locations are repeated over a small map and concatenated with sines and cosines of
    the location; residual convolutions and doublings of the resolution lead to the image. The state is decoded by an
    MLP of widths 4 P, 2 P and P.

    Differences from the original: the original reconstructs both observations, each from half of the channels. It
    decodes from a map of half the image's side, by one doubling at 128 channels with kernels of 5. At 224 pixels that
    would cost several times as much as the image encoder. So here the map has at most 8 cells a side (7 for 224, 6 for
    96), with narrower channels and kernels of 3 towards the image. The state is one term of the loss; in the original
    each part of the state is one term.

    Args:
        bottleneck_dim: M, the channels at the bottleneck (the last of `down_dims`).
        cameras: Number of cameras (C).
        size: Side of the square images, in pixels.
        state_dim: Number of state dimensions (P); 0 if there is no state.
        config: Settings of the loss and the decoders.
    """

    camera_weights: Tensor

    def __init__(self, bottleneck_dim: int, cameras: int, size: int, state_dim: int, config: CrosswayConfig) -> None:
        super().__init__()
        weights = (1.0,) * cameras if config.camera_weights is None else config.camera_weights
        expected = f"{cameras}, one for each camera"
        require(len(weights) == cameras, "camera_weights", f"{len(weights)} of them", expected, "correct them")
        self.config, self.size, self.state_dim = config, size, state_dim
        self.register_buffer("camera_weights", torch.tensor(weights), persistent=False)
        self.images = nn.ModuleList(_ImageDecoder(bottleneck_dim, size, config) for _ in range(cameras))
        self.state: nn.Sequential | None = None
        if state_dim:
            self.state = perceptron(bottleneck_dim, 4 * state_dim, 2 * state_dim, state_dim, activation=nn.Mish)

    def reconstruct(
        self, bottleneck: Float[Tensor, "B M k"]
    ) -> tuple[Float[Tensor, "B C 3 h w"], Float[Tensor, "B P"] | None]:
        """Return images in [-1, 1], and the normalised state if `state_dim` is not 0."""
        first = bottleneck[:, :, 0]
        images = torch.stack([decode(first) for decode in self.images], dim=1)
        return images, None if self.state is None else self.state(first)

    def forward(
        self,
        bottleneck: Float[Tensor, "B M k"],
        frames: UInt8[Tensor, "B C h w 3"],
        state: Float[Tensor, "B P"] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return L_rec of the newest observation, not yet multiplied by `config.weight`.

        Args:
            bottleneck: `Denoised.bottleneck`.
            frames: Each camera's image, as given to the encoder.
            state: The normalised state; required if `state_dim` is not 0.

        Returns:
            The loss, and metrics: `images`, the unweighted mean error over cameras, and `state`.

        Raises:
            BadInputError: If frames or state have a different shape from the decoders' outputs.
        """
        wanted, found = (len(self.images), self.size, self.size, 3), 0 if state is None else state.shape[-1]
        if tuple(frames.shape[1:]) != wanted:
            expected, hint = (
                f"[B, {', '.join(map(str, wanted))}]",
                "give every camera's frames as the encoder sees them",
            )
            raise BadInputError("frames", f"shape {tuple(frames.shape)}", expected, hint)
        if self.state_dim not in (0, found):
            given, hint = (
                f"{found} numbers" if found else "none",
                "train with the state, or make the decoder for state_dim=0",
            )
            raise BadInputError("state", given, f"{self.state_dim} numbers", hint)
        images, numbers = self.reconstruct(bottleneck)
        seen = frames.movedim(-1, 2).float().div_(127.5).sub_(1)
        errors = (images.float() - seen).square().mean(dim=(0, 2, 3, 4))  # [C]
        loss = (self.camera_weights * errors).sum()
        metrics = {"images": errors.mean()}
        if numbers is not None and state is not None:
            metrics["state"] = functional.mse_loss(numbers.float(), state.float())
            loss = loss + metrics["state"]
        return loss, metrics


class _ImageDecoder(nn.Module):
    """Decodes M channels into an image: 2 by 2 locations repeated over a map, then residual blocks and doublings."""

    locations: Tensor

    def __init__(self, bottleneck_dim: int, size: int, config: CrosswayConfig) -> None:
        super().__init__()
        expected = "a multiple of 4: it is cut into 2 by 2 locations"
        require(bottleneck_dim % 4 == 0, "bottleneck_dim", bottleneck_dim, expected, "change the last of down_dims")
        side, doublings = size, 0
        while side > SMALLEST_MAP and side % 2 == 0:
            side, doublings = side // 2, doublings + 1
        self.side = side
        self.register_buffer("locations", _locations(side), persistent=False)
        widths = [config.widths[min(level, len(config.widths) - 1)] for level in range(doublings + 1)]
        inputs = [bottleneck_dim // 4 + len(self.locations), *widths]
        layers: list[nn.Module] = []
        for level, width in enumerate(widths):
            layers.append(_Residual2d(inputs[level], width, config.groups))
            if level < doublings:
                layers.append(nn.ConvTranspose2d(width, width, 4, stride=2, padding=1))
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 3, 1))

    def forward(self, first: Tensor) -> Tensor:
        repeats = math.ceil(self.side / 2)
        tiled = first.reshape(len(first), -1, 2, 2).repeat(1, 1, repeats, repeats)
        locations = self.locations.to(tiled.dtype).expand(len(first), -1, -1, -1)
        made: Tensor = self.layers(torch.cat([tiled[:, :, : self.side, : self.side], locations], 1))
        return made


class _Residual2d(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.GroupNorm(groups, outputs), nn.Mish()]
        self.layers = nn.Sequential(*layers)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x) + self.shortcut(x)
        return made


def _locations(side: int) -> Float[Tensor, "f side side"]:
    """Return sines and cosines of both coordinates at frequencies pi, 2 pi, 4 pi, ... that this map can resolve."""
    along = torch.linspace(-1, 1, side)
    rates = torch.pi * 2.0 ** torch.arange(max(1, int(math.log2(side))))
    angles = rates[:, None] * along  # [frequencies, side]
    waves = torch.cat([angles.sin(), angles.cos()])
    down, across = waves[:, :, None].expand(-1, -1, side), waves[:, None, :].expand(-1, side, -1)
    return torch.cat([down, across])
