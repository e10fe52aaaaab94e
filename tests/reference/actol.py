"""AcTOL as the paper writes it, one frame at a time. Differentiable, float64; a video is [T, D], its times a list."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.decisionnce import cosine


def vlo_video(frames: Tensor, text: Tensor, times: Sequence[int], temperature: float, directed: bool = False) -> Tensor:
    T = len(frames)
    sim = [cosine(frame, text) for frame in frames]

    def score(i: int, j: int) -> Tensor:
        gap = sim[j] - sim[i]
        if directed and times[i] != times[j]:
            return -gap / temperature if times[j] > times[i] else gap / temperature
        return -gap.abs() / temperature

    total = torch.zeros((), dtype=frames.dtype)
    for i in range(T):
        for j in range(T):
            if j == i:
                continue
            reach = abs(times[i] - times[j])
            negatives = [k for k in range(T) if k != i and abs(times[i] - times[k]) >= reach]
            logits = torch.stack([score(i, k) for k in negatives])
            total = total - (score(i, j) - logits.logsumexp(0))
    return total / max(1, T * (T - 1))


def lower_bound_video(times: Sequence[int]) -> float:
    T = len(times)
    total = 0.0
    for i in range(T):
        distances = [abs(times[i] - times[j]) for j in range(T) if j != i]
        for distance in set(distances):
            n = distances.count(distance)
            total += n * float(torch.tensor(float(n)).double().log())
    return total / max(1, T * (T - 1))


def bridge_video(
    frames: Tensor, times: Sequence[float], log: bool = False, ends: tuple[int, int] | None = None
) -> Tensor:
    i, j = ends or (0, len(frames) - 1)
    terms = []
    for t in range(len(frames)):
        if not times[i] < times[t] < times[j]:
            continue
        share = (times[t] - times[i]) / (times[j] - times[i])
        mean = frames[i] + share * (frames[j] - frames[i])
        variance = (times[t] - times[i]) * (times[j] - times[t]) / (times[j] - times[i])
        weight = 2 * torch.tensor(variance, dtype=frames.dtype)
        terms.append(((frames[t] - mean) ** 2).sum() / ((1 + weight).log() + 1e-6 if log else weight))
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=frames.dtype)


def bridge_as_trained_video(frames: Tensor, times: Sequence[float], log: bool = False) -> Tensor:
    inside = range(1, len(frames) - 1)
    T = times[-1] - times[0]
    total = torch.zeros((), dtype=frames.dtype)
    for t in inside:
        share = (times[t] - times[0]) / T
        mean = frames[0] + share * (frames[-1] - frames[0])
        weight = 2 * torch.tensor(share * (times[-1] - times[t]), dtype=frames.dtype)
        for j in inside:
            total = total + ((frames[j] - mean) ** 2).sum() / ((1 + weight).log() + 1e-6 if log else weight)
    return total / (len(inside) * frames.shape[1])
