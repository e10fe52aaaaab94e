"""What an embedding holds, by the simplest means: a linear map for time, a spectrum for its width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.evaluation.statistics import Estimate, statistic_percentile
from counterpoint.rewards.extras import report_package

__all__ = ["effective_rank", "effective_rank_estimate", "time_probe"]

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
    linear, pipeline = report_package("sklearn.linear_model"), report_package("sklearn.pipeline")
    scaler = report_package("sklearn.preprocessing").StandardScaler()
    selection = report_package("sklearn.model_selection")
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
