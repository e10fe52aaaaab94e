from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.td_infonce import successor_loss, successor_targets
from tests.reference.occupancy import operator, random_chain

GAMMA = 0.9


def table_and_batch(B: int = 7, S: int = 5, A: int = 2, seed: int = 0) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """M with rows that are distributions, and pairs, next states, next pairs."""
    generator = torch.Generator().manual_seed(seed)
    M = torch.rand(S * A, S, dtype=torch.float64, generator=generator)
    pairs, next_states = (torch.randint(0, n, (B,), generator=generator) for n in (S * A, S))
    next_pairs = next_states * A + torch.randint(0, A, (B,), generator=generator)
    return (M / M.sum(1, keepdim=True)).requires_grad_(), (pairs, next_states, next_pairs)


def test_plain_loop() -> None:
    M, (pairs, next_states, next_pairs) = table_and_batch()
    targets = successor_targets(M, next_states, next_pairs, discount=GAMMA)
    total = torch.zeros((), dtype=torch.float64)
    for b in range(7):
        for s in range(5):
            reached = 1.0 if s == int(next_states[b]) else 0.0
            target = (1 - GAMMA) * reached + GAMMA * float(M[next_pairs[b], s].detach())
            assert float(targets[b, s]) == pytest.approx(target, abs=1e-15)
            total = total + (M[pairs[b], s] - target) ** 2 / 2 / 7
    ours = successor_loss(M, pairs, next_states, next_pairs, discount=GAMMA)
    torch.testing.assert_close(ours, total)
    torch.testing.assert_close(torch.autograd.grad(ours, M), torch.autograd.grad(total, M))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 9), discount=st.floats(0, 1))
def test_targets_are_distributions_without_gradient(seed: int, B: int, discount: float) -> None:
    M, (_, next_states, next_pairs) = table_and_batch(B, seed=seed)
    targets = successor_targets(M, next_states, next_pairs, discount=discount)
    assert not targets.requires_grad
    assert (targets >= 0).all()
    torch.testing.assert_close(targets.sum(1), torch.ones(B, dtype=torch.float64))
    assert torch.equal(M, table_and_batch(B, seed=seed)[0])  # the table itself is not written to


def test_a_unit_step_on_one_transition_is_the_update() -> None:
    M, (pairs, next_states, next_pairs) = table_and_batch(B=1)
    loss = successor_loss(M, pairs, next_states, next_pairs, discount=GAMMA)
    (gradient,) = torch.autograd.grad(loss, M)
    moved = M - gradient
    targets = successor_targets(M, next_states, next_pairs, discount=GAMMA)
    torch.testing.assert_close(moved[pairs], targets)
    others = torch.arange(len(M)) != pairs
    assert torch.equal(moved[others], M[others])


def test_expected_targets_are_the_operator_and_end_at_the_occupancy() -> None:
    chain = random_chain(5, 2)
    M, _ = table_and_batch()
    states, actions = torch.arange(5).repeat_interleave(2), torch.arange(10)
    # One target for each next pair, weighed by how likely it is: exact expectations.
    weights = (chain.rows[:, :, None] * chain.policy).flatten(1)
    M = M.detach()
    torch.testing.assert_close(
        weights @ successor_targets(M, states, actions, discount=GAMMA), operator(chain, M, GAMMA)
    )
    for _ in range(300):
        M = weights @ successor_targets(M, states, actions, discount=GAMMA)
    torch.testing.assert_close(M, chain.occupancy(GAMMA), rtol=0, atol=1e-12)


def test_wrong_shapes_are_refused() -> None:
    M, (pairs, next_states, next_pairs) = table_and_batch()
    with pytest.raises(BadInputError, match="next_pairs"):
        successor_targets(M, next_states, next_pairs[:3], discount=GAMMA)
    with pytest.raises(BadInputError, match="pairs"):
        successor_loss(M, pairs[:3], next_states, next_pairs, discount=GAMMA)
    with pytest.raises(BadInputError, match="occupancy"):
        successor_targets(M[0], next_states, next_pairs, discount=GAMMA)
