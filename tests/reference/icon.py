"""ICon as the paper writes it: Eq. 1 to 5 and Algorithm 1, one image, one key and one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def patch_mask(mask: Tensor, patch: int) -> list[bool]:
    """Eq. 2 of one image [H, W]."""
    H, W = mask.shape
    found = []
    for k in range(H // patch):
        for j in range(W // patch):
            pixels = mask[k * patch : (k + 1) * patch, j * patch : (j + 1) * patch]
            found.append(sum(int(p) for p in pixels.flatten()) > patch * patch / 2)
    return found


def farthest_points(mask: Sequence[bool], positions: Sequence[tuple[int, int]], count: int, start: int) -> list[int]:
    """Algorithm 1 of one image; ties to the first in the order given."""
    chosen = [start]
    while len(chosen) < count:
        best, farthest = -1, -1
        for v, inside in enumerate(mask):
            if not inside:
                continue
            distance = min(
                abs(positions[v][0] - positions[k][0]) + abs(positions[v][1] - positions[k][1]) for k in chosen
            )
            if distance > farthest:
                best, farthest = v, distance
        chosen.append(best)
    return chosen


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())


def info_nce(query: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Eq. 1."""
    return _contrast([dot(query, k) / temperature for k in positive], [dot(query, k) / temperature for k in negative])


def _contrast(right: list[Tensor], wrong: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=right[0].dtype)
    for logit in right:
        total = total - (logit.exp() / (logit.exp() + sum((w.exp() for w in wrong), torch.zeros(())))).log()
    return total / len(right)


def icon_image(
    tokens: Tensor, mask: Sequence[bool], agent_keys: Sequence[int], environment_keys: Sequence[int], t: float
) -> Tensor:
    """Eq. 3 and 4 of one image [P, D] and one layer, with cosines."""
    agent = [tokens[p] for p, inside in enumerate(mask) if inside]
    environment = [tokens[p] for p, inside in enumerate(mask) if not inside]
    q_a = torch.stack(agent).sum(0) / len(agent)
    q_e = torch.stack(environment).sum(0) / len(environment)
    K_a, K_e = [tokens[k] for k in agent_keys], [tokens[k] for k in environment_keys]
    return _contrast([cosine(q_a, k) / t for k in K_a], [cosine(q_a, k) / t for k in K_e]) + _contrast(
        [cosine(q_e, k) / t for k in K_e], [cosine(q_e, k) / t for k in K_a]
    )


def weights(layers: int, gamma: float) -> list[float]:
    """Eq. 5, layers counted from 1."""
    powers = [float(torch.tensor(gamma * i, dtype=torch.float64).exp()) for i in range(1, layers + 1)]
    return [power / sum(powers) for power in powers]


def icon_loss(
    tokens: Tensor, mask: Tensor, agent_keys: Tensor, environment_keys: Tensor, t: float, gamma: float
) -> Tensor:
    """Of tokens [L, n, P, D] and keys [L, n, ...]: mean over images that have enough tokens of both."""
    Na, Ne = agent_keys.shape[-1], environment_keys.shape[-1]
    total, images = torch.zeros((), dtype=tokens.dtype), 0
    for i, row in enumerate(mask.tolist()):
        if sum(row) < Na or len(row) - sum(row) < Ne:
            continue
        images += 1
        for layer, weight in enumerate(weights(len(tokens), gamma)):
            keys = agent_keys[layer, i].tolist(), environment_keys[layer, i].tolist()
            total = total + weight * icon_image(tokens[layer, i], row, *keys, t)
    return total / images if images else total
