"""Small decision processes with known occupancies, one entry at a time. Float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chain:
    """`moves[s, a, s']` probabilities, `policy[s, a]` probabilities."""

    moves: Tensor
    policy: Tensor

    @property
    def rows(self) -> Tensor:
        """p(s' | s, a), a row for each (s, a), numbered s A + a."""
        return self.moves.flatten(0, 1)

    def next_rows(self, table: Tensor) -> Tensor:
        """E over s', a' of table[(s', a')], for each (s, a)."""
        S, A = self.policy.shape
        out = torch.zeros_like(table)
        for i in range(S * A):
            for s in range(S):
                for a in range(A):
                    out[i] += self.rows[i, s] * self.policy[s, a] * table[s * A + a]
        return out

    def occupancy(self, discount: float) -> Tensor:
        """(1 - gamma) P (I - gamma P_pi)^-1."""
        under_policy = (self.policy[:, :, None] * self.moves).sum(1)
        eye = torch.eye(len(under_policy), dtype=torch.float64)
        sums: Tensor = torch.linalg.inv(eye - discount * under_policy)
        return (1 - discount) * self.rows @ sums


def random_chain(states: int, actions: int, seed: int = 0) -> Chain:
    """Any chain: uneven moves, uneven policy."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.rand(states, actions, states, dtype=torch.float64, generator=generator) ** 4
    policy = torch.rand(states, actions, dtype=torch.float64, generator=generator)
    return Chain(moves / moves.sum(2, keepdim=True), policy / policy.sum(1, keepdim=True))


def balanced_chain(states: int, actions: int, seed: int = 0) -> tuple[Chain, list[Tensor], Tensor]:
    """A chain with uniform policy whose next states are uniform, as a mixture of balanced maps.

    Each map sends the pairs (s, a) to states, every state as often as the others. A batch of one row a pair, with one
    map's next states as columns, holds every state equally often: averages over the maps are exact expectations.

    Returns:
        The chain, the maps [S A] and their probabilities.
    """
    generator = torch.Generator().manual_seed(seed)
    S, A = states, actions
    maps = [torch.randperm(S * A, generator=generator) // A for _ in range(3)]
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    moves = torch.zeros(S * A, S, dtype=torch.float64)
    for share, to in zip(shares, maps, strict=True):
        for i in range(S * A):
            moves[i, to[i]] += share
    return Chain(moves.view(S, A, S), torch.full((S, A), 1 / A, dtype=torch.float64)), maps, shares


def operator(chain: Chain, table: Tensor, discount: float) -> Tensor:
    """The InfoNCE Bellman operator (TD InfoNCE, Eq. 15)."""
    return (1 - discount) * chain.rows + discount * chain.next_rows(table)


def minimise(F: Tensor, loss: Callable[[], Tensor]) -> Tensor:
    """Move F to where a smooth convex loss of it is least; returns that loss."""
    optimizer = torch.optim.LBFGS(
        [F], max_iter=300, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        torch.autograd.backward([value])
        return float(value.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return loss().detach()
