"""TD3 (Fujimoto et al., 2018) and TD3 + BC (Fujimoto & Gu, 2021), one transition at a time. Differentiable, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed(action: Tensor, noise: Tensor, scale: float, limit: float) -> Tensor:
    out = torch.zeros_like(action)
    for i in range(len(action)):
        for d in range(action.shape[1]):
            added = max(-limit, min(limit, scale * float(noise[i, d])))
            out[i, d] = max(-1.0, min(1.0, float(action[i, d]) + added))
    return out


def target(rewards: Tensor, next_values: Tensor, discount: float) -> Tensor:
    return torch.stack(
        [r + discount * torch.minimum(q[0], q[1]) for r, q in zip(rewards, next_values, strict=True)]
    ).detach()


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    total = torch.zeros((), dtype=values.dtype)
    for i in range(len(values)):
        total = total + (values[i, 0] - targets[i]) ** 2 + (values[i, 1] - targets[i]) ** 2
    return total / len(values)


def actor_loss(value: Tensor, action: Tensor, data_action: Tensor, alpha: float, mask: Tensor) -> Tensor:
    lam = alpha * len(value) / sum(abs(float(q.detach())) for q in value)
    gain = sum((q for q in value), start=torch.zeros((), dtype=value.dtype)) / len(value)
    apart, count = torch.zeros((), dtype=value.dtype), 0
    for i in range(len(action)):
        for d in range(action.shape[1]):
            if mask[i, d]:
                apart = apart + (action[i, d] - data_action[i, d]) ** 2
                count += 1
    return -lam * gain + apart / count
