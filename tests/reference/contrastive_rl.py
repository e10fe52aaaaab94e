"""Contrastive RL's NCE and products, one pair at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def nce(F: Tensor) -> Tensor:
    total = torch.zeros((), dtype=F.dtype)
    for i in range(len(F)):
        for j in range(len(F)):
            p = torch.sigmoid(F[i, j])
            total = total - (p if i == j else 1 - p).log()
    return total / len(F) ** 2


def products(phi: Tensor, psi: Tensor) -> Tensor:
    rows = [sum((a * b for a, b in zip(x, y, strict=True)), start=torch.zeros(())) for x in phi for y in psi]
    return torch.stack(rows).view(len(phi), len(psi))
