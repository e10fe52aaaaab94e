"""Premier-TACO as the paper and the authors' code write it, one row and one negative at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """a.b, one product at a time."""
    return torch.stack([x * y for x, y in zip(a, b, strict=True)]).sum()


def cross_entropy(logits: list[Tensor], label: int) -> Tensor:
    """-log of the label's share."""
    return -(logits[label].exp() / torch.stack([x.exp() for x in logits]).sum()).log()


def binary(predicted: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The authors' code: two-class cross entropies of [g.h, 0] (class 0) and [g.h~, 0] (class 1), mean over 2 B."""
    zero = torch.zeros((), dtype=predicted.dtype)
    rows = [cross_entropy([dot(g, h), zero], 0) for g, h in zip(predicted, positive, strict=True)]
    rows += [cross_entropy([dot(g, h), zero], 1) for g, h in zip(predicted, negative, strict=True)]
    return torch.stack(rows).mean()


def softmax(predicted: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Eq. 2 with e to the power of each product."""
    rows = zip(predicted, positive, negative, strict=True)
    return torch.stack([cross_entropy([dot(g, h), dot(g, other)], 0) for g, h, other in rows]).mean()


def window_binary(predicted: Tensor, positive: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
    """The binary form, each row's negatives averaged first; rows without any have none to add."""
    zero = torch.zeros((), dtype=predicted.dtype)
    right = [cross_entropy([dot(g, h), zero], 0) for g, h in zip(predicted, positive, strict=True)]
    wrong = []
    for g, near, there in zip(predicted, negatives, valid, strict=True):
        row = [cross_entropy([dot(g, h), zero], 1) for h, yes in zip(near, there, strict=True) if yes]
        if row:
            wrong.append(torch.stack(row).mean())
    return (torch.stack(right).mean() + (torch.stack(wrong).mean() if wrong else zero)) / 2


def window_softmax(predicted: Tensor, positive: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
    """The positive's share among itself and the row's negatives, over rows that have one."""
    rows = []
    for g, h, near, there in zip(predicted, positive, negatives, valid, strict=True):
        others = [dot(g, other) for other, yes in zip(near, there, strict=True) if yes]
        if others:
            rows.append(cross_entropy([dot(g, h), *others], 0))
    return torch.stack(rows).mean() if rows else torch.zeros((), dtype=predicted.dtype)


def mixed(predicted: Tensor, positive: Tensor, negatives: Tensor, valid: Tensor, copies: int = 1) -> Tensor:
    """The positive's share among all rows' positives and the row's own negatives, each taken `copies` times."""
    rows = []
    for i, g in enumerate(predicted):
        candidates = [dot(g, h) for h in positive]
        for other, yes in zip(negatives[i], valid[i], strict=True):
            candidates += [dot(g, other)] * copies if yes else []
        rows.append(cross_entropy(candidates, i))
    return torch.stack(rows).mean()


def accuracy(predicted: Tensor, positive: Tensor, negatives: Tensor, valid: Tensor) -> float:
    """Share of a row's negatives below its positive, ties half, over rows that have one."""
    rows = []
    for g, h, near, there in zip(predicted, positive, negatives, valid, strict=True):
        won = [
            0.5 if dot(g, h) == dot(g, other) else float(dot(g, h) > dot(g, other))
            for other, yes in zip(near, there, strict=True)
            if yes
        ]
        if won:
            rows.append(sum(won) / len(won))
    return sum(rows) / len(rows)
