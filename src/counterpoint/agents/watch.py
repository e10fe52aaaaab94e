"""A watch for losses that blow up, which does not make every update wait for a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from counterpoint.training.learner import NonFiniteError

__all__ = ["Watch"]


class Watch:
    """Raises when a loss is not finite: at once on a CPU; on a GPU, where a look must wait, now and then.

    Args:
        every: Updates between two looks at a GPU.
    """

    def __init__(self, every: int = 100) -> None:
        self.every, self._seen, self._sum = every, 0, torch.zeros(())
        self._latest: dict[str, Tensor] = {}

    def __call__(self, losses: Mapping[str, Tensor]) -> None:
        """Note the losses of one update, and look when it is time.

        Raises:
            NonFiniteError: Naming each loss and its value.
        """
        self._latest = {name: loss.detach() for name, loss in losses.items()}
        on_cpu = next(iter(self._latest.values())).device.type == "cpu"
        # A sum stays NaN or infinite once it is.
        self._sum = sum(self._latest.values(), torch.zeros(())) + (0 if on_cpu else self._sum)
        self._seen += 1
        if on_cpu or self._seen % self.every == 0:
            self.look()

    def look(self) -> None:
        """Wait for the losses noted so far.

        Raises:
            NonFiniteError: When one of them was not finite; naming the latest ones and their values.
        """
        if not bool(torch.isfinite(self._sum)):
            self._sum = torch.zeros(())
            told = ", ".join(f"{name} = {value.item():g}" for name, value in self._latest.items())
            raise NonFiniteError(f"a loss is not finite: {told}")
