"""From chunks of actions to one action a step, in many environments whose episodes begin at different times.

A policy that predicts K actions at once makes a plan now and then. `RecedingHorizon` executes the first few of each
(Chi et al., "Diffusion Policy", RSS 2023, section IV.C); `TemporalEnsemble` plans at every step and averages what all
plans say of it (Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023, section
IV.A). Both serve any policy, in four lines a step:

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
from counterpoint.errors import BadInputError

__all__ = ["ActionChunks", "RecedingHorizon", "TemporalEnsemble"]


class ActionChunks(Protocol):
    """Holds the plans of rows, which are numbers from 0 on."""

    def reset(self, rows: Sequence[int]) -> None:
        """Episodes begin in these rows: their plans are forgotten."""

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Actions that each row can take before it needs a plan: [n]."""

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """New plans [m, K, A] of these rows; a plan's first action is the one to be taken next."""

    def take(self, rows: Sequence[int]) -> Array:
        """The next action of each row, float32 [n, A].

        Raises:
            BadInputError: A row without a plan.
        """


class RecedingHorizon:
    """Executes the first few actions of a plan, then asks for another.

    Args:
        executed: How many; 8 in Diffusion Policy.

    Raises:
        BadInputError: Fewer than one.
    """

    def __init__(self, executed: int = 8) -> None:
        if executed < 1:
            raise BadInputError("executed", f"{executed}", "1 or more", "8 is usual")
        self.executed = executed
        self._plans = np.zeros((0, 0, 0), np.float32)  # [R, executed, A]
        self._left = np.zeros(0, np.int64)

    def reset(self, rows: Sequence[int]) -> None:
        """Episodes begin in these rows."""
        self._left = _wide_enough(self._left, rows)
        self._left[list(rows)] = 0

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Actions of its plan that each row has not taken yet: [n]."""
        self._left = _wide_enough(self._left, rows)
        found: NDArray[np.int64] = self._left[list(rows)]
        return found

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """New plans [m, K, A].

        Raises:
            BadInputError: Plans shorter than what is executed of them.
        """
        if plans.shape[1] < self.executed:
            raise BadInputError(
                "executed",
                f"{self.executed} of plans of {plans.shape[1]} actions",
                "no more than a plan holds",
                "execute fewer, or plan further ahead",
            )
        if self._plans.shape[2] != plans.shape[2]:
            self._plans = np.zeros((0, self.executed, plans.shape[2]), np.float32)
        self._plans = _wide_enough(self._plans, rows)
        self._left = _wide_enough(self._left, rows)
        self._plans[list(rows)] = plans[:, : self.executed]
        self._left[list(rows)] = self.executed

    def take(self, rows: Sequence[int]) -> Array:
        """The next action of each row's plan: float32 [n, A]."""
        left = self.left(rows)
        _check_planned(left > 0, rows)
        actions: Array = self._plans[list(rows), self.executed - left]
        self._left[list(rows)] -= 1
        return actions


class TemporalEnsemble:
    """Averages everything that was planned for this step; asks for a plan at every step.

    The i-th oldest of the predictions weighs exp(-decay i), i from 0: the oldest most. Which of the predictions of a
    step is how old is known when it arrives, so that their weighted sum grows by one term a plan: work and memory are
    those of one plan, where a table of all plans needs K times as much.

    Args:
        decay: m; 0.01 in ACT. 0 is the mean.

    Raises:
        BadInputError: A negative or infinite decay.
    """

    def __init__(self, decay: float = 0.01) -> None:
        if not 0 <= decay < float("inf"):
            raise BadInputError("decay", f"{decay}", "0 or more", "0.01 is ACT's")
        self.decay = decay
        # For the K steps from the next one on: sum of weighted predictions, of weights, and their count.
        self._sum = np.zeros((0, 0, 0))  # [R, K, A]
        self._weight = np.zeros((0, 0))
        self._count = np.zeros((0, 0), np.int64)

    def reset(self, rows: Sequence[int]) -> None:
        """Episodes begin in these rows."""
        self._widen(rows)
        for part in (self._sum, self._weight, self._count):
            part[list(rows)] = 0

    def left(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """0: every step has a plan of its own."""
        return np.zeros(len(rows), np.int64)

    def give(self, rows: Sequence[int], plans: Array) -> None:
        """New plans [m, K, A], K and A as ever."""
        if self._sum.shape[1:] != plans.shape[1:]:
            _, K, A = plans.shape
            self._sum, self._weight = np.zeros((0, K, A)), np.zeros((0, K))
            self._count = np.zeros((0, K), np.int64)
        self._widen(rows)
        index = list(rows)
        weight = np.exp(-self.decay * self._count[index])
        self._sum[index] += weight[..., None] * plans
        self._weight[index] += weight
        self._count[index] += 1

    def take(self, rows: Sequence[int]) -> Array:
        """The mean of what was planned for this step: float32 [n, A]."""
        self._widen(rows)
        index = list(rows)
        planned = np.asarray(self._count[index, :1].any(1))
        _check_planned(planned, rows)
        actions = self._sum[index, 0] / self._weight[index, 0, None]
        for part in (self._sum, self._weight, self._count):
            part[index, :-1] = part[index, 1:]
            part[index, -1] = 0
        return np.asarray(actions, np.float32)

    def _widen(self, rows: Sequence[int]) -> None:
        self._sum = _wide_enough(self._sum, rows)
        self._weight = _wide_enough(self._weight, rows)
        self._count = _wide_enough(self._count, rows)


def _wide_enough(values: Array, rows: Sequence[int]) -> Array:
    """`values` [R, ...] with a row for every number in `rows`, new ones zero."""
    missing = max(rows, default=-1) + 1 - len(values)
    if missing <= 0:
        return values
    return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])


def _check_planned(planned: NDArray[np.bool_], rows: Sequence[int]) -> None:
    if not planned.all():
        raise BadInputError(
            f"row {rows[int(np.argmin(planned))]}",
            "no plan for this step",
            "one, wherever left(rows) is 0",
            "give(rows, plans) first",
        )
