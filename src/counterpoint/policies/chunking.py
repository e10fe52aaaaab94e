"""Turn chunks of actions into one action per step, in many environments whose episodes begin at different times.

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

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import require


class ActionChunks:
    """Base of the plans of rows, which are numbers from 0 on."""

    def __init__(self) -> None:
        self._plans: dict[int, list[Array]] = {}

    def reset(self, rows: Sequence[int]) -> None:
        """Forget the plans of these rows, whose episodes begin."""
        for row in rows:
            self._plans.pop(row, None)

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return the number of actions [n] that each row has left before it needs a new plan."""
        raise NotImplementedError

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """Store new plans [m, K, A] of these rows; a plan's first action is the next to be taken."""
        raise NotImplementedError

    def take(self, rows: Sequence[int]) -> Array:
        """Return the next action of each row, float32 [n, A].

        Raises:
            BadInputError: A row without a plan.
        """
        for row in rows:
            hint = "give(rows, plans) first"
            require(self._plans.get(row), f"row {row}", "no plan for this step", "one, wherever left(rows) is 0", hint)
        return np.array([self._next(row) for row in rows], np.float32)

    def _next(self, row: int) -> Array:
        raise NotImplementedError


class RecedingHorizon(ActionChunks):
    """A queue that executes the first actions of a plan before the next plan.

    Args:
        executed: The number of actions that are executed; 8 in Diffusion Policy.
    """

    def __init__(self, executed: int = 8) -> None:
        super().__init__()
        require(executed >= 1, "executed", executed, "1 or more", "8 is usual")
        self.executed = executed

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """See `ActionChunks`."""
        return np.array([len(self._plans.get(row, ())) for row in rows], np.int64)

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """See `ActionChunks`; plans hold at least the executed actions."""
        found = f"{self.executed} of plans of {plans.shape[1]} actions"
        require(plans.shape[1] >= self.executed, "executed", found, "no more than a plan holds", "plan further ahead")
        self._plans |= {row: list(plan[: self.executed]) for row, plan in zip(rows, plans, strict=True)}

    def _next(self, row: int) -> Array:
        return self._plans[row].pop(0)


class TemporalEnsemble(ActionChunks):
    """A weighted mean of all predictions of a step, with a plan at every step.

    The i-th oldest prediction has the weight exp(-decay i), i from 0, so that the oldest weighs most.

    Args:
        decay: m; 0.01 in ACT. 0 is the mean.
        length: Actions of each plan that count, from its first; all by default. 8 in ICon.
    """

    def __init__(self, decay: float = 0.01, length: int | None = None) -> None:
        super().__init__()
        require(0 <= decay < float("inf"), "decay", decay, "0 or more", "0.01 is ACT's")
        require(length is None or length >= 1, "length", length, "1 or more", "leave it out for whole plans")
        self.decay, self.length = decay, length

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return 0: every step has its own plan."""
        return np.zeros(len(rows), np.int64)

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """See `ActionChunks`."""
        for row, plan in zip(rows, plans, strict=True):
            self._plans.setdefault(row, []).append(plan[: self.length])

    def _next(self, row: int) -> Array:
        plans = self._plans[row]  # the oldest first, each from this step on
        self._plans[row] = [plan[1:] for plan in plans if len(plan) > 1]
        weights = np.exp(-self.decay * np.arange(len(plans)))
        return np.average([plan[0] for plan in plans], axis=0, weights=weights)
