"""SMART's losses and attention (Sun et al., 2023, section 4.2), one token at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def forward_prediction(predicted: Tensor, following: Tensor) -> Tensor:
    total, count = torch.zeros((), dtype=predicted.dtype), 0
    for i in range(len(predicted)):
        for t in range(predicted.shape[1]):
            for d in range(predicted.shape[2]):
                total = total + (predicted[i, t, d] - following[i, t, d].detach()) ** 2
                count += 1
    return total / count


def hidden(length: int, *, inverse: bool) -> Tensor:
    """Which token (row) must not see which (column); observations are even, actions odd."""
    out = torch.zeros(length, length, dtype=torch.bool)
    for row in range(length):
        for column in range(length):
            later = column > row
            answer = inverse and row % 2 == 0 and column == row - 1
            out[row, column] = later or answer
    return out
