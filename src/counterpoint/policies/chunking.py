"""From chunks of actions to one action a step, in many environments whose episodes begin at different times.

A policy that predicts K actions at once plans now and then. `RecedingHorizon` executes the first few of each plan
(Chi et al., "Diffusion Policy", RSS 2023, section IV.C); `TemporalEnsemble` plans at every step and averages all
predictions of that step (Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023,
section IV.A). Both serve any policy:

    due = [row for row, left in zip(rows, chunks.left(rows)) if left == 0]
    if due:
        chunks.give(due, plan(due))  # [m, K, A]
    actions = chunks.take(rows)  # [n, A]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import require


class ActionChunks(Protocol):
    """The plans of rows, which are numbers from 0 on."""

    def reset(self, rows: Sequence[int]) -> None:
        """Forget the plans of these rows: their episodes begin."""

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return the actions [n] that each row can take before it needs a plan."""

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """Store new plans [m, K, A] of these rows; a plan's first action is the next to be taken."""

    def take(self, rows: Sequence[int]) -> Array:
        """Return the next action of each row, float32 [n, A].

        Raises:
            BadInputError: A row without a plan.
        """


class RecedingHorizon:
    """Executes the first actions of a plan before the next plan.

    Args:
        executed: Their number; 8 in Diffusion Policy.
    """

    def __init__(self, executed: int = 8) -> None:
        require(executed >= 1, "executed", executed, "1 or more", "8 is usual")
        self.executed = executed
        self._plans = np.zeros((0, 0, 0), np.float32)  # [R, executed, A]
        self._left = np.zeros(0, np.int64)

    def reset(self, rows: Sequence[int]) -> None:
        """See `ActionChunks`."""
        self._left = _wide_enough(self._left, rows)
        self._left[list(rows)] = 0

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """See `ActionChunks`."""
        self._left = _wide_enough(self._left, rows)
        found: NDArray[np.int64] = self._left[list(rows)]
        return found

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """See `ActionChunks`; plans hold at least the executed actions."""
        found = f"{self.executed} of plans of {plans.shape[1]} actions"
        require(plans.shape[1] >= self.executed, "executed", found, "no more than a plan holds", "plan further ahead")
        if self._plans.shape[2] != plans.shape[2]:
            self._plans = np.zeros((0, self.executed, plans.shape[2]), np.float32)
        self._plans, self._left = _wide_enough(self._plans, rows), _wide_enough(self._left, rows)
        self._plans[list(rows)] = plans[:, : self.executed]
        self._left[list(rows)] = self.executed

    def take(self, rows: Sequence[int]) -> Array:
        """See `ActionChunks`."""
        left = self.left(rows)
        _check_planned(left > 0, rows)
        actions: Array = self._plans[list(rows), self.executed - left]
        self._left[list(rows)] -= 1
        return actions


class TemporalEnsemble:
    """Averages all predictions of a step, with a plan at every step.

    The i-th oldest prediction weighs exp(-decay i), i from 0: the oldest most. The age of a prediction is known when
    it arrives, so the weighted sum grows by one term a plan; work and memory are those of one plan.

    Args:
        decay: m; 0.01 in ACT. 0 is the mean.
    """

    def __init__(self, decay: float = 0.01) -> None:
        require(0 <= decay < float("inf"), "decay", decay, "0 or more", "0.01 is ACT's")
        self.decay = decay
        # Of the K steps from the next one on: sums of weighted predictions, of weights, and counts.
        self._parts: list[Array] = [np.zeros((0, 0, 0)), np.zeros((0, 0)), np.zeros((0, 0), np.int64)]

    def reset(self, rows: Sequence[int]) -> None:
        """See `ActionChunks`."""
        for part in self._widened(rows):
            part[list(rows)] = 0

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return 0: every step has its own plan."""
        return np.zeros(len(rows), np.int64)

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """See `ActionChunks`; K and A never change."""
        if self._parts[0].shape[1:] != plans.shape[1:]:
            _, K, A = plans.shape
            self._parts = [np.zeros((0, K, A)), np.zeros((0, K)), np.zeros((0, K), np.int64)]
        index, (total, weights, count) = list(rows), self._widened(rows)
        weight = np.exp(-self.decay * count[index])
        total[index] += weight[..., None] * plans
        weights[index] += weight
        count[index] += 1

    def take(self, rows: Sequence[int]) -> Array:
        """See `ActionChunks`."""
        index, (total, weights, count) = list(rows), self._widened(rows)
        _check_planned(np.asarray(count[index, :1].any(1)), rows)
        actions = total[index, 0] / weights[index, 0, None]
        for part in self._parts:
            part[index, :-1] = part[index, 1:]
            part[index, -1] = 0
        return np.asarray(actions, np.float32)

    def _widened(self, rows: Sequence[int]) -> list[Array]:
        self._parts = [_wide_enough(part, rows) for part in self._parts]
        return self._parts


def _wide_enough(values: Array, rows: Sequence[int]) -> Array:
    """Return `values` [R, ...] with a row for every number in `rows`, new ones zero."""
    missing = max(rows, default=-1) + 1 - len(values)
    if missing <= 0:
        return values
    return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])


def _check_planned(planned: NDArray[np.bool_], rows: Sequence[int]) -> None:
    if not planned.all():
        where = f"row {rows[int(np.argmin(planned))]}"
        require(False, where, "no plan for this step", "one, wherever left(rows) is 0", "give(rows, plans) first")
