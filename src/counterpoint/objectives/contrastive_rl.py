"""Contrastive RL: contrast of situations with future states (Eysenbach et al., NeurIPS 2022; arXiv 2206.07568).

    NCE         mean over all pairs of -log sigmoid(f) on the diagonal and -log(1 - sigmoid(f)) beside it
    InfoNCE     TD InfoNCE's Eq. 6, `mc_infonce_loss`
    penalty     weight * mean_i (log sum_j e^f[i, j])^2: keeps near 0 the constant of each row that InfoNCE leaves free
    actor       -f(s, a ~ pi, g), of twins the lesser

Symbols: f = phi(s, a) . psi(g) -> `logits`, twins on a last axis; row i is situation i, column j a future state (a
goal) sampled for situation j.

Where the sources differ:
  - We follow OGBench's form of the paper's NCE (scaled inner product, mean over all pairs and twins, so that the
    positives weigh 1/B).
  - The penalty is JaxGCRL's, which adds 1e-6 to all logits before it; here nothing is added.
  - JaxGCRL's `binary_nce` is -mean sigmoid(f), which ignores the positives and raises all logits equally; its
    `cosine` divides by the norm of all representations together. Neither is reproduced. For cosines pass products of
    unit vectors.
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
        logits: Row i: a situation; column j: a future state sampled for situation j.
    """
    check_square(logits=logits)
    # softplus(f) is -log(1 - sigmoid(f)), and softplus(f) - f is -log sigmoid(f).
    return functional.softplus(logits).mean() - logits.diagonal().mean() / len(logits)


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
def reaching_rows(logits: Float[Tensor, " B *twins"]) -> Float[Tensor, " B"]:
    """Return the actor's cost of each row: minus the critic's value of the row's own goal, the twins' minimum.

    Args:
        logits: Scores of each situation, under the policy's action, with its own goal.
    """
    return -(logits if logits.ndim == 1 else logits.amin(1))
