"""Diffusion Policy's convolutional network: a U-Net over the action window, modulated by what is seen (FiLM)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["ConditionalUnet1d", "step_waves"]


def step_waves(steps: Int[Tensor, " B"], width: int) -> Float[Tensor, "B width"]:
    """Sines, then cosines, of diffusion steps at `width / 2` frequencies from 1 to 1/10000, evenly in the log."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(10000) / (half - 1)))
    angles = steps[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ConditionalUnet1d(nn.Module):
    """The CNN form of Diffusion Policy (Chi et al., 2023, section 3.1).

    The window's steps are convolved. There are as many levels as widths; each has two residual blocks, and all but
    the last halve the steps. Two blocks stand at the bottom. On the way up each level but the first is joined
    to its twin. Every residual block scales and shifts its channels by a linear map of the diffusion step's
    embedding beside the flattened observations. Defaults are of the original's image configurations.

    Args:
        action_dim: A.
        condition_dim: To O, the flattened observations.
        widths: Channels of each level. The original's `down_dims`; for its image policies 512, 1024, 2048.
        kernel_size: Of the convolutions.
        groups: Of group normalisation.
        step_dim: Of the diffusion step's embedding.
    """

    def __init__(
        self,
        action_dim: int,
        condition_dim: int,
        *,
        widths: tuple[int, ...] = (512, 1024, 2048),
        kernel_size: int = 5,
        groups: int = 8,
        step_dim: int = 128,
    ) -> None:
        super().__init__()
        self.step_dim = step_dim
        self.step_encoder = nn.Sequential(
            nn.Linear(step_dim, 4 * step_dim), nn.Mish(), nn.Linear(4 * step_dim, step_dim)
        )

        def pair(inputs: int, outputs: int) -> _Pair:
            return _Pair(inputs, outputs, step_dim + condition_dim, kernel_size, groups)

        before = (action_dim, *widths[:-1])
        self.down = nn.ModuleList(pair(*both) for both in zip(before, widths, strict=True))
        self.shrink = nn.ModuleList(nn.Conv1d(width, width, 3, stride=2, padding=1) for width in widths[:-1])
        self.bottom = pair(widths[-1], widths[-1])
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(pair(2 * width, after) for width, after in upward)
        self.grow = nn.ModuleList(
            nn.ConvTranspose1d(after, after, 4, stride=2, padding=1) for _, after in upward
        )
        self.last = nn.Sequential(
            _convolution(widths[0], widths[0], kernel_size, groups), nn.Conv1d(widths[0], action_dim, 1)
        )

    def conditioning(
        self, steps: Int[Tensor, " n"], condition: Float[Tensor, "n To O"]
    ) -> tuple[Tensor, ...]:
        """What the blocks are modulated by: [n, 2 channels] for each, in the order in which they are used.

        It depends on no noisy sample, so sampling computes it for all its steps in one go.
        """
        embedded = self.step_encoder(step_waves(steps, self.step_dim).to(condition.dtype))
        features = nn.functional.mish(torch.cat([embedded, condition.flatten(1)], dim=-1))
        return tuple(block.film(features) for block in self._blocks())

    def forward(
        self, noisy: Float[Tensor, "n K A"], conditioning: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "n K A"], Float[Tensor, "n M k"]]:
        """The network's output, and its innermost features: M channels of k = K / 2^(levels - 1) steps."""
        films = iter(conditioning)
        x, twins = noisy.transpose(1, 2), []
        for level, pair in enumerate(self.down):
            x = pair(x, films)
            twins.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = bottleneck = self.bottom(x, films)
        for pair, grow in zip(self.up, self.grow, strict=True):
            x = grow(pair(torch.cat([x, twins.pop()], dim=1), films))
        return self.last(x).transpose(1, 2), bottleneck

    def _blocks(self) -> list[_ResidualBlock]:
        pairs = (*self.down, self.bottom, *self.up)
        return [module for pair in pairs for module in pair.modules() if isinstance(module, _ResidualBlock)]


class _Pair(nn.Module):
    def __init__(self, inputs: int, outputs: int, features: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.first = _ResidualBlock(inputs, outputs, features, kernel_size, groups)
        self.second = _ResidualBlock(outputs, outputs, features, kernel_size, groups)

    def forward(self, x: Tensor, films: Iterator[Tensor]) -> Tensor:
        made: Tensor = self.second(self.first(x, next(films)), next(films))
        return made


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, features: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, kernel_size, groups)
        self.film = nn.Linear(features, 2 * outputs)
        self.second = _convolution(outputs, outputs, kernel_size, groups)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        scale, bias = film[:, :, None].chunk(2, dim=1)
        made: Tensor = self.second(scale * self.first(x) + bias) + self.shortcut(x)
        return made


def _convolution(inputs: int, outputs: int, kernel_size: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel_size, padding=kernel_size // 2),
        nn.GroupNorm(groups, outputs),
        nn.Mish(),
    )
