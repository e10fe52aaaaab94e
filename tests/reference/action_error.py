"""Errors of predicted actions, one number at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def action_error(predicted: Tensor, actions: Tensor, mask: Tensor, scored: Tensor | None = None) -> Tensor:
    """Of [B, A], or of [B, T, A] with `scored` [B, T]."""
    if predicted.ndim == 2:
        predicted, actions = predicted[:, None], actions[:, None]
    total, count = torch.zeros((), dtype=predicted.dtype), 0
    for i in range(len(predicted)):
        for t in range(predicted.shape[1]):
            if scored is not None and not scored[i, t]:
                continue
            for d in range(predicted.shape[2]):
                if mask[i, d]:
                    total = total + (predicted[i, t, d] - actions[i, t, d]) ** 2
                    count += 1
    return total / count


def mean_action(actions: Tensor, mask: Tensor) -> Tensor:
    """Of [B, A]: the mean of each dimension over the rows whose own it is."""
    columns = []
    for d in range(actions.shape[1]):
        own = [actions[i, d] for i in range(len(actions)) if mask[i, d]]
        columns.append(torch.stack(own).mean() if own else torch.zeros((), dtype=actions.dtype))
    return torch.stack(columns)
