"""C-learning as the paper writes it, one situation at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def c_learning(following: Tensor, future: Tensor, w: Tensor, discount: float) -> Tensor:
    """Three terms of one classifier: `following` [B]; `future` and `w` [B] or [B, B]."""
    total = torch.zeros((), dtype=future.dtype)
    for f in following:
        total = total - (1 - discount) * torch.sigmoid(f).log() / len(following)
    for f, weight in zip(future.flatten(), w.flatten(), strict=True):
        C = torch.sigmoid(f)
        total = total - (discount * weight.detach() * C.log() + (1 - C).log()) / future.numel()
    return total


def odds(f: Tensor) -> Tensor:
    C = torch.sigmoid(f)
    return C / (1 - C)
