"""TD InfoNCE as the paper writes it, one row and one column at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def log_share(row: Tensor, j: int) -> Tensor:
    """log e^f_j / sum_k e^f_k."""
    return row[j] - sum((f.exp() for f in row), start=torch.zeros((), dtype=row.dtype)).log()


def mc_infonce(F: Tensor) -> Tensor:
    """Eq. 6, to be minimised, mean over rows."""
    return -torch.stack([log_share(F[i], i) for i in range(len(F))]).mean()


def td_infonce(F_next: Tensor, F_future: Tensor, W: Tensor, discount: float) -> Tensor:
    """Eq. 17 of one critic with given weights, mean over rows."""
    B = len(W)
    total = torch.zeros((), dtype=F_next.dtype)
    for i in range(B):
        total = total - (1 - discount) * log_share(F_next[i], i)
        for j in range(B):
            total = total - discount * W[i, j].detach() * log_share(F_future[i], j)
    return total / B


def weights(F: Tensor) -> Tensor:
    """Eq. 9 over N, so that rows sum to 1."""
    return torch.stack([torch.stack([log_share(row, j).exp() for j in range(len(row))]) for row in F])


def least(twins: Tensor) -> Tensor:
    """The elementwise minimum of [B, B, twins]."""
    return torch.stack([torch.stack([entry.min() for entry in row]) for row in twins])
