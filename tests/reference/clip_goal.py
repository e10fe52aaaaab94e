"""Symmetric InfoNCE of cosines, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = Sequence[float]


def cosine(a: Vector, b: Vector) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def clip_goal_loss(frames: Sequence[Vector], text: Sequence[Vector], temperature: float) -> float:
    B = len(frames)
    logits = [[cosine(frames[i], text[j]) / temperature for j in range(B)] for i in range(B)]
    rows = columns = 0.0
    for b in range(B):
        rows += -math.log(math.exp(logits[b][b]) / sum(math.exp(logits[b][j]) for j in range(B)))
        columns += -math.log(math.exp(logits[b][b]) / sum(math.exp(logits[i][b]) for i in range(B)))
    return (rows / B + columns / B) / 2
