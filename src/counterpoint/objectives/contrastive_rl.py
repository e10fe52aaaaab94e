"""Contrastive RL: contrast of situations (s, a) with future states (Eysenbach et al., NeurIPS 2022; arXiv 2206.07568).

    NCE         mean over all pairs of -log sigmoid(f) on the diagonal and -log(1 - sigmoid(f)) off the diagonal
    InfoNCE     TD InfoNCE's Eq. 6, `mc_infonce_loss`
    penalty     weight * mean_i (log sum_j e^f[i, j])^2: keeps each row's constant, which InfoNCE leaves free, near 0
    actor       -f(s, a ~ pi, g), with the minimum of twin critics

Symbols: f = phi(s, a) . psi(g) -> `logits`, with twin critics on a last axis; row i is situation i, column j is a
future state (a goal) sampled for situation j.

Where the sources differ:
  - We follow OGBench's form of the paper's NCE (scaled inner product, mean over all pairs and twins, so that the
    positives have a weight of 1/B).
  - The penalty is from JaxGCRL, which first adds 1e-6 to all logits; here nothing is added.
  - JaxGCRL's `binary_nce` is -mean sigmoid(f), which ignores the positives and raises all logits equally; its
    `cosine` divides by the norm of all representations together. Neither is reproduced here. To use cosines, pass
    products of unit vectors.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from counterpoint.objectives.base import in_full_precision
from counterpoint.objectives.td_infonce import check_square


@in_full_precision
def contrastive_nce_loss(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, ""]:
    """Return the binary cross entropy of sigmoid(logits) against the identity, mean over pairs and twins.

    Args:
        logits: Row i is a situation, column j a future state sampled for situation j.
    """
    check_square(logits=logits)
    # softplus(f) is -log(1 - sigmoid(f)), and softplus(f) - f is -log sigmoid(f).
    return functional.softplus(logits).mean() - logits.diagonal().mean() / len(logits)


@in_full_precision
def logsumexp_penalty(logits: Float[Tensor, "B B *twins"], weight: float) -> Float[Tensor, ""]:
    """Return `weight` times the mean square of each row's logsumexp, a penalty that is added to InfoNCE.

    Args:
        logits: Row i is a situation, column j a future state.
        weight: Weight of the penalty; 0.1 in JaxGCRL.
    """
    check_square(logits=logits)
    return weight * logits.logsumexp(1).square().mean()


@in_full_precision
def reaching_rows(logits: Float[Tensor, " B *twins"]) -> Float[Tensor, " B"]:
    """Return the actor's cost of each row: minus the critic's value for the row's goal (the twins' minimum).

    Args:
        logits: Scores of each situation and its goal, under the policy's action.
    """
    return -(logits if logits.ndim == 1 else logits.amin(1))
