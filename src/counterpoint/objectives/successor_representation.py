"""The successor representation, learned by temporal differences (Dayan, 1993; TD InfoNCE, Eq. 16).

    M(s, a) <- (1 - gamma) onehot(s') + gamma M(s', a'),    s' ~ p(s' | s, a),  a' ~ pi(a' | s')

M(s, a) is a distribution over states, the discounted occupancy p(s+ | s, a). It is TD InfoNCE with every state in the
place of drawn ones, and probabilities in a table in the place of inner products (Appendix C).

Symbols: M -> `occupancy`, one row for each state-action pair, numbered as the caller likes; (s, a) and (s', a') -> the
rows `pairs` and `next_pairs`; s' -> `next_states`.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.errors import BadInputError

__all__ = ["successor_loss", "successor_targets"]


def successor_targets(
    occupancy: Float[Tensor, "P S"], next_states: Int[Tensor, " B"], next_pairs: Int[Tensor, " B"], *, discount: float
) -> Float[Tensor, "B S"]:
    """What M(s, a) of each transition is moved to (Eq. 16); rows that sum to 1 stay so. No gradient.

    Args:
        occupancy: M, rows of state-action pairs over states.
        next_states: s' of each transition.
        next_pairs: The row of (s', a').
        discount: gamma.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    _check(occupancy, next_states=next_states, next_pairs=next_pairs)
    targets = discount * occupancy.detach()[next_pairs]
    reached = targets.new_tensor(1 - discount).expand(len(targets), 1)
    return targets.scatter_add(1, next_states[:, None], reached)


def successor_loss(
    occupancy: Float[Tensor, "P S"],
    pairs: Int[Tensor, " B"],
    next_states: Int[Tensor, " B"],
    next_pairs: Int[Tensor, " B"],
    *,
    discount: float,
) -> Float[Tensor, ""]:
    """Half the squared distance to `successor_targets`, summed over states, mean over transitions.

    Its gradient with respect to M(s, a) of one transition is M(s, a) less the target, so that a gradient step of size
    1 on one transition is Eq. 16.

    Args:
        occupancy: M, rows of state-action pairs over states.
        pairs: The row of (s, a) of each transition.
        next_states: s'.
        next_pairs: The row of (s', a').
        discount: gamma.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    _check(occupancy, pairs=pairs, next_states=next_states)
    targets = successor_targets(occupancy, next_states, next_pairs, discount=discount)
    return (occupancy[pairs] - targets).square().sum(1).mean() / 2


def _check(occupancy: Tensor, **numbers: Tensor) -> None:
    """A table [P, S], and two rows of numbers of one length."""
    shapes = [tuple(x.shape) for x in (occupancy, *numbers.values())]
    if occupancy.ndim != 2 or len(shapes[1]) != 1 or shapes[1] != shapes[2]:
        raise BadInputError(
            ", ".join(("occupancy", *numbers)),
            f"shapes {', '.join(map(str, shapes))}",
            "[P, S], [B] and [B]",
            "pass the whole table, and one number of each transition",
        )
