"""Losses of the goal-reaching baselines, one number at a time."""

from __future__ import annotations

import itertools
import math


def softplus(x: float, beta: float = 1.0) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(beta * x))) / beta


def interval_union(start: list[float], end: list[float]) -> float:
    """Length of the union: every elementary segment between end points, counted where some interval covers it."""
    intervals = [(u, max(u, v)) for u, v in zip(start, end, strict=True)]
    points = sorted({point for interval in intervals for point in interval})
    total = 0.0
    for left, right in itertools.pairwise(points):
        middle = (left + right) / 2
        if any(u <= middle <= v for u, v in intervals):
            total += right - left
    return total


def quasimetric(start: list[float], end: list[float], components: int, share: float) -> float:
    width = len(start) // components
    lengths = [
        interval_union(start[c * width : (c + 1) * width], end[c * width : (c + 1) * width]) for c in range(components)
    ]
    return share * max(lengths) + (1 - share) * sum(lengths) / components


def push_loss(distances: list[float], offset: float, beta: float) -> float:
    return sum(softplus(offset - d, beta) for d in distances) / len(distances)


def excess(distances: list[float], cost: float) -> float:
    return sum(max(d - cost, 0.0) ** 2 for d in distances) / len(distances)


def hindsight_rewards(next_goals: list[list[float]], goals: list[list[float]], success_distance: float) -> list[float]:
    return [0.0 if math.dist(a, b) <= success_distance else -1.0 for a, b in zip(next_goals, goals, strict=True)]


def clipped_targets(rewards: list[float], values: list[float], discount: float) -> list[float]:
    return [min(0.0, max(-1 / (1 - discount), r + discount * v)) for r, v in zip(rewards, values, strict=True)]


def td3_bc_actor_loss(values: list[float], actions: list[list[float]], data: list[list[float]], alpha: float) -> float:
    B, A = len(values), len(actions[0])
    weight = alpha / (sum(abs(value) for value in values) / B)
    total = 0.0
    for value, action, done in zip(values, actions, data, strict=True):
        total += -weight * value / B
        total += sum((a - d) ** 2 for a, d in zip(action, done, strict=True)) / (B * A)
    return total


def expectile_loss(gaps: list[float], expectile: float) -> float:
    return sum((expectile if gap > 0 else 1 - expectile) * gap**2 for gap in gaps) / len(gaps)


def advantage_weights(advantages: list[float], temperature: float, largest: float) -> list[float]:
    return [min(math.exp(temperature * advantage), largest) for advantage in advantages]


def sequence_loss(
    predicted: list[list[list[float]]], actions: list[list[list[float]]], valid: list[list[bool]]
) -> float:
    total, count = 0.0, 0
    for p_row, a_row, v_row in zip(predicted, actions, valid, strict=True):
        for p, a, v in zip(p_row, a_row, v_row, strict=True):
            if v:
                total += sum((x - y) ** 2 for x, y in zip(p, a, strict=True)) / len(a)
                count += 1
    return total / count
