"""Measures of rewards and representations: pure functions, one definition each.

A reward curve is one value a frame, in the order of time. Scores [V, L] hold one row a video and one column
an instruction; `own[v]` is the column of the instruction that video v carries out. All cosines are of raw
embeddings. `docs/methods/metrics.md` says what each is blind to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from counterpoint.errors import import_extra
from counterpoint.rewards.model import cosine

Array = NDArray[np.float64]


def value_order_correlation(values: Float[Array, " T"]) -> float:
    """Return VOC (GVL, arXiv 2411.04549): Spearman's rho between a curve and time; 0 for a constant curve.

    Blind to what is in the video: a clock scores 1. Never report it without its controls.
    """
    return _correlation("spearmanr", values)


def kendall_tau_b(values: Float[Array, " T"]) -> float:
    """Return Kendall's tau-b between a curve and time: ties leave the denominator; 0 for a constant curve."""
    return _correlation("kendalltau", values)


def _correlation(name: str, values: Array) -> float:
    if np.ptp(values) == 0.0:
        return 0.0
    return float(getattr(import_extra("scipy.stats", "report"), name)(values, np.arange(len(values))).statistic)


def matched(scores: Float[Array, "V L"], own: Int[NDArray[np.int64], " V"]) -> Bool[NDArray[np.bool_], " V"]:
    """Return the videos that score highest under their own instruction, strictly: a tie is a miss.

    The mean is the matched accuracy, with chance 1/L. With ties as misses, an encoder that maps everything
    to one point gets 0, not the share of the first instruction.
    """
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, own] = -np.inf
    hit: NDArray[np.bool_] = scores[rows, own] > others.max(axis=1)
    return hit


def triples(
    scores: Float[Array, "V L"],
    own: Int[NDArray[np.int64], " V"],
    allowed: Bool[NDArray[np.bool_], "L L"] | None = None,
) -> Float[Array, " V"]:
    """Return each video's share of other instructions with r_own > r_other; a tie is a miss.

    Args:
        scores: One row a video.
        own: Its instruction.
        allowed: Other instructions that count for each (row: own); all but itself by default.

    Returns:
        One share a video, `nan` where nothing counts. Chance is 1/2.
    """
    other = ~np.eye(scores.shape[1], dtype=bool)
    counted = (other if allowed is None else allowed & other)[own]
    wins = (scores[np.arange(len(scores)), own][:, None] > scores) & counted
    totals = counted.sum(axis=1)
    return np.where(totals > 0, wins.sum(axis=1) / np.maximum(totals, 1), np.nan)


def confusion_gap(scores: Float[Array, "V L"], own: Int[NDArray[np.int64], " V"]) -> Float[Array, " V"]:
    """Return each video's score under its own instruction minus its mean score under the others.

    The mean over videos is the language confusion matrix's mean(diagonal) - mean(off-diagonal) where every
    instruction has as many videos.
    """
    mine = scores[np.arange(len(scores)), own]
    gap: Array = mine - (scores.sum(axis=1) - mine) / (scores.shape[1] - 1)
    return gap


def one_word_apart(instructions: Sequence[str]) -> Bool[NDArray[np.bool_], "L L"]:
    """Return the hard negatives: "open the drawer" and "close the drawer", equally long, different in one word.

    Case, punctuation and articles do not count.
    """
    words = [[w for w in re.findall(r"\w+", text.lower()) if w not in ("a", "an", "the")] for text in instructions]

    def apart(left: list[str], right: list[str]) -> bool:
        return len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1

    return np.array([[apart(left, right) for right in words] for left in words], dtype=bool)


def ordering(similarity: Float[Array, " T"], times: Float[Array, " T"] | None = None) -> float:
    """Return the share of triples that AcTOL's VLO loss would order (section 4.1).

    Triples are frames i and pairs j, k other than i with |t_i - t_j| < |t_i - t_k|; they are in order where
    |s_i - s_j| < |s_i - s_k|, with s the similarity of a frame to the instruction. Chance is 1/2; it is even in the
    sign of s, so a reward that falls scores as well as one that rises. `nan` where there is no such triple.

    Args:
        similarity: One a frame.
        times: Time of each frame; its number by default.
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
    """Return ||z_{t+1} - z_t|| of every step."""
    norms: Array = np.linalg.norm(np.diff(embeddings, axis=0), axis=1)
    return norms


def jump_ratio(embeddings: Float[Array, "T D"]) -> float:
    """Return the largest step over the mean step: 1 is an even pace. `nan` where nothing moves."""
    norms = step_norms(embeddings)
    return float(norms.max() / norms.mean()) if norms.any() else float("nan")


def bridge_residual(embeddings: Float[Array, "T D"], times: Float[Array, " T"] | None = None) -> float:
    """Return AcTOL's Brownian-bridge term (Eq. 4, variance of Eq. 30), the mean over interior frames.

    ||z_t - lerp(z_0, z_{T-1}; t)||^2 / (2 var_t) with var_t = (t - t_0)(t_{T-1} - t) / (t_{T-1} - t_0). It
    grows with the square of the embeddings' length: compare embeddings of one scale. `nan` for fewer than
    three frames.

    Args:
        embeddings: One a frame.
        times: Time of each frame; its number by default.
    """
    t = np.arange(len(embeddings), dtype=np.float64) if times is None else times
    if len(t) < 3:
        return float("nan")
    since, left, span = t[1:-1] - t[0], t[-1] - t[1:-1], t[-1] - t[0]
    line = embeddings[0] + (since / span)[:, None] * (embeddings[-1] - embeddings[0])
    squared = ((embeddings[1:-1] - line) ** 2).sum(axis=1)
    return float((squared / (2 * since * left / span)).mean())


def pairwise_cosine(embeddings: Float[Array, "N D"]) -> float:
    """Return the mean cosine of all pairs of two different rows: DecisionNCE's Table 2, first row, for first frames.

    `nan` for one row. An untrained network scores near 1 as well: look at centred embeddings beside it.
    """
    count = len(embeddings)
    if count < 2:
        return float("nan")
    gram = cosine(embeddings, embeddings)
    return float((gram.sum() - np.trace(gram)) / (count * (count - 1)))


def cosine_to(embeddings: Float[Array, "N D"], target: Float[Array, " D"]) -> float:
    """Return the mean cosine of every row to one vector: DecisionNCE's Table 2, second row, for mean language."""
    return float(cosine(embeddings, target[None]).mean())
