"""Collapsed gradients against the public losses under autograd, on the N x N matrices the study never forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.objectives import c_learning, td_infonce
from studies.gridworld import GridWorld
from studies.occupancy.data import Counted, count_data
from studies.occupancy.draws import Batch, future_batches, successor_batches
from studies.occupancy.methods import METHODS, Gradients, estimate
from studies.occupancy.training import Adam, Setting

GRID = GridWorld(3, 2)
P, S, R, L, N, DISCOUNT = 30, 6, 2, 3, 16, 0.8
FLOAT = torch.float64


@pytest.fixture(scope="module")
def data() -> list[Counted]:
    return [count_data(GRID, 400, episode_length=20, discount=DISCOUNT, seed=seed) for seed in range(R)]


def gradients(row_sum: float = 1.0, settings: int = L) -> Gradients:
    return Gradients(
        discount=DISCOUNT,
        settings=settings,
        pair_states=torch.arange(P) // GRID.actions,
        states=S,
        dtype=FLOAT,
        row_sum=row_sum,
    )


def batches(method: str, data: list[Counted], steps: int) -> list[Batch]:
    tail = METHODS[method].tail
    if tail is None:
        return list(successor_batches(data, steps, N, seed=1, dtype=FLOAT))
    return list(future_batches(data, steps, N, tail=tail, seed=1, dtype=FLOAT))


def plain_loss(method: str, f: Tensor, batch: Batch, r: int) -> Tensor:
    """The loss of data set r on its own table [P, S], from rows of the batch, with the public functions."""
    about = METHODS[method]
    rows = slice(r * N, (r + 1) * N)
    pairs = batch.pairs[rows] - r * P
    if about.loss == "mc_infonce":
        return td_infonce.mc_infonce_loss(f[pairs][:, batch.sources[rows]])
    successors = batch.sources[rows] - r * P
    next_states, drawn = successors // GRID.actions, batch.futures[rows]
    if about.loss == "sr":
        reached = torch.nn.functional.one_hot(next_states.long(), S)
        targets = (1 - DISCOUNT) * reached.to(f.dtype) + DISCOUNT * f[successors].detach()  # Eq. 16
        return (f[pairs] - targets).square().sum(1).mean() / 2
    reached, future, weight = f[pairs][:, next_states], f[pairs][:, drawn], f[successors][:, drawn]
    if about.loss == "td_infonce":
        return td_infonce.td_infonce_loss(reached, future, weight, discount=DISCOUNT)
    if about.pairs:
        return c_learning.c_learning_pairwise_loss(
            reached, future, weight, discount=DISCOUNT, self_normalised=about.normalised
        )
    return c_learning.c_learning_loss(
        reached.diagonal(), future.diagonal(), weight.diagonal(), discount=DISCOUNT, self_normalised=about.normalised
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_collapsed_gradient_is_that_of_the_public_loss(method: str, data: list[Counted]) -> None:
    batch = batches(method, data, 1)[0]
    table = torch.randn(R, P, L, S, generator=torch.Generator().manual_seed(0), dtype=FLOAT)
    found = gradients().of(method)(table.view(R, P, L * S), batch).view(R, P, L, S)
    for r in range(R):
        for setting in range(L):
            f = table[r, :, setting].clone().requires_grad_()
            (wanted,) = torch.autograd.grad(plain_loss(method, f, batch, r), f)
            torch.testing.assert_close(found[r, :, setting], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "decayed"])
@pytest.mark.parametrize("method", ["td_infonce", "c_learning_both"])
def test_steps_are_those_of_torch_adam(method: str, schedule: str, data: list[Counted]) -> None:
    rates, steps = (1e-2, 3e-2), 5
    taken = batches(method, data, steps)
    table = torch.zeros(R, P, len(rates) * S, dtype=FLOAT)
    adam = Adam(table, [Setting(rate, schedule) for rate in rates], steps)
    step = gradients(settings=len(rates)).of(method)
    for batch in taken:
        adam.step(step(table, batch))
    for setting, rate in enumerate(rates):
        f = torch.zeros(P, S, dtype=FLOAT, requires_grad=True)
        optimiser = torch.optim.Adam([f], lr=rate)
        for done, batch in enumerate(taken):
            optimiser.param_groups[0]["lr"] = rate * (1 - done / steps) if schedule == "decayed" else rate
            optimiser.zero_grad()
            torch.autograd.backward([plain_loss(method, f, batch, 1)])
            optimiser.step()
        torch.testing.assert_close(table.view(R, P, -1, S)[1, :, setting], f.detach(), rtol=1e-9, atol=1e-12)


def test_a_row_sum_of_n_scales_the_future_term_only(data: list[Counted]) -> None:
    batch = batches("td_infonce", data, 1)[0]
    table = torch.randn(R, P, L * S, dtype=FLOAT)
    by_sum: Callable[[float], Tensor] = lambda row_sum: gradients(row_sum).td_infonce(table.clone(), batch)  # noqa: E731
    once, twice, thrice = by_sum(1.0), by_sum(2.0), by_sum(3.0)
    torch.testing.assert_close(thrice - twice, twice - once)
    assert not torch.allclose(twice, 2 * once)


def test_the_gradient_of_a_softmax_method_sums_to_zero_over_states(data: list[Counted]) -> None:
    for method in ("td_infonce", "mc_infonce_clip"):
        batch = batches(method, data, 1)[0]
        table = torch.randn(R, P, L * S, dtype=FLOAT)
        rows = gradients().of(method)(table, batch).view(R, P, L, S).sum(-1)
        torch.testing.assert_close(rows, torch.zeros_like(rows))


def test_a_table_of_zeros_estimates_the_marginal() -> None:
    marginal = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(S), size=R))
    table = torch.zeros(R, P, L * S)
    for method in METHODS:
        if METHODS[method].loss != "sr":
            found = estimate(method, table, marginal)
            torch.testing.assert_close(found, marginal[:, None, None].expand_as(found))


def test_only_c_learning_need_not_sum_to_one() -> None:
    marginal = torch.full((R, S), 1 / S, dtype=FLOAT)
    table = torch.randn(R, P, L * S, dtype=FLOAT)
    ones = torch.ones(R, P, L, dtype=FLOAT)
    torch.testing.assert_close(estimate("td_infonce", table, marginal).sum(-1), ones)
    torch.testing.assert_close(estimate("c_learning", table, marginal, normalise=True).sum(-1), ones)
    assert not torch.allclose(estimate("c_learning", table, marginal).sum(-1), ones)
