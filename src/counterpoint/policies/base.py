"""What a policy is to whoever rolls it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from counterpoint.data.episode import Array

__all__ = ["Policy"]


class Policy(Protocol):
    """Acts in many environments at once, each with a row of its own that keeps its history where there is one."""

    @property
    def stack(self) -> int:
        """S, the frames of an observation and camera."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Episodes begin in these rows.

        Args:
            rows: Which environments.
            seeds: One for each. What a policy draws at random in an episode depends on its seed alone, and not on the
                episodes beside it. Without them a policy numbers its episodes itself.
        """

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Whether the next `act` will look at each row's pictures; where it will not they may hold anything.

        A policy that executes several actions of a plan need not see what comes in between, and drawing is most of a
        simulation's work. State is always needed. The first observation after `reset` is always looked at.
        """

    def act(self, frames: Array, state: Array, rows: Sequence[int]) -> Array:
        """Actions for n of the rows.

        Args:
            frames: uint8 [n, S, H, W, 3], the oldest first; of C cameras [n, C S, H, W, 3], the first one's S first.
            state: float32 [n, P].
            rows: Which environments they come from.

        Returns:
            float32 [n, A] in [-1, 1].
        """
