"""Map actions and proprioception to the range that networks use, and back; all policies use this class."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.statistics import Statistics
from counterpoint.errors import require

STILL = 1e-4
"""A dimension with a smaller range than this counts as constant (Diffusion Policy's threshold)."""


class LinearNormalizer(nn.Module):
    """A linear map of each dimension; by default, it maps the training range to [-1, 1].

    A dimension that was constant in training is only shifted, since dividing by its range would magnify the slightest
    noise. Until `normalise_by` is called, the map is the identity. The map's numbers are buffers, so they are saved.

    Args:
        dim: Number of dimensions (n).
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("low", -torch.ones(dim))
        self.register_buffer("high", torch.ones(dim))
        self.register_buffer("middle", torch.zeros(dim))  # maps to 0
        self.register_buffer("reach", torch.ones(dim))  # middle + reach maps to 1

    def normalise_by(self, statistics: Statistics, *, keep_unit: bool = False) -> None:
        """Set the map from the range of the training episodes.

        Args:
            statistics: The statistics of the training episodes, in the same n dimensions.
            keep_unit: Do not change values that lie in [-1, 1] in training. Simulators define actions in this range,
                and Premier-TACO's policies are trained on them unchanged.

        Raises:
            BadInputError: If statistics have other dimensions, or a range is not finite.
        """
        low, high = _range(statistics, len(self.low))
        if keep_unit and bool((low >= -1).all() and (high <= 1).all()):
            low, high = -torch.ones_like(low), torch.ones_like(high)
        still = high - low < STILL
        self._set(low, high, torch.where(still, low, (low + high) / 2), torch.where(still, 1.0, (high - low) / 2))

    def standardise_by(self, statistics: Statistics) -> None:
        """Set the map from the training episodes' mean and standard deviation: results have mean 0 and deviation 1."""
        mean, deviation = (torch.tensor(part, dtype=torch.float64) for part in (statistics.mean, statistics.deviation))
        self._set(*_range(statistics, len(self.low)), mean, torch.where(deviation > 1e-6, deviation, 1.0))

    def _set(self, *numbers: Tensor) -> None:
        for buffer, values in zip((self.low, self.high, self.middle, self.reach), numbers, strict=True):
            buffer.copy_(values)

    def forward(self, values: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """Return normalised values; values outside the training range map outside [-1, 1]."""
        return (values - self.middle) / self.reach

    def restore(self, normalised: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        """Return values in their original units, clamped to the training range."""
        return torch.clamp(normalised * self.reach + self.middle, self.low, self.high)


def _range(statistics: Statistics, dim: int) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest values in double precision."""
    low, high = (torch.tensor(part, dtype=torch.float64) for part in (statistics.low, statistics.high))
    require(len(low) == dim, "statistics", f"{len(low)} dimensions", f"{dim}", "give those of the same numbers")
    bad = (~torch.isfinite(high - low)).nonzero().flatten().tolist()
    found = f"a range that is not finite in dimension {', '.join(map(str, bad))}"
    require(not bad, "statistics", found, "finite numbers", "remove NaN and infinite values from the data")
    return low, high
