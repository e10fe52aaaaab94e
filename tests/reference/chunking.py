"""Action chunks by plain loops: one environment, a table of everything that was ever planned for every step."""

from __future__ import annotations

import math
from collections.abc import Sequence

Plan = Sequence[Sequence[float]]  # [K][A]


def temporal_ensemble(plans: Sequence[Plan], decay: float) -> list[list[float]]:
    """The action of each step when plan t was made at step t: ACT's Algorithm 2.

    a_t = sum_i w_i a_t^(i) / sum_i w_i with w_i = exp(-m i), i = 0 the oldest of the predictions of step t.
    """
    actions = []
    for t in range(len(plans)):
        predictions = []
        for made in range(t + 1):
            ahead = t - made
            if ahead < len(plans[made]):
                predictions.append(plans[made][ahead])
        weights = [math.exp(-decay * i) for i in range(len(predictions))]
        actions.append(
            [
                sum(w * prediction[a] for w, prediction in zip(weights, predictions, strict=True)) / sum(weights)
                for a in range(len(plans[0][0]))
            ]
        )
    return actions


def receding_horizon(plans: Sequence[Plan], executed: int) -> list[list[float]]:
    """The action of each step when plan t could be made at step t, and every `executed`-th is."""
    return [list(plans[t - t % executed][t % executed]) for t in range(len(plans))]
