"""What a policy is cloned from, in numbers: what demonstrations say of actions, proprioception and the task."""

from __future__ import annotations

from typing import Self

import numpy as np

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.statistics import Statistics
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["Demonstrations"]

ROUNDING = 1e-4
"""Rounding errors of actions whose space is [-1, 1]."""


class Demonstrations(FrozenConfig):
    """What is kept of the demonstrations beside a policy.

    Attributes:
        count: Episodes.
        instruction: The one instruction they share; empty where they have several.
        actions: Of A dimensions.
        state: Of P dimensions of proprioception; `None` where there is none.
        fps: Actions a second; `None` where that is not known, or not the same everywhere.
        frame: Height and width that the pictures were recorded at; `None` where that is not known.
    """

    count: int
    instruction: str
    actions: Statistics
    state: Statistics | None = None
    fps: float | None = None
    frame: tuple[int, int] | None = None

    @property
    def action_dim(self) -> int:
        """A."""
        return len(self.actions.mean)

    @property
    def state_dim(self) -> int:
        """P; 0 without proprioception."""
        return len(self.state.mean) if self.state is not None else 0

    @classmethod
    def of(cls, store: EpisodeStore, frame: tuple[int, int] | None = None) -> Self:
        """Read from a store, whose pictures may be smaller than they were recorded (`frame`).

        Raises:
            BadInputError: An episode without actions, or with other dimensions than the first.
        """
        actions = _whole(store, "actions")
        assert actions is not None
        if np.abs(actions).max() <= 1 + ROUNDING:
            actions = actions.clip(-1, 1)
        state = _whole(store, "state")
        instructions = {info.instruction for info in store.episodes}
        rates = {info.fps for info in store.episodes}
        return cls(
            count=len(store.episodes),
            instruction=instructions.pop() if len(instructions) == 1 else "",
            actions=Statistics.of(actions),
            state=None if state is None else Statistics.of(state),
            fps=rates.pop() if len(rates) == 1 else None,
            frame=frame,
        )


def _whole(store: EpisodeStore, source: str) -> Array | None:
    """Actions or state of all episodes, end to end; `None` where no episode has state."""
    found: list[Array | None] = [getattr(store, source)(episode) for episode in range(len(store.episodes))]
    if source == "state" and all(part is None for part in found):
        return None
    first = next((part.shape[1] for part in found if part is not None), None)
    for episode, part in enumerate(found):
        if part is None or part.shape[1] != first:
            raise BadInputError(
                f"demonstration {episode}",
                f"no {source}" if part is None else f"{source} of {part.shape[1]} dimensions",
                f"{source}" + (f" of {first} dimensions, as in the others" if first else ""),
                "leave it out, or use demonstrations with logged actions of one robot",
            )
    return np.concatenate([part for part in found if part is not None])
