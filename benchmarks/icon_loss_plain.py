"""ICon's loss written plainly, step by step as the authors have it; `icon_loss.py` measures it beside the library's.

For every layer anew: keys of the environment, then of the agent, by farthest point sampling that starts from one random
order of the tokens for the whole batch; queries as masked means; vectors scaled to length 1; each positive key against
all negative keys. Gradients are left to automatic differentiation. Unlike the authors' the mean over images is taken,
so that the two can be compared in value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["plain_icon_loss", "plain_sampling"]


def plain_sampling(mask: Tensor, count: int, side: int) -> Tensor:
    """Farthest tokens of float masks [n, P] on a square grid: int64 [n, count]."""
    n, P = mask.shape
    order = torch.randperm(P)
    rows = torch.arange(P).div(side, rounding_mode="floor")
    places = torch.stack([rows, torch.arange(P) % side], 1).float()[order].expand(n, P, 2)
    allowed = mask[:, order]
    images = torch.arange(n)
    pick = allowed.argsort(dim=1, descending=True)[:, 0]
    nearest = torch.full((n, P), torch.inf)
    picks = [pick]
    while len(picks) < count:
        distance = torch.cdist(places, places[images, pick][:, None], p=1)[..., 0]
        nearest = torch.minimum(nearest, distance)
        pick = (nearest * allowed).argmax(1)
        picks.append(pick)
    return order[torch.stack(picks, 1)]


def plain_info_nce(query: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Mean over images and positive keys: [n, D], [n, p, D], [n, m, D] to a scalar."""
    query, positive, negative = (functional.normalize(x, dim=-1) for x in (query, positive, negative))
    right = torch.einsum("nd,npd->np", query, positive) / temperature
    wrong = torch.einsum("nd,nmd->nm", query, negative) / temperature
    logits = torch.cat([right[..., None], wrong[:, None].expand(-1, right.shape[1], -1)], -1)
    labels = torch.zeros(right.numel(), dtype=torch.int64)
    return functional.cross_entropy(logits.flatten(0, 1), labels)


def plain_icon_loss(
    tokens: Sequence[Tensor],
    mask: Tensor,
    agent_keys: int,
    environment_keys: int,
    *,
    temperature: float = 0.3,
    gamma: float = 0.1,
    given: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Of tokens [n, P, D] of each layer and float masks [n, P]; `given` are keys to take instead of sampled ones."""
    side = round(mask.shape[1] ** 0.5)
    losses = []
    for features in tokens:
        if given is None:
            environment = plain_sampling(1 - mask, environment_keys, side)
            agent = plain_sampling(mask, agent_keys, side)
        else:
            agent, environment = given
        found = []
        for inside, own in ((1 - mask, environment), (mask, agent)):
            total = (features * inside[..., None]).sum(1)
            query = total / (inside.sum(1, keepdim=True) + 1e-6)
            keys = features.gather(1, own[..., None].expand(-1, -1, features.shape[-1]))
            found.append((query, keys))
        (q_e, k_e), (q_a, k_a) = found
        losses.append(plain_info_nce(q_e, k_e, k_a, temperature) + plain_info_nce(q_a, k_a, k_e, temperature))
    weights = torch.exp(gamma * torch.arange(len(losses)))
    return (weights / weights.sum() * torch.stack(losses)).sum()
