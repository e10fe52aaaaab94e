"""VIP, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = Sequence[float]


def distance(a: Vector, b: Vector) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def dual_value_loss(
    first: Sequence[float],
    now: Sequence[float],
    after: Sequence[float],
    rewards: Sequence[float],
    others: Sequence[tuple[float, float]],
    discount: float,
) -> float:
    """The loss from values: `others` holds (V(o_t), V(o_{t+1})) of every negative of every row."""
    B = len(first)
    start = sum(-v for v in first) / B
    errors = [math.exp(-(rewards[b] + discount * after[b] - now[b])) for b in range(B)]
    loss = (1 - discount) * start + math.log(sum(errors) / B)
    if others:
        errors = [math.exp(-(-1 + discount * v_after - v_now)) for v_now, v_after in others]
        loss += math.log(sum(errors) / len(others))
    return loss


def vip_loss(
    frames: Sequence[Sequence[Vector]],
    rewards: Sequence[float],
    negatives: Sequence[Sequence[int]],
    discount: float,
    l1_weight: float,
    l2_weight: float,
) -> float:
    B = len(frames)
    first, now, after = ([-distance(frames[b][step], frames[b][1]) for b in range(B)] for step in (0, 2, 3))
    others = [
        (-distance(frames[rows[b]][2], frames[b][1]), -distance(frames[rows[b]][3], frames[b][1]))
        for rows in negatives
        for b in range(B)
    ]
    used = [vector for clip in frames for vector in clip[:4]]
    l1 = sum(sum(abs(x) for x in vector) for vector in used) / len(used)
    l2 = sum(distance(vector, [0.0] * len(vector)) for vector in used) / len(used)
    return dual_value_loss(first, now, after, rewards, others, discount) + l1_weight * l1 + l2_weight * l2
