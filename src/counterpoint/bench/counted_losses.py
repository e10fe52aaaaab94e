"""InfoNCE losses of tables, from counts: no N x N matrix for 25 states.

A batch of N holds few distinct rows and columns. Of X rows and S columns with multiplicities c and n,

    CE = (1/N) sum_x [c_x log sum_y n_y exp f(x, y) - sum_y L(x, y) f(x, y)],    L: labels, summed over equal rows,

is the cross entropy of the N x N matrix, and its gradient is (c_x softmax_n - L) / N. R tables (seeds, data sets) are
taken at once.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["TINY", "counted_cross_entropy", "mc_gradient", "td_gradient"]

TINY = 1e-30
"""Keeps 0 / 0 out of rows that no column of a batch is left for; such a row is drawn 0 times."""


def counted_cross_entropy(
    logits: Float[Tensor, "*R X S"], labels: Float[Tensor, "*R X S"], columns: Float[Tensor, "*R S"]
) -> Float[Tensor, "*R"]:
    """The mean cross entropy of the rows of an N x N matrix, from its distinct rows and columns.

    Args:
        logits: f of every distinct row and column.
        labels: Label weight of each pair, summed over equal rows and columns; a row's sum is how often it occurs.
        columns: How often each column occurs; sums to N.
    """
    logarithm = (logits + columns.log()[..., None, :]).logsumexp(-1)
    total = (labels.sum(-1) * logarithm).sum(-1) - (labels * logits).sum((-2, -1))
    return total / columns.sum(-1)


def mc_gradient(powers: Float[Tensor, "R X S"], joint: Float[Tensor, "R X S"]) -> Float[Tensor, "R X S"]:
    """The gradient of MC InfoNCE (Eq. 6), which is `counted_cross_entropy(f, joint, joint.sum(-2))`, by f.

    Args:
        powers: e^f(s, a, s+).
        joint: How often each (s, a) occurs in the batch together with each future s+.
    """
    columns = joint.sum(1)
    share = joint.sum(-1) / columns.sum(-1, keepdim=True)
    total = (powers @ columns[..., None])[..., 0].clamp_(min=TINY)
    gradient = (share / total)[..., None] * columns[:, None] * powers
    return gradient.sub_(joint / columns.sum(-1)[:, None, None])


def td_gradient(
    powers: Float[Tensor, "R G X S"],
    following: Int[Tensor, "R G X"],
    positives: Float[Tensor, "R X S"],
    futures: Float[Tensor, "R S"],
    discount: float,
) -> Float[Tensor, "R G X S"]:
    """The gradient of TD InfoNCE (Eq. 10) by f, one batch for every goal.

    (1 - gamma) CE(f, positives; next states) + gamma CE(f, W; futures), with W (Eq. 9) the softmax over the futures of
    the row that follows, and constant.

    Args:
        powers: e^f(s, a, g, s+); X counts (s, a).
        following: The row of (s', a') with a' ~ pi(. | s', g).
        positives: How often each (s, a) occurs in the batch together with each next state.
        futures: How often each state was drawn from p(s+); as many as the batch.
        discount: gamma.
    """
    R, G, X, S = powers.shape
    count = futures.sum(-1)[:, None, None]
    share = positives.sum(-1)[:, None] / count
    n, m = positives.sum(1)[:, None, None], futures[:, None, None]
    among_next = (1 - discount) * share / (powers * n).sum(-1).clamp_(min=TINY)
    among_futures = discount * share / (total := (powers * m).sum(-1).clamp_(min=TINY))
    gradient = (among_next[..., None] * n).add_(among_futures[..., None] * m).mul_(powers)
    row = (following + X * torch.arange(R * G).view(R, G, 1)).view(-1)
    W = powers.view(-1, S)[row].mul_(1 / total.view(-1, 1)[row]).view(R, G, X, S).mul_(m)
    gradient -= W.mul_(discount * share[..., None])
    return gradient.sub_((positives / count)[:, None], alpha=1 - discount)
