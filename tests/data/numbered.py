"""Episodes whose frames, actions and rewards tell where they are from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore

__all__ = ["numbered_store"]


def numbered_store(
    lengths: Sequence[int],
    *,
    action_dim: int = 2,
    size: int = 4,
    instructions: Sequence[str] = ("one", "two"),
    rewards: bool = True,
) -> MemoryStore:
    """Episode e, step t: red is e, green is t; actions, state and reward are 100 e + t (+ a tenth a dimension)."""
    episodes = []
    for e, length in enumerate(lengths):
        steps = np.arange(length)
        frames = np.zeros((length, size, size, 3), np.uint8)
        frames[..., 0], frames[..., 1] = e, steps[:, None, None]
        value = (100 * e + steps).astype(np.float32)
        episodes.append(
            Episode(
                frames={"front": frames, "back": 255 - frames},
                instruction=instructions[e % len(instructions)],
                timestamps=steps / 10,
                actions=value[:, None] + np.arange(action_dim, dtype=np.float32) / 10,
                state=value[:, None] + np.arange(3, dtype=np.float32) / 10,
                rewards=value if rewards else None,
            )
        )
    return MemoryStore(episodes)
