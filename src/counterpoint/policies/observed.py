"""What a policy that plans remembers of an episode: the newest observations it looked at, and how often it planned."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.episode import Array

__all__ = ["Episode", "Moment"]


@dataclass(slots=True)
class Moment:
    """An observation that was looked at; encoded when the first plan needs it.

    Attributes:
        frames: uint8 [C, h, w, 3], cropped.
        state: float32 [P].
        condition: [O], once it is encoded.
    """

    frames: Array
    state: Array
    condition: Tensor | None = None


class Episode:
    """The newest To moments, and the noise of plans.

    Args:
        seed: Of the episode.
        steps: To.
    """

    def __init__(self, seed: int, steps: int) -> None:
        self._seed, self._steps, self._plans = seed, steps, 0
        self.moments: deque[Moment] = deque(maxlen=steps)

    def see(self, moment: Moment) -> None:
        """The newest; before the first of an episode lies the first itself."""
        self.moments.extend([moment] * (1 if self.moments else self._steps))

    def condition(self) -> Float[Tensor, "To O"]:
        """All moments, encoded, the oldest first."""
        return torch.stack([moment.condition for moment in self.moments if moment.condition is not None])

    def next_generator(self) -> torch.Generator:
        """Of the next plan's noise: a function of the episode's seed and the plan's number."""
        mixed = np.random.SeedSequence([self._seed % 2**64, self._plans]).generate_state(1, np.uint64)
        self._plans += 1
        return torch.Generator().manual_seed(int(mixed[0]))
