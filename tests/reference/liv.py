"""LIV, one number at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.clip_goal import Vector, clip_goal_loss, cosine
from tests.reference.vip import dual_value_loss


def liv_loss(
    frames: Sequence[Sequence[Vector]],
    text: Sequence[Vector],
    rewards: Sequence[float],
    image_negatives: Sequence[Sequence[int]],
    text_negatives: Sequence[Sequence[int]],
    discount: float,
) -> float:
    images = [clip[1] for clip in frames]
    return (
        _value_loss(frames, images, rewards, image_negatives, discount)
        + _value_loss(frames, text, rewards, text_negatives, discount)
        + clip_goal_loss([clip[4] for clip in frames], text, 1.0)
    )


def _value_loss(
    frames: Sequence[Sequence[Vector]],
    goals: Sequence[Vector],
    rewards: Sequence[float],
    negatives: Sequence[Sequence[int]],
    discount: float,
) -> float:
    B = len(frames)

    def value(row: int, step: int, goal: int) -> float:
        return cosine(frames[row][step], goals[goal]) / (1 - discount)

    first, now, after = ([value(b, step, b) for b in range(B)] for step in (0, 2, 3))
    others = [(value(rows[b], 2, b), value(rows[b], 3, b)) for rows in negatives for b in range(B)]
    return dual_value_loss(first, now, after, rewards, others, discount)
