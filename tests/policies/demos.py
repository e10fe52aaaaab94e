"""Demonstrations of walking a square to the middle: the action says how far it still is."""

from __future__ import annotations

import numpy as np
import torch

from counterpoint.data.episode import Array, Episode
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.dual import SentenceTower

__all__ = ["SAVED", "demonstrations", "observed", "spelled"]

SAVED = {"README.md", "SHA256SUMS", "config.json", "model.safetensors"}
"""The files of a saved policy."""

SIDE = 6  # of the square, in pixels


def spelled(tower: SentenceTower, text: str) -> torch.Tensor:
    """A stand-in for `SentenceTower.embed` that loads no language model: letters counted, at unit length."""
    counts = torch.zeros(tower.projection.in_features)
    counts.index_add_(0, torch.tensor([ord(letter) % 128 for letter in text]), torch.ones(len(text)))
    unit: torch.Tensor = counts / counts.norm()
    return unit


def demonstrations(
    count: int = 4,
    *,
    size: int = 24,
    length: int = 12,
    action_dim: int = 2,
    state_dim: int = 3,
    tasks: int = 1,
    seed: int = 0,
) -> MemoryStore:
    """Episodes whose first two action dimensions point to the middle; any others are 0.

    The proprioception is noise around 5 with a last dimension that stands still, so that it has to be normalised.
    """
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        place = rng.uniform(0, size - SIDE, 2)
        frames = np.full((length, size, size, 3), 60, np.uint8)
        actions = np.zeros((length, action_dim), np.float32)
        for step in range(length):
            x, y = np.rint(place).astype(int)
            frames[step, y : y + SIDE, x : x + SIDE] = (255, 128, 0)
            actions[step, :2] = ((size - SIDE) / 2 - place) / size
            place = place + size / 6 * actions[step, :2]
        state = rng.normal(5, 2, (length, state_dim)).astype(np.float32)
        state[:, -1:] = 7
        made.append(
            Episode(
                frames={"front": frames},
                instruction=f"centre the square {number % tasks}",
                timestamps=np.arange(length) / 10,
                actions=actions,
                state=state,
                success=True,
            )
        )
    return MemoryStore(made)


def observed(frames: Array, state: Array) -> dict[str, Array]:
    """The observations of n rows: frames [n, C, H, W, 3] of one camera or two, and state [n, P]."""
    cameras = {name: frames[:, number] for number, name in enumerate(("front", "wrist")[: frames.shape[1]])}
    return {**cameras, "state": state}
