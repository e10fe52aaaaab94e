from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counterpoint.objectives.td_infonce import mc_infonce_loss, td_infonce_loss, td_infonce_weights
from studies.occupancy.tabular import counted_cross_entropy, mc_gradient, td_gradient

N, X, S, GAMMA = 12, 7, 5, 0.9


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A table, and a batch of rows, of their next states and of random futures."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(X, S, generator=generator, dtype=torch.float64)
    rows = torch.randint(X - 1, (N,), generator=generator)
    nexts = torch.randint(S, (X,), generator=generator)[rows]
    futures = torch.randint(S, (N,), generator=generator)
    return logits, rows, nexts, futures


def counts(rows: Tensor, columns: Tensor) -> Tensor:
    table = torch.zeros(X, S, dtype=torch.float64)
    return table.index_put_((rows, columns), torch.ones((), dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("seed", range(5))
def test_mc_from_counts_is_the_loss_of_the_whole_matrix(seed: int) -> None:
    logits, rows, _, futures = drawn(seed)
    table = logits.clone().requires_grad_()
    loss = mc_infonce_loss(table[rows][:, futures])
    (expected,) = torch.autograd.grad(loss, table)
    joint = counts(rows, futures)
    found = counted_cross_entropy(logits, joint, joint.sum(0))
    torch.testing.assert_close(found, loss.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mc_gradient(logits.exp()[None], joint[None])[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_td_from_counts_is_the_loss_of_the_whole_matrix(seed: int) -> None:
    generator = torch.Generator().manual_seed(100 + seed)
    _, rows, nexts, futures = drawn(seed)
    tables = torch.randn(2, X, S, generator=generator, dtype=torch.float64)  # of two goals
    following = torch.randint(X, (2, X), generator=generator)
    gradient = td_gradient(
        tables.exp()[None],
        following[None],
        counts(rows, nexts)[None],
        torch.bincount(futures, minlength=S).double()[None],
        GAMMA,
    )[0]
    for goal in range(2):
        table = tables[goal].clone().requires_grad_()
        after = table[following[goal][rows]][:, futures]
        loss = td_infonce_loss(table[rows][:, nexts], table[rows][:, futures], after, discount=GAMMA)
        (expected,) = torch.autograd.grad(loss, table)
        torch.testing.assert_close(gradient[goal], expected, rtol=1e-5, atol=1e-7)

        W = td_infonce_weights(after).detach().double()
        labels = torch.zeros(X, S, dtype=torch.float64)
        labels.index_put_((rows[:, None].expand(N, N), futures.expand(N, N)), W, accumulate=True)
        positives, m = counts(rows, nexts), torch.bincount(futures, minlength=S).double()
        value = (1 - GAMMA) * counted_cross_entropy(tables[goal], positives, positives.sum(0))
        value += GAMMA * counted_cross_entropy(tables[goal], labels, m)
        torch.testing.assert_close(value, loss.detach(), rtol=1e-6, atol=1e-7)


def test_rows_that_no_column_is_left_for_stay_finite() -> None:
    logits = torch.zeros(1, 1, 2, 3)
    logits[..., 1, :2] = -200.0
    positives = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    gradient = td_gradient(logits.exp(), torch.tensor([[[0, 0]]]), positives, torch.tensor([[1.0, 1.0, 0.0]]), GAMMA)
    assert gradient.isfinite().all()
    assert (gradient[..., 1, :] == 0).all()
