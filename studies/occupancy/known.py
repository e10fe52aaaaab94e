"""The study with a known model: expected gradients instead of sampled ones, so that the error should become 0.

Every sum over a batch is replaced by its expectation under the true chain, which is the limit of infinite N. Any
remaining error is due to the optimiser. TD InfoNCE is included twice: with weights whose rows sum to 1, and with the
factor N that the paper prints in Algorithm 1 (W = N softmax). The factor overweights the future: the fixed point is the
occupancy under the discount gamma N / (1 - gamma + gamma N).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from studies.gridworld import GridWorld
from studies.occupancy.draws import Batch
from studies.occupancy.methods import Gradients
from studies.occupancy.training import Setting, checkpoints, train_on

KNOWN = {
    "td_infonce": "TD InfoNCE",
    "sr": "successor representation",
    "mc_infonce_clip": "MC InfoNCE",
    "c_learning_pairs": "C-learning",
    "td_infonce_printed": "TD InfoNCE, rows of W sum to N",
}

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Expected(Batch):
    """A batch of every possible draw, weighted by its probability.

    Attributes:
        carried: Expected number of draws from each pair whose source is each row, divided by N, [P, K].
    """

    carried: Float[Tensor, "P K"]

    def collect(self, rows: Float[Tensor, "K C"]) -> Float[Tensor, "1 P C"]:
        """Return the expectation of `Batch.collect`."""
        return (self.carried @ rows)[None]


def expected_batch(grid: GridWorld, discount: float, *, futures: bool) -> Expected:
    """Return the expectation of a batch under the uniform policy, with uniform pairs and states.

    Args:
        grid: The grid.
        discount: gamma.
        futures: True for draws (s, a, s+), for Monte Carlo, instead of (s, a, s', a').
    """
    S, A = grid.states, grid.actions
    P = S * A
    policy = grid.uniform_policy()
    if futures:
        rows = grid.exact_occupancy(policy, discount).reshape(P, S)
    else:
        rows = np.einsum("pt,ta->pta", grid.transition_matrix.reshape(P, S), policy).reshape(P, P)
    states = torch.full((1, S), 1 / S, dtype=torch.float64)  # the uniform policy's stationary distribution
    none = torch.empty(0, dtype=torch.int64)
    return Expected(
        size=1,
        visits=torch.full((1, P), 1 / P, dtype=torch.float64),
        pairs=none,
        sources=none,
        offsets=none,
        arrived=states,
        futures=none,
        drawn=states,
        carried=torch.from_numpy(rows / P),
    )


def printed_discount(discount: float, size: int) -> float:
    """Return the discount of the occupancy that weights with row sum N estimate: gamma N / (1 - gamma + gamma N)."""
    return discount * size / (1 - discount + discount * size)


def train_known(
    grid: GridWorld, settings: Sequence[Setting], *, discount: float, steps: int, size: int
) -> dict[str, dict[str, list[object]]]:
    """Return the errors of every method in `KNOWN` on expected gradients, in double precision, in `train`'s format.

    Args:
        grid: The grid.
        settings: Settings of the optimiser.
        discount: gamma.
        steps: Number of gradient steps.
        size: N, for the printed factor only.
    """
    P, S = grid.states * grid.actions, grid.states
    truth = grid.exact_occupancy(grid.uniform_policy(), discount).reshape(P, S)
    found = {}
    for name in KNOWN:
        method = name.removesuffix("_printed")
        batch = expected_batch(grid, discount, futures=method.startswith("mc"))
        gradients = Gradients(
            discount=discount,
            settings=len(settings),
            pair_states=torch.arange(P) // grid.actions,
            states=S,
            dtype=torch.float64,
            row_sum=float(size) if name.endswith("_printed") else 1.0,
        )
        batches: Iterator[Batch] = repeat(batch, steps)
        found[name] = train_on(
            batches, method, gradients.of(method), batch.drawn, truth, settings, steps,
            dtype=torch.float64, every=checkpoints(steps, 40),
        )  # fmt: skip
    return found
