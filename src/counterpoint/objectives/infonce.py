"""InfoNCE over a batch's own pairs: the mathematics that several papers really share, and nothing else.

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

from counterpoint.errors import BadInputError

__all__ = ["check_clips", "contrast_metrics", "in_full_precision", "symmetric_infonce", "unit"]

P = ParamSpec("P")
R = TypeVar("R")


def symmetric_infonce(logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None) -> Float[Tensor, ""]:
    """Symmetric InfoNCE; row i and column i are a pair.

    With `labels`, entries whose row and column carry one label are positives too: each is contrasted with the
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
    share = same / same.sum(1, keepdim=True)  # rows and columns alike: a label has as many of either
    negatives = logits.masked_fill(same, torch.finfo(logits.dtype).min)
    rows, columns = (torch.logaddexp(negatives.logsumexp(dim, keepdim=True), logits) for dim in (1, 0))
    return ((rows + columns - 2 * logits) * share).sum() / (2 * len(logits))


def contrast_metrics(
    logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """The three numbers every InfoNCE objective logs.

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


def unit(raw: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Embeddings scaled to length 1; a zero vector stays zero."""
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    return raw / length.where(length > 0, 1)


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of tensors outside autocast, on at least single precision.

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


def check_clips(frames: Float[Tensor, "B F D"], text: Float[Tensor, "B D"], *, least: int = 1) -> None:
    """Refuse embeddings whose shapes do not pair up.

    Args:
        frames: Raw embeddings.
        text: Raw embeddings.
        least: Smallest F.

    Raises:
        BadInputError: Other shapes than [B, F, D] with F >= `least` and [B, D].
    """
    if frames.ndim != 3 or frames.shape[1] < least or text.shape != (frames.shape[0], frames.shape[2]):
        raise BadInputError(
            "frames, text",
            f"shapes {tuple(frames.shape)} and {tuple(text.shape)}",
            f"[B, F, D] with F >= {least}, and [B, D]",
            "pass the embeddings of F frames of each clip, and one embedding of its instruction",
        )
