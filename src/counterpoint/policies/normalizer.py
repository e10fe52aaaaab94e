"""Actions and proprioception into the range that networks read and write, and back: one mechanism for all policies."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.statistics import Statistics
from counterpoint.errors import require

STILL = 1e-4
"""A dimension whose range is smaller than this does not move (Diffusion Policy's threshold)."""


class LinearNormalizer(nn.Module):
    """A linear map of each dimension, by default of its training range onto [-1, 1].

    A dimension that stood still in training is only shifted: dividing by its range would magnify the slightest noise.
    Until `normalise_by` is called the map is the identity. Its numbers are buffers, so a saved module holds them.

    Args:
        dim: n, the dimensions.
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("low", -torch.ones(dim))
        self.register_buffer("high", torch.ones(dim))
        self.register_buffer("middle", torch.zeros(dim))  # what becomes 0
        self.register_buffer("reach", torch.ones(dim))  # its distance from what becomes 1

    def normalise_by(self, statistics: Statistics, *, keep_unit: bool = False) -> None:
        """Take the range of training episodes.

        Args:
            statistics: Of the same n dimensions.
            keep_unit: Leave numbers that lie in [-1, 1] in training as they are, which is how simulators define
                actions and how tanh policies are trained on them.

        Raises:
            BadInputError: Statistics of other dimensions, or a range that is not finite.
        """
        low, high = (torch.tensor(part, dtype=torch.float64) for part in (statistics.low, statistics.high))
        _check(low, high, len(self.low))
        if keep_unit and bool((low >= -1).all() and (high <= 1).all()):
            low, high = -torch.ones_like(low), torch.ones_like(high)
        spread = high - low
        still = spread < STILL
        self.low.copy_(low)
        self.high.copy_(high)
        self.middle.copy_(torch.where(still, low, (low + high) / 2))
        self.reach.copy_(torch.where(still, 1.0, spread / 2))

    def standardise_by(self, statistics: Statistics) -> None:
        """Take the mean and deviation of training episodes instead: mean 0, deviation 1."""
        low, high, mean, deviation = (
            torch.tensor(part, dtype=torch.float64)
            for part in (statistics.low, statistics.high, statistics.mean, statistics.deviation)
        )
        _check(low, high, len(self.low))
        self.low.copy_(low)
        self.high.copy_(high)
        self.middle.copy_(mean)
        self.reach.copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def forward(self, values: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """Return normalised values; those outside the training range go outside [-1, 1]."""
        return (values - self.middle) / self.reach

    def restore(self, normalised: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """Return values in their own units, never outside the training range."""
        return torch.clamp(normalised * self.reach + self.middle, self.low, self.high)


def _check(low: Tensor, high: Tensor, dim: int) -> None:
    hint = "give the statistics of the same numbers"
    require(len(low) == dim, "statistics", f"{len(low)} dimensions", f"{dim}", hint)
    bad = (~torch.isfinite(high - low)).nonzero().flatten().tolist()
    hint = "look at the data: some of it is NaN or infinite"
    found = f"a range that is not finite in dimension {bad[0] if bad else 0}"
    require(not bad, "statistics", found, "finite numbers", hint)
