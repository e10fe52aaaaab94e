"""Contrastive RL's losses and energies, one pair at a time. Differentiable, float64."""

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


def energy(phi: Tensor, psi: Tensor, name: str) -> Tensor:
    rows = []
    for x in phi:
        for y in psi:
            apart = sum(((a - b) ** 2 for a, b in zip(x, y, strict=True)), start=torch.zeros(()))
            inner = sum((a * b for a, b in zip(x, y, strict=True)), start=torch.zeros(()))
            rows.append({"norm": -((apart + 1e-6) ** 0.5), "l2": -apart, "dot": inner}[name])
    return torch.stack(rows).view(len(phi), len(psi))
