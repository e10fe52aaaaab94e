"""Measures of the embedding space: order, continuity, first frames, width, and time read by a linear map."""

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

Array = NDArray[np.float64]

DRAWS, TRAJECTORIES = 5, 100
"""DecisionNCE's Table 2 (Appendix E.3): five samples of a hundred trajectories."""


def effective_rank(embeddings: Float[Array, "N D"]) -> float:
    """Return RankMe (Garrido et al., 2023): exp of the entropy of normalised singular values, 1 to min(N, D).

    1 means that everything lies on one line through the origin: the encoder has collapsed.
    """
    return _rank(np.linalg.svd(embeddings, compute_uv=False).astype(np.float64))


def effective_rank_estimate(videos: Sequence[Float[Array, "T D"]], *, groups: int = 10) -> Estimate:
    """Return RankMe of all frames, with an interval from leaving out a tenth of the videos at a time.

    A bootstrap would repeat videos and bias a rank downwards; the delete-a-group jackknife does not.
    """
    grams = [video.T @ video for video in videos]
    whole = np.sum(grams, axis=0)
    value, groups = _gram_rank(whole), min(groups, len(videos))
    if groups < 2:
        return Estimate(value, math.nan, math.nan, len(videos), "none: one video")
    left_out = np.array([_gram_rank(whole - np.sum(grams[g::groups], axis=0)) for g in range(groups)])
    error = float(np.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum()))
    method = f"jackknife over {groups} groups of videos"
    return Estimate(value, value - 1.96 * error, value + 1.96 * error, len(videos), method)


def time_probe(videos: Sequence[Float[Array, "T D"]], *, seed: int = 0, folds: int = 5) -> Estimate | None:
    """Return R^2 of progress t / (T-1) predicted linearly from one frame, in unseen videos; `None` for one video.

    Ridge regression on standardised embeddings, its strength chosen inside the training folds; every video is
    predicted by a map fitted on others. 1 is perfect, 0 is the mean's. The interval resamples videos.
    """
    if len(videos) < 2:
        return None
    linear, pipeline, preprocessing, selection = (
        import_extra(f"sklearn.{name}", "report")
        for name in ("linear_model", "pipeline", "preprocessing", "model_selection")
    )
    progress = np.concatenate([np.linspace(0.0, 1.0, len(video)) for video in videos])
    group = np.repeat(np.arange(len(videos)), [len(video) for video in videos])
    ridge = linear.RidgeCV(alphas=np.logspace(-1, 5, 7))
    predicted = selection.cross_val_predict(
        pipeline.make_pipeline(preprocessing.StandardScaler(), ridge),
        np.concatenate(videos),
        progress,
        groups=group,
        cv=selection.GroupKFold(min(folds, len(videos))),
    )
    wrong = np.bincount(group, (predicted - progress) ** 2)
    variance = np.bincount(group, (progress - progress.mean()) ** 2)
    return statistic_percentile(
        lambda drawn: 1.0 - float(wrong[drawn].sum() / variance[drawn].sum()), len(videos), seed=seed
    )


def representation_estimates(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return every number on the space itself, by name; none depends on the reward's form."""
    found = {**_smoothness(embedded, seed), **_first_frames(embedded, seed)}
    found["effective_rank"] = effective_rank_estimate(embedded.videos)
    probe = time_probe(embedded.videos, seed=seed)
    return found if probe is None else {**found, "time_probe_r2": probe}


def _smoothness(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return AcTOL's two properties beside those of the same frames in random order, at unit length."""
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
    own_instructions = embedded.own.tolist()
    return {name: mean_where_defined(np.array(values), own_instructions, seed=seed) for name, values in found.items()}


def _first_frames(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return DecisionNCE's Table 2, and beside it centred embeddings and last and random frames.

    The language mean is over the videos' instructions, as annotations are averaged in the paper. Centred embeddings
    have the mean over all frames of all videos subtracted.
    """
    rng, count = sample_rng(seed, 0, "table 2"), len(embedded.videos)
    draws = [rng.choice(count, min(TRAJECTORIES, count), replace=False) for _ in range(DRAWS)]
    anywhere = [int(rng.integers(len(video))) for video in embedded.videos]
    frames = {"first": embedded.first(), "last": embedded.last(), "random": embedded.frames_at(anywhere)}
    language, centre = embedded.text[embedded.own].mean(axis=0), embedded.mean()
    found = {}
    for ending, offset in (("", 0.0), ("_centred", centre)):
        for name, rows in frames.items():
            found[f"{name}_frame_similarity{ending}"] = _pairwise(rows - offset, draws, seed)
        found[f"first_frame_to_language{ending}"] = _to_target(frames["first"] - offset, language, draws, seed)
    return found


def _pairwise(rows: Float[Array, "V D"], draws: list[NDArray[np.int64]], seed: int) -> Estimate:
    """Return the mean over the samples; the interval resamples their videos and pairs no video with itself."""
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


def _gram_rank(gram: Array) -> float:
    return _rank(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)))


def _rank(singular: Array) -> float:
    share = singular[singular > 0.0] / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
