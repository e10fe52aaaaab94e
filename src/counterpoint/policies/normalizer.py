"""Numbers into [-1, 1] by their training episodes' range and back again, as diffusion policies need them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.statistics import Statistics
from counterpoint.errors import BadInputError

__all__ = ["LinearNormalizer"]

STILL = 1e-4
"""A dimension whose range is smaller than this does not move (Diffusion Policy's threshold)."""


class LinearNormalizer(nn.Module):
    """Maps each dimension's range onto [-1, 1].

    A dimension that stood still in training is only shifted, its least value to 0: dividing by its range would blow
    the slightest noise up. Until `normalise_by` is called it maps [-1, 1] onto itself. What it knows is kept in
    buffers, so a saved module holds it.

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
        self.register_buffer("reach", torch.ones(dim))  # how far from it lies what becomes 1

    def normalise_by(self, statistics: Statistics) -> None:
        """Take the range of training episodes.

        Raises:
            BadInputError: When they have other dimensions than this, or a range that is not finite.
        """
        low, high = (torch.tensor(part, dtype=torch.float64) for part in (statistics.low, statistics.high))
        if low.shape != self.low.shape:
            raise BadInputError(
                "statistics", f"{len(low)} dimensions", f"{len(self.low)}", "give the statistics of the same numbers"
            )
        spread = high - low
        if not bool(torch.isfinite(spread).all()):
            raise BadInputError(
                "statistics",
                f"a range that is not finite in dimension {int((~torch.isfinite(spread)).nonzero()[0])}",
                "finite numbers",
                "look at the data: some of it is NaN or infinite",
            )
        still = spread < STILL
        self.low.copy_(low)
        self.high.copy_(high)
        self.middle.copy_(torch.where(still, low, (low + high) / 2))
        self.reach.copy_(torch.where(still, 1.0, spread / 2))

    def forward(self, values: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """Into [-1, 1] where they lie in the training range; values outside it go outside."""
        return (values - self.middle) / self.reach

    def restore(self, normalised: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """The inverse, into the training range alone: what lies outside is moved to its edge."""
        return torch.clamp(normalised * self.reach + self.middle, self.low, self.high)
