"""Contrastive RL: contrast of situations with future states (Eysenbach et al., NeurIPS 2022; arXiv 2206.07568).

    energies    f = phi(s, a) . psi(g), scaled by 1/sqrt(D), or minus the distance of the two (squared)
    NCE         mean over all pairs of -log sigmoid(f) on the diagonal and -log(1 - sigmoid(f)) beside it
    InfoNCE     rows (forward), columns (backward), or the mean of both (symmetric); forward is TD InfoNCE's Eq. 6
    penalty     weight * mean_i (log sum_j e^f[i, j])^2: keeps near 0 the constant of each row that InfoNCE leaves free
    DDPG+BC     -mean q(s, pi(s)) / sg mean |q| - alpha mean log pi(a | s), a the data's
    AWR         -mean min(e^(alpha (q - v)), 100) log pi(a | s)

Symbols: phi -> `phi`, psi -> `psi`, raw representations, twins on a first axis; f -> `logits`, twins on a last axis;
row i is situation i, column j a future state (a goal) sampled for situation j.

Where the sources differ:
  - We follow OGBench's form of the paper's NCE (scaled inner product, mean over all pairs and twins, so that the
    positives weigh 1/B), and its two actors.
  - Energies, directions and the penalty are JaxGCRL's. Its symmetric loss is the sum of both directions; here it is
    the mean. It adds 1e-6 to all logits before the penalty; here nothing is added.
  - JaxGCRL's `binary_nce` is -mean sigmoid(f), which ignores the positives and raises all logits alike; its
    `cosine` divides by the norm of all representations together. Neither is reproduced. For cosines pass unit vectors.
"""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import require
from counterpoint.objectives.base import in_full_precision, shapes
from counterpoint.objectives.td_infonce import check_square, mc_infonce_loss

AWR_LIMIT = 100.0  # largest weight of a cloned action


@in_full_precision
def inner_product_logits(
    phi: Float[Tensor, "*twins B D"], psi: Float[Tensor, "*twins B D"]
) -> Float[Tensor, "B B *twins"]:
    """Return inner products of every pair; cosines where both are unit vectors.

    Args:
        phi: Representations of situations, twins first.
        psi: Representations of future states, twins first.
    """
    _check_representations(phi, psi)
    return _twins_last(phi @ psi.mT)


@in_full_precision
def scaled_inner_product(
    phi: Float[Tensor, "*twins B D"], psi: Float[Tensor, "*twins B D"]
) -> Float[Tensor, "B B *twins"]:
    """Return inner products of every pair over sqrt(D), OGBench's energy; arguments as in `inner_product_logits`."""
    return inner_product_logits(phi / math.sqrt(phi.shape[-1]), psi)


@in_full_precision
def negative_distance_logits(
    phi: Float[Tensor, "*twins B D"], psi: Float[Tensor, "*twins B D"], *, squared: bool = False
) -> Float[Tensor, "B B *twins"]:
    """Return minus the distance of every pair, sqrt(||phi - psi||^2 + 1e-6); JaxGCRL's `norm`, and `l2` when squared.

    Squares come from inner products, without a tensor of size B x B x D; in single precision their error is about 1e-7
    of the representations' squared length.

    Args:
        phi: Representations of situations, twins first.
        psi: Representations of future states, twins first.
        squared: Minus ||phi - psi||^2 instead.
    """
    _check_representations(phi, psi)
    lengths = phi.square().sum(-1)[..., :, None] + psi.square().sum(-1)[..., None, :]
    apart = (lengths - 2 * phi @ psi.mT).clamp(min=0)
    return _twins_last(-apart if squared else -(apart + 1e-6).sqrt())


@in_full_precision
def contrastive_nce_loss(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, ""]:
    """Return the binary cross entropy of sigmoid(logits) against the identity, mean over pairs and twins.

    Args:
        logits: Row i: a situation; column j: a future state sampled for situation j.
    """
    check_square(logits=logits)
    # softplus(f) is -log(1 - sigmoid(f)), and softplus(f) - f is -log sigmoid(f).
    return functional.softplus(logits).mean() - logits.diagonal().mean() / len(logits)


def row_column_infonce_loss(
    logits: Float[Tensor, "B B *twins"], direction: Literal["forward", "backward", "symmetric"] = "symmetric"
) -> Float[Tensor, ""]:
    """Return InfoNCE of each situation among states, of each state among situations, or the mean of both.

    Args:
        logits: Row i: a situation; column j: a future state sampled for situation j.
        direction: Rows, columns, or both.
    """
    check_square(logits=logits)
    if direction == "forward":
        return mc_infonce_loss(logits)
    backward = mc_infonce_loss(logits.transpose(0, 1))
    return backward if direction == "backward" else (mc_infonce_loss(logits) + backward) / 2


@in_full_precision
def logsumexp_penalty(logits: Float[Tensor, "B B *twins"], weight: float) -> Float[Tensor, ""]:
    """Return the mean square of the rows' log sums, times `weight`; added to InfoNCE.

    Args:
        logits: Row i: a situation; column j: a future state.
        weight: JaxGCRL's is 0.1.
    """
    check_square(logits=logits)
    return weight * logits.logsumexp(1).square().mean()


@in_full_precision
def ddpgbc_loss(q: Float[Tensor, " B *twins"], log_prob: Float[Tensor, " B"], *, alpha: float) -> Float[Tensor, ""]:
    """Return the DDPG+BC actor's loss: maximise q, in units of its mean size, and the data's actions' likelihood.

    Args:
        q: Values of the policy's actions, with gradient. Twins count by their minimum.
        log_prob: Log probabilities of the data's actions under the policy.
        alpha: Weight of cloning; OGBench's for contrastive RL is 0.1.
    """
    least = _least(q, log_prob)
    return -least.mean() / (least.detach().abs().mean() + 1e-6) - alpha * log_prob.mean()


@in_full_precision
def awr_loss(
    q: Float[Tensor, " B *twins"], v: Float[Tensor, " B"], log_prob: Float[Tensor, " B"], *, alpha: float
) -> Float[Tensor, ""]:
    """Return the advantage-weighted actor's loss: clone the data's actions, better ones more.

    Args:
        q: Values of the data's actions. Twins count by their minimum. No gradient.
        v: Values of the same situations without the action. No gradient.
        log_prob: Log probabilities of the data's actions under the policy.
        alpha: Inverse temperature of the weights e^(alpha (q - v)), which are clipped at 100.
    """
    advantage = _least(q, log_prob, v) - v
    return -((alpha * advantage.detach()).exp().clamp(max=AWR_LIMIT) * log_prob).mean()


def _least(q: Float[Tensor, " B *twins"], *others: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the twins' minimum of q, which must have as many rows as the others."""
    ok = q.ndim in (1, 2) and all(x.shape == q.shape[:1] for x in others)
    found, expected = shapes(q, *others), "[B] or [B, 2], and [B] for the others"
    require(ok, "q", found, expected, "pass one value of each situation")
    return q if q.ndim == 1 else q.amin(1)


def _twins_last(logits: Float[Tensor, "*twins B B"]) -> Float[Tensor, "B B *twins"]:
    return logits if logits.ndim == 2 else logits.movedim(0, -1)


def _check_representations(phi: Float[Tensor, "*twins B D"], psi: Float[Tensor, "*twins B D"]) -> None:
    ok = phi.ndim in (2, 3) and phi.shape == psi.shape
    expected = "[B, D] or [2, B, D], one shape for both"
    require(ok, "phi, psi", shapes(phi, psi), expected, "pass one representation of each situation and future state")
