"""Appendix A of TD InfoNCE as a test: the operator, its fixed point, and the loss as the operator's step."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from counterpoint.objectives.td_infonce import td_infonce_loss
from tests.reference.occupancy import Chain, balanced_chain, minimise, operator, random_chain

ROOT = Path(__file__).resolve().parents[2]
GAMMA = 0.9

# S = 6 states, A = 2 actions.


def exact_td_loss(F: Tensor, target: Tensor, maps: list[Tensor], shares: Tensor, discount: float) -> Tensor:
    """The expectation of `td_infonce_loss` over next states, next actions and columns.

    A row a pair (s, a). The columns of both terms hold every state twice, as draws from p(s+) do on average, so
    that denominators are exact expectations; next actions are averaged over, which is exact since W is linear.

    Args:
        F: [S A, S], the critic of pairs and states.
        target: The same of the slowly moving critic.
        maps: Next states of all pairs, as `balanced_chain` gives them.
        shares: Their probabilities.
        discount: gamma.
    """
    A = len(F) // F.shape[1]
    every = torch.arange(F.shape[1]).repeat(A)
    total = torch.zeros((), dtype=F.dtype)
    for share, to in zip(shares, maps, strict=True):
        for a in range(A):
            loss = td_infonce_loss(F[:, to], F[:, every], target[to * A + a][:, every], discount=discount)
            total = total + share * loss / A
    return total


def exact_mc_loss(F: Tensor, occupancy: Tensor) -> Tensor:
    """The expectation of Eq. 6 over s+ ~ p(s+ | s, a), with the same columns."""
    A = len(F) // F.shape[1]
    return -(occupancy * F.repeat(1, A).log_softmax(1)[:, : F.shape[1]]).sum(1).mean()


def critic_of(distribution: Tensor, constants: Tensor | None = None) -> Tensor:
    """f with softmax(f) = distribution (p(s+) is uniform), up to constants of the rows."""
    return distribution.log() + (0 if constants is None else constants)


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9, 0.99])
def test_operator_contracts_and_ends_at_the_occupancy(discount: float) -> None:
    chain = random_chain(6, 2)
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.rand(12, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    apart = (operator(chain, one, discount) - operator(chain, other, discount)).abs().max()
    assert apart <= discount * (one - other).abs().max() + 1e-15
    step = discount * policy_step(chain)
    C = one / one.sum(1, keepdim=True)
    torch.testing.assert_close(
        (1 - discount) * chain.rows + step @ C, operator(chain, C, discount), rtol=1e-12, atol=1e-15
    )
    truth = chain.occupancy(discount)
    before = (C - truth).abs().max()
    for _ in range(20):
        C = (1 - discount) * chain.rows + step @ C
        torch.testing.assert_close(C.sum(1), torch.ones(12, dtype=torch.float64))
    assert (C - truth).abs().max() <= discount**20 * before + 1e-14
    for _ in range(3000):
        C = (1 - discount) * chain.rows + step @ C
    torch.testing.assert_close(C, truth, rtol=0, atol=1e-11)
    torch.testing.assert_close(operator(chain, truth, discount), truth, rtol=0, atol=1e-13)


def policy_step(chain: Chain) -> Tensor:
    """p((s', a') | s, a), [S A, S A]."""
    return (chain.rows[:, :, None] * chain.policy).flatten(1)


@pytest.mark.parametrize("discount", [0.5, 0.9])
def test_td_and_mc_agree_at_the_optimum(discount: float) -> None:
    chain, maps, shares = balanced_chain(6, 2)
    truth = chain.occupancy(discount)
    torch.testing.assert_close(truth.sum(0), torch.full((6,), 2.0, dtype=torch.float64))  # p(s+) is uniform
    constants = torch.randn(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    best = critic_of(truth, constants).requires_grad_()
    td, mc = exact_td_loss(best, best, maps, shares, discount), exact_mc_loss(best, truth)
    torch.testing.assert_close(td, mc, rtol=1e-12, atol=1e-13)
    # and nothing pulls at either.
    for value in (td, mc):
        (gradient,) = torch.autograd.grad(value, best)
        assert gradient.abs().max() < 1e-13
    # Elsewhere they differ.
    other = 3 * torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert abs(exact_td_loss(other, other, maps, shares, discount) - exact_mc_loss(other, truth)) > 0.1


@pytest.mark.parametrize("discount", [0.5, 0.9])
def test_minimising_is_one_step_of_the_operator(discount: float) -> None:
    chain, maps, shares = balanced_chain(6, 2)
    generator = torch.Generator().manual_seed(4)
    target = torch.randn(12, 6, dtype=torch.float64, generator=generator)
    F = torch.zeros(12, 6, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        return exact_td_loss(F, target, maps, shares, discount)

    least = minimise(F, loss)
    stepped = operator(chain, target.softmax(1), discount)
    torch.testing.assert_close(F.detach().softmax(1), stepped, rtol=0, atol=1e-7)
    entropy = -(stepped * stepped.log()).sum(1).mean() + math.log(2)  # every state stands in two columns
    assert float(least) == pytest.approx(float(entropy), abs=1e-10)


# The printed factor N of the weights.

EXPERIMENT = runpy.run_path(str(ROOT / "studies" / "importance_weight_rows.py"))


def test_rows_of_n_minimise_elsewhere() -> None:
    chain, maps, shares = balanced_chain(6, 2)
    target = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    F = torch.zeros(12, 6, dtype=torch.float64, requires_grad=True)
    N = 12

    def printed() -> Tensor:  # (1 - gamma) of the first term, and N times gamma of the second
        first, second = (exact_td_loss(F, target, maps, shares, discount) for discount in (0.0, 1.0))
        return (1 - GAMMA) * first + GAMMA * N * second

    minimise(F, printed)
    effective = GAMMA * N / (1 - GAMMA + GAMMA * N)
    stepped = operator(chain, target.softmax(1), effective)
    torch.testing.assert_close(F.detach().softmax(1), stepped, rtol=0, atol=1e-6)


def test_exact_iteration_with_either_row_sum() -> None:
    moves = EXPERIMENT["random_chain"](25, 0)
    truth = EXPERIMENT["true_occupancy"](moves, GAMMA)

    def error(row_sum: float, occupancy: Any) -> float:
        return float(abs(EXPERIMENT["exact_iteration"](moves, GAMMA, row_sum) - occupancy).mean())

    assert error(1, truth) < 1e-9
    N = 16
    of_effective = EXPERIMENT["true_occupancy"](moves, GAMMA * N / (1 - GAMMA + GAMMA * N))
    assert error(N, of_effective) < 1e-8
    assert error(N, truth) > 1e-3
