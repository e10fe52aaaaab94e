"""What the baselines share: similarities of paired rows, and other rows as negatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from counterpoint.data.spec import sample_rng
from counterpoint.errors import BadInputError

__all__ = [
    "Similarity",
    "candidate_metrics",
    "check_frames",
    "cosine",
    "embedding_norm",
    "negative_distance",
    "other_rows",
]

Similarity = Callable[[Tensor, Tensor], Tensor]
"""Two raw embeddings [..., D], broadcast against each other, to their similarity [...]."""


def negative_distance(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """-||a - b||_2; its gradient at a = b is 0."""
    distance: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return -distance


def cosine(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """The cosine of the angle between a and b; 0 where one of them is 0."""
    return functional.cosine_similarity(a, b, dim=-1)


def embedding_norm(frames: Float[Tensor, "B F D"], order: int) -> Float[Tensor, ""]:
    """Mean L1 (`order` 1) or L2 (`order` 2) norm of all B F embeddings: the penalty of R3M and VIP."""
    norm: Tensor = torch.linalg.vector_norm(frames, ord=order, dim=-1)
    return norm.mean()


def check_frames(frames: Float[Tensor, "B F D"], order: str) -> None:
    """Refuse embeddings that lack one of the frames a loss reads.

    Args:
        frames: Raw embeddings.
        order: The frames by name, as in "o_0, o_g, o_t, o_{t+1}".

    Raises:
        BadInputError: Other shapes than [B, F, D] with at least as many frames as `order` names.
    """
    least = order.count(",") + 1
    if frames.ndim != 3 or frames.shape[1] < least:
        raise BadInputError(
            "frames",
            f"shape {tuple(frames.shape)}",
            f"[B, F, D] with F >= {least}",
            f"pass the embeddings of ({order}) of each clip, in this order",
        )


def other_rows(sample: Int[Tensor, " B"], count: int) -> Int[Tensor, "N B"]:
    """N rows of the batch for each row to be contrasted with, never itself.

    The rows sit in a circle in random order, and negative n of a row is its (n+1)-th neighbour: every
    `result[n]` is a permutation without fixed points, and up to N = B - 1 a row's negatives are distinct. The
    order is a pure function of the set of samples: how ranks arrange the batch does not matter.

    Args:
        sample: Global sample indices, distinct.
        count: N; beyond B - 1 the neighbours repeat.

    Raises:
        BadInputError: When negatives are asked of a batch of one.
    """
    B = len(sample)
    if B < 2 and count:
        raise BadInputError(
            "batch",
            f"{B} sample",
            "at least 2, since negatives are other rows of the batch",
            "raise batch_size or set num_negatives to 0",
        )
    if not count:
        return sample.new_empty((0, B))
    shuffle = sample_rng(0, int(sample.min()), "other rows").permutation(B)
    circle = torch.argsort(sample)[torch.from_numpy(shuffle).to(sample.device)]
    place = torch.argsort(circle)
    neighbour = 1 + torch.arange(count, device=sample.device) % (B - 1)
    return circle[(place + neighbour[:, None]) % B]


def candidate_metrics(candidates: Float[Tensor, "*batch C"]) -> dict[str, Float[Tensor, ""]]:
    """The three numbers every InfoNCE objective logs, of candidates whose first is the positive.

    Returns:
        `categorical_accuracy`: share of sets whose greatest candidate is the positive. `logits_pos`,
        `logits_neg`: mean logit of positives and of negatives.
    """
    candidates = candidates.detach()
    positive, negatives = candidates[..., 0], candidates[..., 1:]
    return {
        "categorical_accuracy": (positive > negatives.amax(-1)).to(candidates.dtype).mean(),
        "logits_pos": positive.mean(),
        "logits_neg": negatives.mean(),
    }
