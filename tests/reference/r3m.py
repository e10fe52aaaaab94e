"""R3M, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.reference.vip import Vector, distance

Clips = Sequence[Sequence[Vector]]
Rows = Sequence[Sequence[Sequence[int]]]


def time_contrastive_loss(ordered: Clips, negatives: Rows) -> float:
    """`negatives[n][0][b]` lends its s_0 and `negatives[n][1][b]` its s_2 to row b."""
    total = 0.0
    for b, (s0, s1, s2) in enumerate(ordered):
        late = [-distance(s2, s1), -distance(s2, s0)] + [-distance(s2, ordered[n[1][b]][2]) for n in negatives]
        early = [-distance(s0, s1), -distance(s0, s2)] + [-distance(s0, ordered[n[0][b]][0]) for n in negatives]
        total += (_minus_log_share(late) + _minus_log_share(early)) / 2
    return total / len(ordered)


def language_loss(
    reward: Callable[[Vector, Vector, Vector], float],
    frames: Clips,
    text: Sequence[Vector],
    negatives: Rows,
    has_text: Sequence[bool],
) -> float:
    """`negatives[n][k][b]` lends its (o_0, later frame of pair k) to row b."""
    total = 0.0
    for b, (first, goal, s0, s1, s2) in enumerate(frames):
        for k, (later, earlier) in enumerate([(goal, first), (s1, s0), (s2, s1)]):
            candidates = [reward(first, later, text[b]), reward(first, earlier, text[b])]
            for n in negatives:
                other = frames[n[k][b]]
                candidates.append(reward(other[0], other[(1, 3, 4)[k]], text[b]))
            total += _minus_log_share(candidates) / 3 if has_text[b] else 0.0
    return total / len(frames)


def norms(frames: Clips, order: int) -> float:
    values = [
        sum(abs(x) for x in v) if order == 1 else math.sqrt(sum(x * x for x in v)) for clip in frames for v in clip
    ]
    return sum(values) / len(values)


def _minus_log_share(candidates: Sequence[float]) -> float:
    return -math.log(math.exp(candidates[0]) / sum(math.exp(c) for c in candidates))
