"""C-learning: classification of future states by temporal differences (Eysenbach et al., ICLR 2021; arXiv 2011.08909).

    C(s, a, s+) = sigmoid(f(s, a, s+))
    loss = -(1 - gamma) E log C(s, a, s') - gamma E[w log C(s, a, s+)] - E log(1 - C(s, a, s+)),   s+ ~ p(s+)
    w    = sg C / (1 - C) at (s', a' ~ pi, s+)  =  sg e^f
    p(s+ | s, a) = p(s+) C / (1 - C)  at the optimum

a' is the data's action when the behaviour policy itself is evaluated. C-learning is the temporal difference form of
NCE, as TD InfoNCE is the temporal difference form of InfoNCE. Appendix E.3 of the TD InfoNCE paper names two steps
that lead from C-learning to TD InfoNCE: dividing the weights by their mean (`self_normalised`), and taking the last two
terms over all pairs of the batch (`c_learning_pairwise_loss`, "N^2").

Symbols: f(s, a, s') -> `next_logits`; f(s, a, s+) -> `future_logits`; f(s', a', s+) under the target classifier
-> `weight_logits`. Twin classifiers are on a last axis; w uses their minimum, and both are trained with the same w.

Where the sources differ:
  - The authors clip w at 20 by default, which changes the fixed point wherever p(s+ | s, a) > 20 p(s+). Here `clip` is
    off by default; it protects against overflow in single precision, where e^f overflows at f = 88.
  - Their agent relabels half of a batch with next states, and combines the last two terms into a soft label of the
    other half. The expectation of the loss is half of ours. They sum the twins' losses; here the mean is taken.
  - They find that self-normalised weights usually hurt.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from counterpoint.objectives.base import in_full_precision, require_shapes
from counterpoint.objectives.td_infonce import check_square


@in_full_precision
def c_learning_loss(
    next_logits: Float[Tensor, " B *twins"],
    future_logits: Float[Tensor, " B *twins"],
    weight_logits: Float[Tensor, " B *twins"],
    *,
    discount: float,
    self_normalised: bool = False,
    clip: float = math.inf,
) -> Float[Tensor, ""]:
    """Return the C-learning loss with one sampled state per situation (s, a); mean over situations and twins.

    Args:
        next_logits: Logits of each situation with its next state.
        future_logits: Logits of each situation with a state sampled from p(s+).
        weight_logits: Logits of each next situation with the state of `future_logits`, under the target classifier;
            they get no gradient.
        discount: Discount factor gamma.
        self_normalised: Divide w by its mean over the batch.
        clip: Maximum of w, before normalisation.
    """
    ok = next_logits.ndim in (1, 2) and next_logits.shape == future_logits.shape == weight_logits.shape
    where, expected = "next_logits, future_logits, weight_logits", "[B] each, or [B, 2] of twins"
    hint = "score each situation with its own next state and with one sampled state"
    require_shapes(ok, where, (next_logits, future_logits, weight_logits), expected, hint)
    w = _weights(weight_logits, weight_logits.ndim == 2, clip, self_normalised)
    return _loss(next_logits, future_logits, w, discount)


@in_full_precision
def c_learning_pairwise_loss(
    next_logits: Float[Tensor, "B B *twins"],
    future_logits: Float[Tensor, "B B *twins"],
    weight_logits: Float[Tensor, "B B *twins"],
    *,
    discount: float,
    self_normalised: bool = False,
    clip: float = math.inf,
) -> Float[Tensor, ""]:
    """Return the C-learning loss over all pairs of situations and sampled states ("N^2"), mean over pairs and twins.

    Takes the arguments of `c_learning_loss`, with situations as rows and states as columns. Only the diagonal of
    `next_logits` is read, which pairs each situation with its next state. `self_normalised` divides each row of w by
    its mean, which gives B times TD InfoNCE's softmax.
    """
    check_square(next_logits=next_logits, future_logits=future_logits, weight_logits=weight_logits)
    w = _weights(weight_logits, weight_logits.ndim == 3, clip, self_normalised)
    return _loss(next_logits.diagonal(), future_logits, w, discount)


def _weights(logits: Tensor, twins: bool, clip: float, self_normalised: bool) -> Tensor:
    """Return w without gradient: C / (1 - C) = e^f, or B times the softmax of f.

    For twins, f is their minimum, and w has a last axis of size 1.
    """
    least = (logits.amin(-1) if twins else logits).detach().clamp(max=math.log(clip))
    w = least.softmax(-1) * least.shape[-1] if self_normalised else least.exp()
    return w[..., None] if twins else w


def _loss(next_logits: Tensor, future_logits: Tensor, w: Tensor, discount: float) -> Float[Tensor, ""]:
    """Return the sum of the three terms; -log C = softplus(-f) and -log(1 - C) = softplus(f)."""
    reached = functional.softplus(-next_logits).mean()
    future = (w * functional.softplus(-future_logits)).mean()
    return (1 - discount) * reached + discount * future + functional.softplus(future_logits).mean()
