"""Networks of goal-reaching agents: trunks for states and pictures, twin encoders, policies.

Twins are one module whose weights carry a leading axis of 2, so that both run in one batched product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["EnsembleMLP", "GaussianActor", "PixelTrunk", "flat"]


class EnsembleMLP(nn.Module):
    """E multilayer perceptrons of equal shape in one: linear layers with ReLU between.

    Args:
        members: E, how many.
        sizes: Widths, input first.
        activate_last: Whether a ReLU follows the last layer too.
        generator: Of the initial weights (uniform in +-1/sqrt(fan-in), as `nn.Linear`).
    """

    def __init__(
        self,
        members: int,
        sizes: Sequence[int],
        *,
        activate_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.activate_last = activate_last
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
            bound = 1 / math.sqrt(fan_in)
            weight = torch.empty(members, fan_in, fan_out).uniform_(-bound, bound, generator=generator)
            bias = torch.empty(members, 1, fan_out).uniform_(-bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(self, inputs: Float[Tensor, "*E B I"]) -> Float[Tensor, "E B O"]:
        """Outputs of every member on shared inputs [B, I] or on its own [E, B, I]."""
        members = self.weights[0].shape[0]
        x = inputs.expand(members, *inputs.shape[-2:])
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if number < last or self.activate_last:
                x = functional.relu(x)
        return x


class PixelTrunk(nn.Module):
    """The convolutions of DQN (Mnih et al., 2015) for 64 x 64 pictures, as contrastive RL uses them.

    uint8 [B, H, W, C] in [0, 255] to float [B, D].
    """

    def __init__(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        height, width, channels = shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.features = int(self.layers(torch.zeros(1, channels, height, width)).shape[1])

    def forward(self, pictures: Tensor) -> Float[Tensor, "B D"]:
        """Features of pictures."""
        scaled = pictures.permute(0, 3, 1, 2).float() / 255 - 0.5
        features: Tensor = self.layers(scaled)
        return features


class GaussianActor(nn.Module):
    """pi(a | s, g) = tanh of a Gaussian with learned mean and standard deviation (softplus + 1e-6).

    Args:
        inputs: Width of the concatenated observation and goal.
        actions: A.
        hidden: Widths of the hidden layers; a ReLU follows each.
        generator: Of the initial weights.
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: Sequence[int],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.body = EnsembleMLP(1, [inputs, *hidden], activate_last=True, generator=generator)
        self.heads = EnsembleMLP(1, [hidden[-1], 2 * actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Mean and standard deviation before the tanh."""
        loc, spread = self.heads(self.body(inputs))[0].chunk(2, dim=-1)
        return loc, functional.softplus(spread) + 1e-6

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A"]:
        """The action that standard normal `noise` stands for, differentiable."""
        loc, scale = self(inputs)
        return torch.tanh(loc + scale * noise)

    def mode(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """tanh of the mean."""
        return torch.tanh(self(inputs)[0])


def flat(*parts: Float[Tensor, "B _"]) -> Float[Tensor, "B I"]:
    """Parts side by side."""
    return torch.cat(parts, dim=-1)
