"""What the embedding space looks like: order, continuity, first frames, width, and what it knows of time."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.sampling import sample_rng
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos
from counterpoint.evaluation.probes import effective_rank_estimate, time_probe
from counterpoint.evaluation.statistics import (
    Estimate,
    mean_percentile,
    mean_where_defined,
    statistic_percentile,
)
from counterpoint.rewards import scores

__all__ = ["representation_estimates"]

Array = NDArray[np.float64]

DRAWS, TRAJECTORIES = 5, 100
"""DecisionNCE's Table 2 (Appendix E.3): five draws of a hundred trajectories."""


def representation_estimates(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Every number on the space itself, by name; none depends on the reward's form."""
    found = {**_smoothness(embedded, seed), **_first_frames(embedded, seed)}
    found["effective_rank"] = effective_rank_estimate(embedded.videos)
    probe = time_probe(embedded.videos, seed=seed)
    if probe is not None:
        found["time_probe_r2"] = probe
    return found


def _smoothness(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """AcTOL's two properties, each beside what the same frames give in a random order.

    Distances are between embeddings of unit length, so that encoders of any scale compare.
    """
    found: dict[str, list[float]] = {}
    for number, (video, steps, own) in enumerate(
        zip(embedded.videos, embedded.steps, embedded.own, strict=True)
    ):
        times = steps.astype(np.float64)
        similarity = scores.potential(video, embedded.text[own : own + 1])[0]
        unit = video / np.maximum(np.linalg.norm(video, axis=1, keepdims=True), 1e-12)
        shuffled = sample_rng(seed, number, "shuffle").permutation(len(video))
        for name, value in {
            "ordering": metrics.ordering(similarity, times),
            "ordering_shuffled": metrics.ordering(similarity[shuffled], times),
            "step_norm": float(metrics.step_norms(unit).mean()),
            "step_norm_shuffled": float(metrics.step_norms(unit[shuffled]).mean()),
            "jump_ratio": metrics.jump_ratio(unit),
            "bridge_residual": metrics.bridge_residual(unit, times),
            "bridge_residual_shuffled": metrics.bridge_residual(unit[shuffled], times),
        }.items():
            found.setdefault(name, []).append(value)
    return {
        name: mean_where_defined(np.array(values), embedded.own.tolist(), seed=seed)
        for name, values in found.items()
    }


def _first_frames(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """DecisionNCE's Table 2, with what it needs beside it: centred embeddings, and last and random frames.

    The language mean is over the instructions of the videos, each video's once, as annotations are averaged
    in the paper. Centred embeddings have the mean over all frames of all videos subtracted.
    """
    rng = sample_rng(seed, 0, "table 2")
    count = len(embedded.videos)
    draws = [rng.choice(count, min(TRAJECTORIES, count), replace=False) for _ in range(DRAWS)]
    anywhere = [int(rng.integers(len(video))) for video in embedded.videos]
    frames = {"first": embedded.first(), "last": embedded.last(), "random": embedded.frames_at(anywhere)}
    language = embedded.text[embedded.own].mean(axis=0)
    centre = embedded.mean()
    found = {}
    for name, rows in frames.items():
        found[f"{name}_frame_similarity"] = _pairwise(rows, draws, seed)
        found[f"{name}_frame_similarity_centred"] = _pairwise(rows - centre, draws, seed)
    found["first_frame_to_language"] = _to_target(frames["first"], language, draws, seed)
    found["first_frame_to_language_centred"] = _to_target(frames["first"] - centre, language, draws, seed)
    return found


def _pairwise(rows: Float[Array, "V D"], draws: list[NDArray[np.int64]], seed: int) -> Estimate:
    """Mean over the draws; the interval resamples the videos drawn and counts no video against itself."""
    used = np.unique(np.concatenate(draws))
    gram = scores.cosine(rows[used], rows[used])

    def statistic(drawn: NDArray[np.int64]) -> float:
        weight = np.bincount(drawn, minlength=len(used)).astype(np.float64)
        pairs = weight.sum() ** 2 - (weight**2).sum()
        inside = weight @ gram @ weight - (weight**2) @ np.diag(gram)
        return float(inside / pairs) if pairs else math.nan

    value = float(np.mean([metrics.pairwise_cosine(rows[draw]) for draw in draws]))
    return _around(value, statistic_percentile(statistic, len(used), seed=seed))


def _to_target(
    rows: Float[Array, "V D"], target: Float[Array, " D"], draws: list[NDArray[np.int64]], seed: int
) -> Estimate:
    used = np.unique(np.concatenate(draws))
    value = float(np.mean([metrics.cosine_to(rows[draw], target) for draw in draws]))
    return _around(value, mean_percentile(scores.cosine(rows[used], target[None])[:, 0], seed=seed))


def _around(value: float, estimate: Estimate) -> Estimate:
    return Estimate(value, estimate.low, estimate.high, estimate.n, estimate.method)
