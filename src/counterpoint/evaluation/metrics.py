"""Metrics of rewards and representations, as pure functions.

A reward curve has one value per frame, in temporal order. Scores [V, L] have one row per video and one column per
instruction; `own[v]` is the column of the instruction that video v carries out. All cosines are of raw embeddings.
`docs/methods/metrics.md` describes the limits of each metric.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from counterpoint.errors import import_extra
from counterpoint.evaluation.statistics import Estimate
from counterpoint.rewards.model import cosine

Array = NDArray[np.float64]
CONSTANT = 1e-12
"""A curve is constant if its range is at most this share of its largest value."""


def value_order_correlation(values: Float[Array, "*L T"]) -> Any:
    """Return VOC (GVL, arXiv 2411.04549): Spearman's rho between curves and time, one number per curve.

    A constant curve gets 0. A curve is constant if its range is below 1e-12 of its largest value, since the order of
    such values is due to rounding. VOC does not depend on the video's content: a reward that only counts frames
    scores 1. Never report VOC without controls.
    """
    ranks = import_extra("scipy.stats", "report").rankdata(values, axis=-1)
    return _with_time(np.where(_constant(values)[..., None], 0.0, ranks))


def value_time_correlation(values: Float[Array, "*L T"]) -> Any:
    """Return Pearson's r between curves and time, 0 for a constant curve; Robometer's code reports it as VOC.

    Like VOC (`value_order_correlation`), it does not depend on the video's content. A curve with a single jump at its
    end gets a far lower r than VOC.
    """
    return _with_time(np.where(_constant(values)[..., None], 0.0, values))


def kendall_tau_b(values: Float[Array, "*L T"]) -> Any:
    """Return Kendall's tau-b between curves and time; ties are left out of the denominator, a constant curve gets 0."""
    earlier, later = np.triu_indices(np.shape(values)[-1], 1)
    signs = np.sign(values[..., later] - values[..., earlier])
    untied = np.maximum((signs != 0).sum(axis=-1), 1) * max(len(earlier), 1)
    return np.where(_constant(values), 0.0, signs.sum(axis=-1) / np.sqrt(untied))[()]


def _constant(values: Float[Array, "*L T"]) -> NDArray[np.bool_]:
    return np.asarray(np.ptp(values, axis=-1) <= CONSTANT * np.abs(values).max(axis=-1))


def _with_time(values: Float[Array, "*L T"]) -> Any:
    """Return Pearson's r of each row with 0, 1, ..., T-1; 0 for a row that does not change."""
    time = np.arange(values.shape[-1]) - (values.shape[-1] - 1) / 2
    moved = values - values.mean(axis=-1, keepdims=True)
    size = np.sqrt((moved**2).sum(axis=-1) * (time**2).sum())
    return np.clip(moved @ time / np.where(size > 0, size, 1.0), -1.0, 1.0)[()]


def matched(scores: Float[Array, "V L"], own: Int[NDArray[np.int64], " V"]) -> Bool[NDArray[np.bool_], " V"]:
    """Return True for each video that scores strictly highest under its instruction; a tie counts as False.

    The mean of these flags is the matched accuracy, with chance 1/L. Since ties count as False, an encoder that maps
    everything to one point scores 0. If ties counted for the first instruction, it would score the share of that
    instruction's videos.
    """
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, own] = -np.inf
    return np.asarray(scores[rows, own] > others.max(axis=1))


def triples(
    scores: Float[Array, "V L"],
    own: Int[NDArray[np.int64], " V"],
    allowed: Bool[NDArray[np.bool_], "L L"] | None = None,
) -> Float[Array, " V"]:
    """Return each video's share of other instructions that score lower than its own; a tie does not count as lower.

    Args:
        scores: Scores, one row per video.
        own: Column of each video's instruction.
        allowed: In row i, True for the instructions that count for videos of instruction i; by default all others.

    Returns:
        One share per video, `nan` if no other instruction counts. Chance is 1/2.
    """
    other = ~np.eye(scores.shape[1], dtype=bool)
    counted = (other if allowed is None else allowed & other)[own]
    wins = (scores[np.arange(len(scores)), own][:, None] > scores) & counted
    totals = counted.sum(axis=1)
    return np.where(totals > 0, wins.sum(axis=1) / np.maximum(totals, 1), np.nan)


def quality_ranking(
    levels: Sequence[Float[Array, " n"]], weights: Sequence[Float[Array, "*R n"]] | None = None
) -> Float[Array, "*R"]:
    """Return Kendall's tau-b between score and quality, over trajectories of one task.

    A combination has one trajectory per quality level, such as failure < suboptimal < success; the result is the mean
    over all combinations. This is Robometer's protocol, but Robometer's code computes tau-a. Pairs with equal scores
    are left out of the denominator. A combination with only equal scores counts as 0.

    Args:
        levels: Scores of the trajectories of each level, in the order of quality.
        weights: How often each trajectory counts, with one row per bootstrap sample; by default once.

    Returns:
        A number in [-1, 1] per sample; `nan` if a level has no trajectory.
    """
    scores = [np.asarray(level, np.float64) for level in levels]
    grid = np.meshgrid(*scores, indexing="ij")
    signs = [np.sign(grid[high] - grid[low]) for low, high in itertools.combinations(range(len(grid)), 2)]
    untied = np.sum([sign != 0 for sign in signs], axis=0)
    counts = [np.ones(len(level)) for level in scores] if weights is None else list(weights)
    letters = "ijkl"[: len(scores)]
    equation = f"{letters},{','.join(f'...{letter}' for letter in letters)}->..."
    summed = np.einsum(equation, sum(signs) / np.sqrt(np.maximum(untied, 1) * len(signs)), *counts, optimize=True)
    return _ratio(summed, np.prod([count.sum(axis=-1) for count in counts], axis=0))


def auroc(
    scores: Float[Array, " N"], positive: Bool[NDArray[np.bool_], " N"], weights: Float[Array, "*R N"] | None = None
) -> Float[Array, "*R"]:
    """Return the share of pairs of a success and a failure in which the success scores higher; a tie counts half.

    The result is `nan` without successes or without failures. Chance is 1/2. AUROC does not show where a good threshold
    lies. For `weights` see `quality_ranking`.
    """
    counts = np.ones(len(scores)) if weights is None else weights
    high, low = scores[positive][:, None], scores[~positive]
    wins, losses = counts[..., positive], counts[..., ~positive]
    won = (wins @ ((high > low) + 0.5 * (high == low)) * losses).sum(axis=-1)
    return _ratio(won, wins.sum(axis=-1) * losses.sum(axis=-1))


def auprc(
    scores: Float[Array, " N"], positive: Bool[NDArray[np.bool_], " N"], weights: Float[Array, "*R N"] | None = None
) -> Float[Array, "*R"]:
    """Return the average precision: the sum over falling thresholds of precision times the increase in recall.

    The result is `nan` without successes. A random ranking gets about the share of successes, so compare values only
    between data with the same share. For `weights` see `quality_ranking`.
    """
    counts, order = np.ones(len(scores)) if weights is None else weights, np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # last index of each run of equal scores
    hits, taken = (np.cumsum(part[..., order], axis=-1)[..., last] for part in (counts * positive, counts))
    gained = np.diff(hits, axis=-1, prepend=0.0)
    return _ratio((hits / np.maximum(taken, 1e-300) * gained).sum(axis=-1), hits[..., -1])


def f1(
    predicted: Bool[NDArray[np.bool_], " N"],
    positive: Bool[NDArray[np.bool_], " N"],
    weights: Float[Array, "*R N"] | None = None,
) -> Float[Array, "*R"]:
    """Return the harmonic mean of precision and recall; `nan` without successes. `weights`: see `quality_ranking`."""
    counts = np.ones(len(predicted)) if weights is None else weights
    hits, named, there = ((counts * part).sum(axis=-1) for part in (predicted & positive, predicted, positive))
    return _ratio(2 * hits, np.where(there > 0, named + there, 0.0))


def _ratio(above: Float[Array, "*R"], below: Float[Array, "*R"]) -> Float[Array, "*R"]:
    """Return the quotient; `nan` if the denominator is 0."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)


def grade(progress: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return progress in [0, 1] on RoboRewardBench's scale of 1 to 5: the nearest of 0, 1/4, 1/2, 3/4 and 1."""
    return np.asarray(1.0 + np.floor(4.0 * np.clip(progress, 0.0, 1.0) + 0.5))


def confusion_gap(scores: Float[Array, "V L"], own: Int[NDArray[np.int64], " V"]) -> Float[Array, " V"]:
    """Return each video's score under its own instruction minus its mean score under all other instructions.

    If every instruction has the same number of videos, the mean over videos is mean(diagonal) - mean(off-diagonal) of
    the language confusion matrix.
    """
    mine = scores[np.arange(len(scores)), own]
    return np.asarray(mine - (scores.sum(axis=1) - mine) / (scores.shape[1] - 1))


def one_word_apart(instructions: Sequence[str]) -> Bool[NDArray[np.bool_], "L L"]:
    """Return True for pairs of instructions that differ in exactly one word, which are used as hard negatives.

    An example is "open the drawer" and "close the drawer". Case, punctuation and articles are ignored.
    """
    words = [[w for w in re.findall(r"\w+", text.lower()) if w not in ("a", "an", "the")] for text in instructions]

    def apart(left: list[str], right: list[str]) -> bool:
        return len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1

    return np.array([[apart(left, right) for right in words] for left in words], dtype=bool)


def ordering(similarity: Float[Array, " T"], times: Float[Array, " T"] | None = None) -> float:
    """Return the share of triples of frames in the order that AcTOL's VLO loss rewards (section 4.1).

    A triple is three frames i, j, k with j and k other than i, and |t_i - t_j| < |t_i - t_k|. It is in order if
    |s_i - s_j| < |s_i - s_k|, where s is the similarity of a frame to the instruction. Chance is 1/2. The share is the
    same for s and -s, so a falling reward scores as high as a rising one. The result is `nan` if there are no triples.

    Args:
        similarity: Similarity of each frame to the instruction.
        times: Time of each frame; by default its number.
    """
    t = np.arange(len(similarity), dtype=np.float64) if times is None else times
    kept = total = 0
    for i in range(len(t)):
        rest = np.arange(len(t)) != i
        far, gap = np.abs(t - t[i])[rest], np.abs(similarity - similarity[i])[rest]
        nearer = far[:, None] < far[None, :]
        total += int(nearer.sum())
        kept += int((nearer & (gap[:, None] < gap[None, :])).sum())
    return kept / total if total else float("nan")


def step_norms(embeddings: Float[Array, "T D"]) -> Float[Array, " T-1"]:
    """Return ||z_{t+1} - z_t|| for every step."""
    return np.asarray(np.linalg.norm(np.diff(embeddings, axis=0), axis=1))


def jump_ratio(embeddings: Float[Array, "T D"]) -> float:
    """Return the largest step divided by the mean step; 1 if all steps are equal, `nan` if all steps are 0."""
    norms = step_norms(embeddings)
    return float(norms.max() / norms.mean()) if norms.any() else float("nan")


def bridge_residual(embeddings: Float[Array, "T D"], times: Float[Array, " T"] | None = None) -> float:
    """Return AcTOL's Brownian-bridge term (Eq. 4, variance of Eq. 30), the mean over interior frames.

    The term is ||z_t - lerp(z_0, z_{T-1}; t)||^2 / (2 var_t) with var_t = (t - t_0)(t_{T-1} - t) / (t_{T-1} - t_0).
    It grows with the square of the embeddings' length, so compare only embeddings of the same scale. The result is
    `nan` for fewer than three frames.

    Args:
        embeddings: Embedding of each frame.
        times: Time of each frame; by default its number.
    """
    t = np.arange(len(embeddings), dtype=np.float64) if times is None else times
    if len(t) < 3:
        return float("nan")
    since, left, span = t[1:-1] - t[0], t[-1] - t[1:-1], t[-1] - t[0]
    line = embeddings[0] + (since / span)[:, None] * (embeddings[-1] - embeddings[0])
    squared = ((embeddings[1:-1] - line) ** 2).sum(axis=1)
    return float((squared / (2 * since * left / span)).mean())


def pairwise_cosine(embeddings: Float[Array, "N D"], weights: Float[Array, "*R N"] | None = None) -> Float[Array, "*R"]:
    """Return the mean cosine over all pairs of different rows.

    For first frames, this is the first row of DecisionNCE's Table 2. An untrained network scores near 1 too, so compare
    centred embeddings. The result is `nan` for one row. For `weights` see `quality_ranking`; a row that counts twice is
    not paired with itself.
    """
    gram, counts = cosine(embeddings, embeddings), np.ones(len(embeddings)) if weights is None else weights
    inside = ((counts @ gram) * counts).sum(axis=-1) - (counts**2) @ np.diag(gram)
    return _ratio(inside, counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1))


def effective_rank(embeddings: Float[Array, "N D"]) -> float:
    """Return RankMe (Garrido et al., 2023): exp of the entropy of normalised singular values, from 1 to min(N, D).

    1 means that everything lies on one line through the origin: the encoder has collapsed.
    """
    return _rank(np.linalg.svd(embeddings, compute_uv=False).astype(np.float64))


def effective_rank_estimate(videos: Sequence[Float[Array, "T D"]], *, groups: int = 10) -> Estimate:
    """Return RankMe of all frames, with an interval computed by leaving out a tenth of the videos at a time.

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


def time_probe(
    videos: Sequence[Float[Array, "T D"]], weights: Float[Array, "*R V"] | None = None, *, folds: int = 5
) -> Float[Array, "*R"]:
    """Return R^2 of progress t / (T-1) predicted linearly from one frame, on unseen videos; `nan` for one video.

    The prediction is a ridge regression on standardised embeddings, with its strength chosen within the training folds.
    Every video is predicted by a map fitted on other videos. A perfect prediction scores 1, and predicting the mean
    scores 0. For `weights` see `quality_ranking`.
    """
    counts = np.ones(len(videos)) if weights is None else weights
    if len(videos) < 2:
        return np.full(counts.shape[:-1], np.nan)
    progress = np.concatenate([np.linspace(0.0, 1.0, len(video)) for video in videos])
    group = np.repeat(np.arange(len(videos)), [len(video) for video in videos])
    predicted = cross_predicted(np.concatenate(videos), progress, group, folds=folds)
    wrong = np.bincount(group, (predicted - progress) ** 2)
    variance = np.bincount(group, (progress - progress.mean()) ** 2)
    return 1.0 - _ratio(counts @ wrong, counts @ variance)


def cross_predicted(
    inputs: Float[Array, "N D"], targets: Float[Array, "N ..."], groups: Int[NDArray[np.int64], " N"], *, folds: int = 5
) -> Float[Array, "N ..."]:
    """Predict targets linearly from inputs; each group is predicted by a map that was fitted on other groups.

    The map is a ridge regression on standardised inputs, with its strength chosen within the training folds.

    Args:
        inputs: Inputs, one row per sample.
        targets: One number or vector per sample.
        groups: The group of each sample, such as its video.
        folds: Maximum number of parts that the groups are divided into.

    Raises:
        MissingExtraError: If scikit-learn is not installed.
    """
    linear, pipeline, preprocessing, selection = (
        import_extra(f"sklearn.{name}", "report")
        for name in ("linear_model", "pipeline", "preprocessing", "model_selection")
    )
    ridge = linear.RidgeCV(alphas=np.logspace(-1, 5, 7))
    predicted: Array = selection.cross_val_predict(
        pipeline.make_pipeline(preprocessing.StandardScaler(), ridge),
        inputs,
        targets,
        groups=groups,
        cv=selection.GroupKFold(min(folds, len(np.unique(groups)))),
    )
    return predicted


def _gram_rank(gram: Array) -> float:
    return _rank(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)))


def _rank(singular: Array) -> float:
    share = singular[singular > 0.0] / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
