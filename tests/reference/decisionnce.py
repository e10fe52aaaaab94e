"""DecisionNCE as the paper writes it: Eq. 3 to 7, 24 and 25, one pair at a time. Differentiable, float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Reward = Callable[[Tensor, Tensor], Tensor]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def potential_reward(segment: Tensor, text: Tensor) -> Tensor:
    total = torch.zeros((), dtype=segment.dtype)
    for t in range(len(segment) - 1):
        total = total + (cosine(segment[t + 1], text) - cosine(segment[t], text))
    return total


def transition_reward(segment: Tensor, text: Tensor) -> Tensor:
    total = torch.zeros((), dtype=segment.dtype)
    for t in range(len(segment) - 1):
        total = total + cosine(segment[t + 1] - segment[t], text)
    return total


def decisionnce_loss(
    frames: Tensor, text: Tensor, reward: Reward, temperature: float, labels: Sequence[int] | None = None
) -> Tensor:
    B = len(frames)
    names = list(range(B)) if labels is None else list(labels)
    r = [[reward(frames[i], text[j]) / temperature for j in range(B)] for i in range(B)]
    total = torch.zeros((), dtype=frames.dtype)
    for i in range(B):
        alike = [j for j in range(B) if names[j] == names[i]]
        others = [j for j in range(B) if names[j] != names[i]]
        for j in alike:
            # Eq. 5, 7: this segment under its instruction against other segments under the same instruction,
            under_one_text = r[j][i].exp() + sum((r[k][i].exp() for k in others), start=torch.zeros(()))
            # and against the same segment under other instructions.
            of_one_segment = r[i][j].exp() + sum((r[i][k].exp() for k in others), start=torch.zeros(()))
            total = total - (r[j][i].exp() / under_one_text).log() / len(alike)
            total = total - (r[i][j].exp() / of_one_segment).log() / len(alike)
    return total / (2 * B)
