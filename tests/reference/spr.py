"""SPR's loss as the paper writes it, one row and one step ahead at a time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["spr"]


def spr(predicted: Tensor, target: Tensor) -> Tensor:
    """-sum over steps of the cosine, mean over rows."""
    rows = []
    for guesses, truths in zip(predicted, target, strict=True):
        total = torch.zeros((), dtype=predicted.dtype)
        for guess, truth in zip(guesses, truths, strict=True):
            total = total - (guess * truth).sum() / (guess.square().sum().sqrt() * truth.square().sum().sqrt())
        rows.append(total)
    return torch.stack(rows).mean()
