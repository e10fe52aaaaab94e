"""InfoNCE of a bilinear critic (TACO, CURL, ATC), one pair at a time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["infonce"]


def infonce(queries: Tensor, W: Tensor, keys: Tensor) -> Tensor:
    """-mean_i log e^{q_i W k_i} / sum_j e^{q_i W k_j}."""
    rows = []
    for i, query in enumerate(queries):
        scores = [(query[:, None] * W * key).sum() for key in keys]
        rows.append(-(scores[i].exp() / torch.stack([score.exp() for score in scores]).sum()).log())
    return torch.stack(rows).mean()
