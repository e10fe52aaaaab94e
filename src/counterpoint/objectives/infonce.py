"""InfoNCE over a batch's own pairs, and what the losses of several papers share around it.

rows     L_r = mean_i -log exp(F[i, i]) / sum_j exp(F[i, j])
columns  L_c = mean_j -log exp(F[j, j]) / sum_i exp(F[i, j])
symmetric    (L_r + L_c) / 2
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from counterpoint.data.draws import sample_rng
from counterpoint.errors import require

P = ParamSpec("P")
R = TypeVar("R")

Similarity = Callable[[Tensor, Tensor], Tensor]
"""A function of two raw embeddings [..., D], broadcast against each other, to their similarity [...]."""


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of tensors outside autocast, in float32 or wider.

    Half precision keeps three digits, and losses divide similarities by temperatures near 0.01.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        available = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if available else nullcontext():
            wide = cast("Callable[..., R]", function)
            return wide(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})

    return wrapped


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return value


@in_full_precision
def infonce(logits: Float[Tensor, "B B"]) -> Float[Tensor, ""]:
    """Return InfoNCE of every row's own column among the batch's; log B at chance.

    Args:
        logits: F, row i: a query; column j: a key.

    Raises:
        BadInputError: A matrix that is not square.
    """
    ok = logits.ndim == 2 and logits.shape[0] == logits.shape[1]
    require(ok, "logits", shapes(logits), "[B, B]", "score every row's query with every row's key")
    return logits.logsumexp(1).mean() - logits.diagonal().mean()


def symmetric_infonce(logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None) -> Float[Tensor, ""]:
    """Return symmetric InfoNCE; row i and column i are a pair.

    With `labels`, entries whose row and column have the same label are positives too: each is contrasted with the
    negatives of its row (column) alone, and a row's (column's) loss is the mean over its positives. Positives
    are thus never each other's negatives, and with distinct labels the loss is the one without labels.

    Args:
        logits: Scores of every row with every column.
        labels: Equal numbers for interchangeable samples.

    Returns:
        0 for a batch without negatives.
    """
    if labels is None:
        both = logits.logsumexp(1) + logits.logsumexp(0)
        return both.mean() / 2 - logits.diagonal().mean()
    same = labels[:, None] == labels
    share = same / same.sum(1, keepdim=True)  # the same for rows and columns: `same` is symmetric
    negatives = logits.masked_fill(same, torch.finfo(logits.dtype).min)
    rows, columns = (torch.logaddexp(negatives.logsumexp(dim, keepdim=True), logits) for dim in (1, 0))
    return ((rows + columns - 2 * logits) * share).sum() / (2 * len(logits))


def contrast_metrics(
    logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """Return the three metrics of every InfoNCE objective, from logits whose positives are on the diagonal.

    Returns:
        `categorical_accuracy`: share of rows whose greatest logit is a positive. `logits_pos`, `logits_neg`:
        mean logit of positives and of negatives (0 where there is none).
    """
    logits = logits.detach()
    if labels is None:
        labels = torch.arange(len(logits), device=logits.device)
    same = labels[:, None] == labels
    positives, positive_sum = same.sum(), logits.where(same, 0).sum()
    return {
        "categorical_accuracy": (labels[logits.argmax(1)] == labels).to(logits.dtype).mean(),
        "logits_pos": positive_sum / positives,
        "logits_neg": (logits.sum() - positive_sum) / (logits.numel() - positives).clamp(min=1),
    }


def candidate_metrics(candidates: Float[Tensor, "*batch C"]) -> dict[str, Float[Tensor, ""]]:
    """Return the metrics of `contrast_metrics` from sets of candidates whose first is the positive."""
    candidates = candidates.detach()
    positive, negatives = candidates[..., 0], candidates[..., 1:]
    return {
        "categorical_accuracy": (positive > negatives.amax(-1)).to(candidates.dtype).mean(),
        "logits_pos": positive.mean(),
        "logits_neg": negatives.mean(),
    }


def unit(raw: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Scale embeddings to length 1; a zero vector stays zero."""
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    return raw / length.where(length > 0, 1)


def negative_distance(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """Return -||a - b||_2; its gradient at a = b is 0."""
    distance: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return -distance


def cosine(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """Return the cosine of the angle between a and b; 0 where one of them is 0."""
    return functional.cosine_similarity(a, b, dim=-1)


def embedding_norm(frames: Float[Tensor, "B F D"], order: int) -> Float[Tensor, ""]:
    """Return the mean L1 (`order` 1) or L2 (`order` 2) norm of all B F embeddings: the penalty of R3M and VIP."""
    norm: Tensor = torch.linalg.vector_norm(frames, ord=order, dim=-1)
    return norm.mean()


def other_rows(sample: Int[Tensor, " B"], count: int) -> Int[Tensor, "N B"]:
    """Return N other rows of the batch for each row, as its negatives.

    The rows form a circle in random order, and negative n of a row is its (n+1)-th neighbour: every `result[n]` is a
    permutation without fixed points, and up to N = B - 1 a row's negatives are distinct. The order depends on the set
    of samples alone, not on the ranks that hold them.

    Args:
        sample: Global sample indices, distinct.
        count: N; beyond B - 1 the neighbours repeat.

    Raises:
        BadInputError: A batch of one, with `count` > 0.
    """
    B = len(sample)
    hint = "raise batch_size or set num_negatives to 0"
    require(B > 1 or not count, "batch", f"{B} sample", "at least 2, since negatives are other rows", hint)
    if not count:
        return sample.new_empty((0, B))
    shuffle = sample_rng(0, int(sample.min()), "other rows").permutation(B)
    circle = torch.argsort(sample)[torch.from_numpy(shuffle).to(sample.device)]
    position = torch.argsort(circle)
    neighbour = 1 + torch.arange(count, device=sample.device) % (B - 1)
    return circle[(position + neighbour[:, None]) % B]


def shapes(*tensors: Tensor) -> str:
    """Describe tensors by their shapes, for an error."""
    return f"shape{'s' if len(tensors) > 1 else ''} {', '.join(str(tuple(x.shape)) for x in tensors)}"


def check_clips(frames: Float[Tensor, "B F D"], text: Float[Tensor, "B D"], *, least: int = 1) -> None:
    """Refuse embeddings of other shapes than [B, F, D] with F >= `least` and [B, D]."""
    ok = frames.ndim == 3 and frames.shape[1] >= least and text.shape == (frames.shape[0], frames.shape[2])
    expected = f"[B, F, D] with F >= {least}, and [B, D]"
    hint = "pass the embeddings of F frames of each clip, and one embedding of its instruction"
    require(ok, "frames, text", shapes(frames, text), expected, hint)


def check_frames(frames: Float[Tensor, "B F D"], order: str) -> None:
    """Refuse embeddings [B, F, D] with fewer frames than `order` names, as in "o_0, o_g, o_t, o_{t+1}"."""
    least = order.count(",") + 1
    ok = frames.ndim == 3 and frames.shape[1] >= least
    hint = f"pass the embeddings of ({order}) of each clip, in this order"
    require(ok, "frames", shapes(frames), f"[B, F, D] with F >= {least}", hint)
