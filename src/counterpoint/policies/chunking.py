"""Turn chunks of actions into one action per step, in many environments whose episodes begin at different times.

A chunk or plan is K actions that a policy predicts at once. `RecedingHorizon` executes the first few actions of each
plan (Chi et al., "Diffusion Policy", RSS 2023, section IV.C). `TemporalEnsemble` plans at every step and averages all
predictions for that step (Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023,
section IV.A). Both can be used with any policy:

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
    """Base class for the plans of environments. Each environment is a row, with a number from 0."""

    def __init__(self) -> None:
        self._plans: dict[int, list[Array]] = {}

    def reset(self, rows: Sequence[int]) -> None:
        """Delete the plans of these rows, because new episodes begin."""
        for row in rows:
            self._plans.pop(row, None)

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return the number of actions [n] that each row has left before it needs a new plan."""
        raise NotImplementedError

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """Store new plans [m, K, A] of these rows; a plan's first action is the next one to take."""
        raise NotImplementedError

    def take(self, rows: Sequence[int]) -> Array:
        """Return the next action of each row, float32 [n, A].

        Raises:
            BadInputError: If a row has no plan.
        """
        for row in rows:
            hint = "give(rows, plans) first"
            require(self._plans.get(row), f"row {row}", "no plan for this step", "one, wherever left(rows) is 0", hint)
        return np.array([self._next(row) for row in rows], np.float32)

    def _next(self, row: int) -> Array:
        raise NotImplementedError


class RecedingHorizon(ActionChunks):
    """Executes the first actions of each plan, then asks for the next plan.

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
        """See `ActionChunks`; plans must have at least the number of executed actions."""
        found = f"{self.executed} of plans of {plans.shape[1]} actions"
        require(plans.shape[1] >= self.executed, "executed", found, "no more than a plan holds", "plan further ahead")
        self._plans |= {row: list(plan[: self.executed]) for row, plan in zip(rows, plans, strict=True)}

    def _next(self, row: int) -> Array:
        return self._plans[row].pop(0)


class TemporalEnsemble(ActionChunks):
    """Plans at every step, and executes a weighted mean of all predictions for the current step.

    The i-th oldest prediction has the weight exp(-decay i), i from 0, so that the oldest has the largest weight.

    Args:
        decay: Decay of the weights (m in ACT, where it is 0.01); 0 gives the unweighted mean.
        length: Number of actions used from each plan, counted from its first action; by default all. ICon uses 8.
    """

    def __init__(self, decay: float = 0.01, length: int | None = None) -> None:
        super().__init__()
        require(0 <= decay < float("inf"), "decay", decay, "0 or more", "0.01 is ACT's")
        require(length is None or length >= 1, "length", length, "1 or more", "leave it out for whole plans")
        self.decay, self.length = decay, length

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return 0, since every step needs a new plan."""
        return np.zeros(len(rows), np.int64)

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """See `ActionChunks`."""
        for row, plan in zip(rows, plans, strict=True):
            self._plans.setdefault(row, []).append(plan[: self.length])

    def _next(self, row: int) -> Array:
        plans = self._plans[row]  # the oldest first, each starting at this step
        self._plans[row] = [plan[1:] for plan in plans if len(plan) > 1]
        weights = np.exp(-self.decay * np.arange(len(plans)))
        return np.average([plan[0] for plan in plans], axis=0, weights=weights)
