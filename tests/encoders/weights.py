"""Properties of initial weights."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_orthogonal(weight: Tensor, gain: float) -> None:
    """The rows of a layer's matrix, or its columns where they are fewer, are orthogonal and `gain` long."""
    rows = weight.detach().flatten(1)
    small = rows if rows.shape[0] <= rows.shape[1] else rows.T
    torch.testing.assert_close(small @ small.T, gain**2 * torch.eye(len(small)), rtol=0, atol=1e-4)
