"""Facts about a policy's demonstrations: ranges of actions and proprioception, the task, and the control rate."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.data.statistics import Statistics
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import StateStore
from counterpoint.errors import require

ROUNDING = 1e-4
"""Tolerance for rounding errors of actions whose space is [-1, 1]."""


class Demonstrations(FrozenConfig):
    """The facts about its demonstrations that a policy stores.

    Attributes:
        count: Number of episodes.
        instruction: The instruction of all demonstrations; empty if they have several instructions.
        actions: Statistics of the A action dimensions.
        state: Statistics of the P state dimensions; `None` if there is no state.
        sources: Sources of the state in order, with the number of dimensions of each; empty means only the robot's
            `state`.
        fps: Actions per second; `None` if the rate is unknown or differs between demonstrations.
        frame: Height and width of the recorded images; `None` if they are unknown.
    """

    count: int
    instruction: str
    actions: Statistics
    state: Statistics | None = None
    sources: dict[str, int] = Field(default={})
    fps: float | None = None
    frame: tuple[int, int] | None = None

    @property
    def action_dim(self) -> int:
        """Number of action dimensions (A)."""
        return len(self.actions.mean)

    @property
    def state_dim(self) -> int:
        """Number of state dimensions (P); 0 without a state."""
        return len(self.state.mean) if self.state is not None else 0

    @classmethod
    def of(cls, store: EpisodeStore, frame: tuple[int, int] | None = None) -> Self:
        """Return the facts about a store; `frame` is the recorded image size, if the store's images are resized.

        Raises:
            BadInputError: If an episode has no actions, or other dimensions than the first episode.
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
            sources=store.sources if isinstance(store, StateStore) else {},
            fps=rates.pop() if len(rates) == 1 else None,
            frame=frame,
        )


def _whole(store: EpisodeStore, source: str) -> Array | None:
    """Return actions or state of all episodes, concatenated; `None` if no episode has state."""
    found: list[Array | None] = [getattr(store, source)(episode) for episode in range(len(store.episodes))]
    if source == "state" and all(part is None for part in found):
        return None
    first = next((part.shape[1] for part in found if part is not None), None)
    for episode, part in enumerate(found):
        found_here = f"no {source}" if part is None else f"{source} of {part.shape[1]} dimensions"
        expected = source + (f" of {first} dimensions, as in the others" if first else "")
        good, hint = part is not None and part.shape[1] == first, "leave it out, or use data of one robot"
        require(good, f"demonstration {episode}", found_here, expected, hint)
    return np.concatenate([part for part in found if part is not None])
