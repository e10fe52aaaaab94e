"""What an embedding holds, by the simplest means: a linear map for time, a spectrum for its width.

What the embedding space looks like: order, continuity, first frames, width, and what it knows of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.errors import import_extra
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos
from counterpoint.evaluation.statistics import Estimate, mean_percentile, mean_where_defined, statistic_percentile
from counterpoint.rewards.model import cosine, potential

__all__ = ["effective_rank", "effective_rank_estimate", "representation_estimates", "time_probe"]


Array = NDArray[np.float64]


def effective_rank(embeddings: Float[Array, "N D"]) -> float:
    """RankMe (Garrido et al., 2023): exp of the entropy of normalised singular values, 1 to min(N, D).

    1 means that everything lies on one line through the origin: the encoder has collapsed.
    """
    singular = np.linalg.svd(embeddings, compute_uv=False).astype(np.float64)
    return _rank(singular)


def effective_rank_estimate(videos: Sequence[Float[Array, "T D"]], *, groups: int = 10) -> Estimate:
    """RankMe of all frames, with an interval from leaving out a tenth of the videos at a time.

    A bootstrap would draw videos twice and bias a rank downwards; the delete-a-group jackknife does not.
    """
    grams = [video.T @ video for video in videos]
    whole = np.sum(grams, axis=0)
    value = _gram_rank(whole)
    groups = min(groups, len(videos))
    if groups < 2:
        return Estimate(value, float("nan"), float("nan"), len(videos), "none: one video")
    left_out = np.array([_gram_rank(whole - np.sum(grams[g::groups], axis=0)) for g in range(groups)])
    error = float(np.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum()))
    method = f"jackknife over {groups} groups of videos"
    return Estimate(value, value - 1.96 * error, value + 1.96 * error, len(videos), method)


def time_probe(videos: Sequence[Float[Array, "T D"]], *, seed: int = 0, folds: int = 5) -> Estimate | None:
    """R^2 of progress t / (T-1) predicted linearly from one frame's embedding, in unseen videos.

    Ridge regression on standardised embeddings, its strength chosen inside the training folds; every video
    is predicted by a map fitted on other videos. 1 is perfect, 0 is what predicting the mean gives, and
    below 0 the map misleads. The interval resamples videos, given the predictions.

    Returns:
        `None` for fewer than two videos.
    """
    if len(videos) < 2:
        return None
    linear, pipeline = import_extra("sklearn.linear_model", "report"), import_extra("sklearn.pipeline", "report")
    scaler = import_extra("sklearn.preprocessing", "report").StandardScaler()
    selection = import_extra("sklearn.model_selection", "report")
    progress = np.concatenate([np.linspace(0.0, 1.0, len(video)) for video in videos])
    group = np.repeat(np.arange(len(videos)), [len(video) for video in videos])
    predicted = selection.cross_val_predict(
        pipeline.make_pipeline(scaler, linear.RidgeCV(alphas=np.logspace(-1, 5, 7))),
        np.concatenate(videos),
        progress,
        groups=group,
        cv=selection.GroupKFold(min(folds, len(videos))),
    )
    wrong = np.bincount(group, (predicted - progress) ** 2)
    spread = np.bincount(group, (progress - progress.mean()) ** 2)
    return statistic_percentile(
        lambda drawn: 1.0 - float(wrong[drawn].sum() / spread[drawn].sum()), len(videos), seed=seed
    )


def _gram_rank(gram: Array) -> float:
    return _rank(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)))


def _rank(singular: Array) -> float:
    share = singular[singular > 0.0] / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


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
    for number, (video, steps, own) in enumerate(zip(embedded.videos, embedded.steps, embedded.own, strict=True)):
        times = steps.astype(np.float64)
        similarity = potential(video, embedded.text[own : own + 1])[0]
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
        name: mean_where_defined(np.array(values), embedded.own.tolist(), seed=seed) for name, values in found.items()
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
    gram = cosine(rows[used], rows[used])

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
    return _around(value, mean_percentile(cosine(rows[used], target[None])[:, 0], seed=seed))


def _around(value: float, estimate: Estimate) -> Estimate:
    return Estimate(value, estimate.low, estimate.high, estimate.n, estimate.method)
