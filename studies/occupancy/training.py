"""Training of tables for the occupancy study: Adam on many data sets and step sizes in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from studies.occupancy.data import Counted
from studies.occupancy.draws import Batch, future_batches, successor_batches
from studies.occupancy.methods import METHODS, Gradients, estimate

SCHEDULES = ("constant", "decayed")
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A setting of the optimiser.

    Attributes:
        learning_rate: Adam's learning rate at the first step.
        schedule: "constant", or "decayed" (linearly to 0 at the last step).
    """

    learning_rate: float
    schedule: str


class Adam:
    """Adam (Kingma and Ba, 2015; betas 0.9 and 0.999, epsilon 1e-8) with a step size for each setting.

    Every entry is updated at every step, even if it was not drawn, as by a dense optimiser of an embedding table.

    Args:
        table: The table, [R, P, L * S], which is changed in place.
        settings: L settings.
        steps: Number of steps.
    """

    def __init__(self, table: Float[Tensor, "R P L*S"], settings: Sequence[Setting], steps: int) -> None:
        self.table, self.steps, self.done = table, steps, 0
        self._first, self._second = torch.zeros_like(table), torch.zeros_like(table)
        self._scratch = torch.empty_like(table)
        width = table.shape[-1] // len(settings)
        self._rates = torch.tensor([s.learning_rate for s in settings], dtype=table.dtype).repeat_interleave(width)
        decayed = torch.tensor([s.schedule == "decayed" for s in settings], dtype=table.dtype)
        self._decay = decayed.repeat_interleave(width)

    def step(self, gradient: Float[Tensor, "R P L*S"]) -> None:
        """Take one step."""
        rates = self._rates * (1 - self._decay * (self.done / self.steps))
        self.done += 1
        self._first.lerp_(gradient, 1 - 0.9)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = (1 - 0.999**self.done) ** 0.5
        size = torch.sqrt(self._second, out=self._scratch).add_(1e-8 * root)
        direction = torch.div(self._first, size, out=size)
        self.table.addcmul_(direction, rates * (-root / (1 - 0.9**self.done)))


def checkpoints(steps: int, count: int = 24) -> list[int]:
    """Return the steps after which the error is measured, evenly spaced on a logarithmic scale up to the last one."""
    first = min(100, steps)
    return sorted({round(x) for x in np.geomspace(first, steps, count)})


def train(
    method: str,
    data: Sequence[Counted],
    truth: Float[Reals, "P S"],
    settings: Sequence[Setting],
    *,
    discount: float,
    steps: int,
    size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> dict[str, list[object]]:
    """Train on sampled batches, with R data sets and L settings in parallel.

    Args:
        method: A key of `METHODS`.
        data: R data sets.
        truth: p(s+ | s, a).
        settings: L settings.
        discount: gamma.
        steps: Number of gradient steps.
        size: Batch size, N.
        seed: Random seed of the batches.
        dtype: Type of the tables.

    Returns:
        `steps`, the checkpoints; `error` and `error_normalised`, the mean |p_hat - p| as
        [checkpoint][data set][setting].
    """
    tail = METHODS[method].tail
    if tail is None:
        batches = successor_batches(data, steps, size, seed=seed, dtype=dtype)
        marginal = np.stack([one.marginal() for one in data])
    else:
        batches = future_batches(data, steps, size, tail=tail, seed=seed, dtype=dtype)
        marginal = np.stack([one.futures[tail].sum(axis=0) for one in data])
    gradients = Gradients(
        discount=discount,
        settings=len(settings),
        pair_states=torch.from_numpy(data[0].pair_states),
        states=data[0].states,
        dtype=dtype,
    )
    return train_on(
        batches, method, gradients.of(method), torch.from_numpy(marginal), truth, settings, steps, dtype=dtype
    )


def train_on(
    batches: Iterable[Batch],
    method: str,
    gradient: Callable[[Tensor, Batch], Tensor],
    marginal: Float[Tensor, "R S"],
    truth: Float[Reals, "P S"],
    settings: Sequence[Setting],
    steps: int,
    *,
    dtype: torch.dtype,
    every: Sequence[int] | None = None,
) -> dict[str, list[object]]:
    """Train on given batches. Tables begin at 0, which makes every state as likely as in the data."""
    R, S = marginal.shape
    start = torch.zeros(R, len(truth), len(settings) * S, dtype=dtype)
    if METHODS[method].loss == "sr":
        start += marginal.to(dtype).repeat(1, len(settings))[:, None]
    adam = Adam(start, settings, steps)
    stops = list(every or checkpoints(steps))
    wanted = torch.from_numpy(truth)[:, None]
    found: dict[str, list[object]] = {"steps": list(stops), "error": [], "error_normalised": []}
    due = set(stops)
    for done, batch in enumerate(batches, start=1):
        adam.step(gradient(adam.table, batch))
        if done in due:
            for key, normalise in (("error", False), ("error_normalised", True)):
                apart = (estimate(method, adam.table, marginal, normalise=normalise) - wanted).abs()
                found[key].append(apart.mean(dim=(1, 3)).tolist())
    return found
