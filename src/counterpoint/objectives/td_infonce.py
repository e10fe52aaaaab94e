"""TD InfoNCE: contrast of future states by temporal differences.

Zheng, Salakhutdinov and Eysenbach, "Contrastive Difference Predictive Coding", ICLR 2024 (arXiv 2310.20141).

    occupancy (Eq. 3)       p(s+ | s, a) = (1 - gamma) sum_t gamma^(t-1) p_t(s+ | s, a)
    MC InfoNCE (Eq. 6)      CE(F, I), positives s+ ~ p(s+ | s, a)
    weights (Eq. 9)         W = sg softmax_rows(F_w)
    TD InfoNCE (Eq. 10, 17) (1 - gamma) CE(F_next, I) + gamma CE(F_future, W)
    actor (Eq. 11)          CE(F_goal, I), minimised over the policy

CE is the cross entropy of rows, mean over rows and twins. At the optimum e^F[i, j] is p(s+ | s, a) / p(s+) times a
factor that depends only on the row (Eq. 7).

Symbols, row i for the situation x_i = (s_t, a_t, g)^(i) and column j for a state:

    F_next[i, j]    x_i with s_{t+1}^(j)                                   `next_logits`
    F_future[i, j]  x_i with s_{t+}^(j) ~ p(s+)                            `future_logits`
    F_w[i, j]       (s_{t+1}, a' ~ pi, g)^(i) with s_{t+}^(j), EMA critic  `weight_logits`
    F_goal[i, j]    (s_t, a ~ pi, g)^(i) with g^(j)                        `goal_logits`
    lambda          `weight` of behaviour cloning (Appendix D.3)

Twin critics are on a last axis of 2. The paper does not mention them.

Where the sources differ:
  - Algorithm 1 and Eq. 17 print W = N softmax. Eq. 10 averages over the N draws, so that the factor N occurs twice: if
    rows sum to N, the effective discount is gamma N / (1 - gamma + gamma N). We follow the authors' code, whose rows
    sum to 1.
  - The paper's cross entropies are sums over rows; the authors take means over rows and twins. We follow the
    code.
  - With twin critics, W and the actor use the elementwise minimum of the two matrices of logits before the softmax; the
    same W trains both critics.
  - The paper samples s_{t+} from p(s+). The authors take the other rows' goals (`roll` of the random goals by one).
    Here the caller chooses the columns of the logits.
  - Appendix D.3 prints + lambda ||a - a_orig||^2 inside an argmax. Here, as in the code, this term is minimised and is
    a mean over action dimensions.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.base import in_full_precision, shapes


@in_full_precision
def mc_infonce_loss(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, ""]:
    """Return InfoNCE (Eq. 6): for each row i, column i against all columns; mean over rows and twins.

    Args:
        logits: Row i is a situation, column j a future state sampled for situation j.
    """
    check_square(logits=logits)
    return _own_columns(logits)


@in_full_precision
def td_infonce_weights(weight_logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, "B B"]:
    """Return W (Eq. 9): the elementwise minimum over the twin critics, then a softmax along each row.

    Rows sum to 1; W has no gradient.

    Args:
        weight_logits: Logits of the target critics: row i is the next situation i, column j the j-th random future
            state, as in `future_logits` of `td_infonce_loss`.
    """
    check_square(weight_logits=weight_logits)
    return _weights(weight_logits)


@in_full_precision
def td_infonce_loss(
    next_logits: Float[Tensor, "B B *twins"],
    future_logits: Float[Tensor, "B B *twins"],
    weight_logits: Float[Tensor, "B B *twins"],
    *,
    discount: float,
) -> Float[Tensor, ""]:
    """Return TD InfoNCE (Eq. 10, 17): row cross entropies of the next state and of the importance-weighted future.

    Args:
        next_logits: Logits of situations with the next states of the batch; the diagonal pairs a situation with its own
            next state.
        future_logits: Logits of situations with states sampled from p(s+).
        weight_logits: Logits of the next situations with the states of `future_logits`, under the target critics. They
            get no gradient.
        discount: Discount factor (gamma).
    """
    check_square(next_logits=next_logits, future_logits=future_logits)
    check_square(weight_logits=weight_logits)
    W = _weights(weight_logits)
    if len(W) != len(future_logits):
        expected = f"{len(future_logits)}, as many as `future_logits` has"
        hint = "pair the next situations with the same states as the situations"
        raise BadInputError("weight_logits", f"{len(W)} rows", expected, hint)
    chosen = W * _log_softmax(future_logits)
    future = -chosen.sum() * len(W) / chosen.numel()  # the mean over rows and twins
    return (1 - discount) * _own_columns(next_logits) + discount * future


@in_full_precision
def goal_reaching_rows(goal_logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, " B"]:
    """Return -log p(g | s, a, g) plus a constant of each row (Eq. 11): row cross entropies of the twins' minimum.

    Args:
        goal_logits: Scores of situations, under the policy's actions, with the goals of the batch.
    """
    check_square(goal_logits=goal_logits)
    return -_log_softmax(_least(goal_logits)).diagonal()


def goal_reaching_loss(goal_logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, ""]:
    """Return the actor's loss (Eq. 11): the mean of `goal_reaching_rows`, whose argument it takes."""
    return goal_reaching_rows(goal_logits).mean()


@in_full_precision
def cloned_actor_loss(
    goal_rows: Float[Tensor, " B"],
    actions: Float[Tensor, "B A"],
    data_actions: Float[Tensor, "B A"],
    *,
    weight: float,
    mask: Float[Tensor, " B"] | Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return the offline actor's loss, in which cloning the data's actions has the share `weight` (Appendix D.3).

    The loss is the mean over rows of weight * mask * mean_d (a - a_orig)^2 + (1 - weight) * goal_rows.

    Args:
        goal_rows: The goal-reaching loss of each row: `goal_reaching_rows`.
        actions: The policy's actions for the data's future goals.
        data_actions: The data's actions in the same situations.
        weight: lambda in [0, 1]; the paper's table says 0.1, the authors' code 0.2.
        mask: 0 for rows whose action is not cloned; by default all are cloned.
    """
    if actions.ndim != 2 or actions.shape != data_actions.shape or goal_rows.shape != actions.shape[:1]:
        found, hint = shapes(goal_rows, actions, data_actions), "pass one row loss and two actions for each situation"
        raise BadInputError("goal_rows, actions, data_actions", found, "[B], [B, A] and [B, A]", hint)
    apart = (actions - data_actions).square().mean(1)
    if mask is not None:
        apart = apart * mask
    return weight * apart.mean() + (1 - weight) * goal_rows.mean()


def check_square(**logits: Tensor) -> None:
    """Raise `BadInputError` if the shape of logits is not [B, B] or [B, B, twins], or if their shapes differ.

    Args:
        logits: Logits by argument name.

    Raises:
        BadInputError: If a shape is wrong; the message names the argument.
    """
    first = next(iter(logits.values())).shape
    for name, value in logits.items():
        if value.ndim not in (2, 3) or value.shape[0] != value.shape[1] or value.shape != first:
            expected = "[B, B], or [B, B, 2] of twins" if value.shape == first else f"{tuple(first)}"
            hint = "score every row's situation with every column's state, and stack twins on the last axis"
            raise BadInputError(name, shapes(value), expected, hint)


def _least(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, "B B"]:
    """Return the elementwise minimum over twins."""
    return logits if logits.ndim == 2 else logits.amin(2)


def _weights(weight_logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, "B B"]:
    return _least(weight_logits.detach()).softmax(1)


def _own_columns(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, ""]:
    return -_log_softmax(logits).diagonal(dim1=-2, dim2=-1).mean()


def _log_softmax(logits: Float[Tensor, "B B *twins"]) -> Float[Tensor, "*twins B B"]:
    """Return log probabilities of every row, with twins on the first axis.

    This makes rows contiguous, which is two to four times as fast.
    """
    return (logits if logits.ndim == 2 else logits.movedim(2, 0)).log_softmax(-1)
