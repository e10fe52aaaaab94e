"""C-learning: classification of future states by temporal differences (Eysenbach et al., ICLR 2021; arXiv 2011.08909).

    C(s, a, s+) = sigmoid(f(s, a, s+))
    loss = -(1 - gamma) E log C(s, a, s') - gamma E[w log C(s, a, s+)] - E log(1 - C(s, a, s+)),   s+ ~ p(s+)
    w    = sg C / (1 - C) at (s', a' ~ pi, s+)  =  sg e^f
    p(s+ | s, a) = p(s+) C / (1 - C)  at the optimum

a' is the data's action when the behaviour policy itself is evaluated. C-learning is the temporal difference form of
NCE, as TD InfoNCE is of InfoNCE. TD InfoNCE's Appendix E.3 names two steps from one to the other: weights divided by
their mean (`self_normalised`), and the last two terms over all pairs of the batch (`c_learning_pairwise_loss`, "N^2").

Symbols: f(s, a, s') -> `next_logits`; f(s, a, s+) -> `future_logits`; f(s', a', s+) under the target classifier
-> `weight_logits`. Twins are on a last axis; w takes their minimum, and both are trained with one w.

Where the sources differ:
  - The authors clip w at 20 unless told otherwise, which bends the fixed point wherever p(s+ | s, a) > 20 p(s+).
    Here `clip` is off; it guards single precision, where e^f overflows at f = 88.
  - Their agent relabels half a batch with next states and folds the last two terms into a soft label of the other
    half: the same expectation, halved. They sum the twins' losses; here it is the mean.
  - They find that self-normalised weights usually hurt.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import require
from counterpoint.objectives.base import in_full_precision, shapes
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
    """Return the C-learning loss with one sampled state for each situation, mean over situations and twins.

    Args:
        next_logits: Each situation with its next state.
        future_logits: Each situation with a state sampled from p(s+).
        weight_logits: Each next situation with that same state, under the target classifier; no gradient.
        discount: gamma.
        self_normalised: Divide w by its mean over the batch.
        clip: The largest w, before it is normalised.
    """
    same = next_logits.shape == future_logits.shape == weight_logits.shape
    found, expected = shapes(next_logits, future_logits, weight_logits), "[B] each, or [B, 2] of twins"
    hint = "score each situation with its own next state and with one sampled state"
    require(same and next_logits.ndim in (1, 2), "next_logits, future_logits, weight_logits", found, expected, hint)
    least = weight_logits.amin(1) if weight_logits.ndim == 2 else weight_logits
    w = _weights(least, clip, self_normalised)
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

    Args:
        next_logits: Situations with next states; only the diagonal, the pairs, is read.
        future_logits: Situations with states sampled from p(s+).
        weight_logits: Next situations with those same states, under the target classifier; no gradient.
        discount: gamma.
        self_normalised: Divide each row of w by its mean, which is B times TD InfoNCE's softmax.
        clip: The largest w, before it is normalised.
    """
    check_square(next_logits=next_logits, future_logits=future_logits, weight_logits=weight_logits)
    least = weight_logits.amin(2) if weight_logits.ndim == 3 else weight_logits
    w = _weights(least, clip, self_normalised)
    return _loss(next_logits.diagonal(), future_logits, w, discount)


def _weights(logits: Float[Tensor, "*B"], clip: float, self_normalised: bool) -> Float[Tensor, "*B"]:
    """Return C / (1 - C) = e^f without gradient; divided by its mean over the last axis it is a scaled softmax."""
    logits = logits.detach().clamp(max=math.log(clip))
    return logits.softmax(-1) * logits.shape[-1] if self_normalised else logits.exp()


def _loss(
    next_logits: Float[Tensor, "*P"], future_logits: Float[Tensor, "*B"], w: Float[Tensor, "*B"], discount: float
) -> Float[Tensor, ""]:
    """Return the sum of the three terms; -log C = softplus(-f) and -log(1 - C) = softplus(f)."""
    if future_logits.ndim > w.ndim:
        w = w[..., None]
    reached = functional.softplus(-next_logits).mean()
    future = (w * functional.softplus(-future_logits)).mean()
    return (1 - discount) * reached + discount * future + functional.softplus(future_logits).mean()
