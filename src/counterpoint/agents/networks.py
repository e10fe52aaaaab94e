"""Networks of goal-reaching agents: trunks for states and pictures, twin encoders, policies.

Twins are one module whose weights carry a leading axis of 2, so that both run in one batched product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.perceptron import perceptrons
from counterpoint.errors import BadInputError

__all__ = ["CategoricalActor", "EnsembleMLP", "GaussianActor", "PixelTrunk", "flat"]

LEAST_SIDE = 36
"""Of pictures: 36 -> 8 -> 3 -> 1 through the convolutions of `PixelTrunk`."""


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
        for fan_in, fan_out in pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            weight = torch.empty(members, fan_in, fan_out).uniform_(-bound, bound, generator=generator)
            bias = torch.empty(members, 1, fan_out).uniform_(-bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(self, inputs: Float[Tensor, "*E B I"], *, frozen: bool = False) -> Float[Tensor, "E B O"]:
        """Outputs of every member on shared inputs [B, I] or on its own [E, B, I].

        Args:
            inputs: What goes in.
            frozen: Let gradients flow to the inputs and not to the parameters.
        """
        weights, biases = list(self.weights), list(self.biases)
        if frozen:
            weights, biases = [w.detach() for w in weights], [b.detach() for b in biases]
        return perceptrons(inputs, weights, biases, activate_last=self.activate_last)


class PixelTrunk(nn.Module):
    """The convolutions of DQN (Mnih et al., 2015) for 64 x 64 pictures, as contrastive RL uses them.

    uint8 [B, H, W, C] in [0, 255] to float [B, D].

    Args:
        shape: H, W and C; three convolutions need a height and a width of 36 at least.
        generator: Of the initial weights.

    Raises:
        BadInputError: When pictures are smaller.
    """

    def __init__(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        height, width, channels = shape
        if min(height, width) < LEAST_SIDE:
            raise BadInputError(
                "pictures",
                found=f"{height} x {width} pixels",
                expected=f"{LEAST_SIDE} x {LEAST_SIDE} at least, which the convolutions need",
                mend="render or record larger pictures; 64 x 64 is usual",
            )
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
        return features.float()


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


class CategoricalActor(nn.Module):
    """pi(a | s, g) over A discrete actions.

    Args:
        inputs: Width of the concatenated observation and goal.
        actions: A.
        hidden: Widths of the hidden layers.
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
        self.body = EnsembleMLP(1, [inputs, *hidden, actions], generator=generator)

    def forward(self, inputs: Float[Tensor, "B I"]) -> Float[Tensor, "B A"]:
        """Log-probabilities."""
        return functional.log_softmax(self.body(inputs)[0], dim=-1)

    def sample(self, inputs: Float[Tensor, "B I"], noise: Float[Tensor, "B A"]) -> Int[Tensor, " B"]:
        """The action that standard Gumbel `noise` stands for (Gumbel-max)."""
        action: Tensor = (self(inputs) + noise).argmax(dim=-1)
        return action

    def mode(self, inputs: Float[Tensor, "B I"]) -> Int[Tensor, " B"]:
        """The likeliest action."""
        action: Tensor = self(inputs).argmax(dim=-1)
        return action


def flat(*parts: Float[Tensor, "B _"]) -> Float[Tensor, "B I"]:
    """Parts side by side."""
    return torch.cat(parts, dim=-1)
