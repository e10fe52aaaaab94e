"""Numbers about reward curves, computed from embeddings: trend, short segments, two actions in a clip, other words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.evaluation.embedded import EmbeddedVideos
from counterpoint.evaluation.metrics import value_order_correlation
from counterpoint.rewards import RewardForm
from counterpoint.rewards.model import (
    SegmentScore,
    cosine,
    goal_similarity,
    potential,
    potential_gain,
    transition,
    transition_score,
)

Array = NDArray[np.float64]
Numbers = dict[str, float]
CURVES: Mapping[RewardForm, Callable[[Array, Array], Array]] = {
    "potential": potential,
    "similarity": potential,
    "transition": transition,
}
"""Curves of embedded frames under embedded instructions."""
SEGMENTS: Mapping[RewardForm, SegmentScore] = {
    "potential": potential_gain,
    "similarity": goal_similarity,
    "transition": transition_score,
}
"""Scores of embedded segments."""
NEAR = 0.1
"""A peak counts as at the boundary between two actions if it is within this share of the clip from it."""


def trend(curve: Float[Array, " T"]) -> Numbers:
    """Return a curve's rank correlation with time, its gain, and 1 if it rises from first to last frame, else 0.

    `variation` is the total variation divided by the range: 1 for a curve that only rises, or only falls.
    """
    gain, span = float(curve[-1] - curve[0]), float(np.ptp(curve))
    way = float(np.abs(np.diff(curve)).sum() / span) if span else 1.0
    return {"voc": value_order_correlation(curve), "gain": gain, "rises": float(gain > 0), "variation": way}


def slope(curve: Float[Array, " T"]) -> float:
    """Return the least-squares slope of a curve per frame; 0 for one frame."""
    time = np.arange(len(curve)) - (len(curve) - 1) / 2
    return float(time @ curve / max(float(time @ time), 1e-12))


def two_actions(first: Float[Array, " T"], second: Float[Array, " T"], boundary: int) -> Numbers:
    """Return how curves under both instructions treat a clip of two actions (AcTOL, section 5.4).

    Args:
        first: The reward of each frame under the instruction of the first action.
        second: The reward of each frame under the instruction of the second action.
        boundary: Number of frames of the first action, at least 2; the second action must also have at least 2.

    Returns:
        `peak`: 1 if the maximum of `first` is within a tenth of the clip from the first action's last frame; a random
        peak gives .2, a ramp 0. `falls`: 1 if `first` falls after the boundary. `rises`: 1 if `second` rises after it.
        `both`: 1 if all three are 1. `retrieved`: 1 if each curve has its maximum within its own part; two random
        peaks give the product of the parts' shares of the clip, at most .25.
    """
    peaks = int(np.argmax(first)), int(np.argmax(second))
    near = abs(peaks[0] - (boundary - 1)) <= NEAR * len(first)
    falls, rises = slope(first[boundary:]) < 0, slope(second[boundary:]) > 0
    found = {"peak": near, "falls": falls, "rises": rises, "both": near and falls and rises}
    found["retrieved"] = peaks[0] < boundary <= peaks[1]
    return {key: float(value) for key, value in found.items()}


def alignment_change(
    frames: Float[Array, "T D"], text: Float[Array, " D"], other: Float[Array, " D"]
) -> tuple[float, float, float]:
    """Return the maximum and mean change of AcTOL's alignment score over pairs of frames, and Theorem 4.4's bound.

    The score is R(v_i, v_j, l) = -|S(v_i, l) - S(v_j, l)| with S the cosine. For instructions at unit length S is
    1-Lipschitz in l, so that C = 1 and the bound is 2 ||l - l'||.
    """
    before, after = (cosine(frames, one[None])[:, 0] for one in (text, other))
    change = np.abs(np.abs(np.subtract.outer(after, after)) - np.abs(np.subtract.outer(before, before)))
    pairs = change[np.triu_indices(len(frames), 1)]
    bound = 2 * float(np.linalg.norm(text / np.linalg.norm(text) - other / np.linalg.norm(other)))
    return float(pairs.max()), float(pairs.mean()), bound


def short_segments(length: int, video: int, seed: int, share: float = 0.2, count: int = 16) -> list[tuple[int, int]]:
    """Return first and last frames of short segments, each 20 % of the video long by default (DecisionNCE, Fig. 6)."""
    span = max(1, round(share * (length - 1)))
    rngs = (sample_rng(seed, video * count + number, "segment") for number in range(count))
    return [(start, start + span) for start in (int(rng.integers(0, length - span)) for rng in rngs)]


def means(records: Sequence[Mapping[str, float]]) -> Numbers:
    """Return the mean of every number over the records that have it, and their number `n`."""
    keys = dict.fromkeys(key for record in records for key in record)
    found = {key: float(np.mean([record[key] for record in records if key in record])) for key in keys}
    return {**found, "n": float(len(records))}


def one_frame_scores(embedded: EmbeddedVideos) -> dict[str, Float[Array, "V L"]]:
    """Return the scores of only the first, the middle and the last frame: their similarity to each instruction.

    A method that scores as well on one frame recognises the scene, not the action.
    """
    middle = np.array([len(video) // 2 for video in embedded.videos])
    rows: dict[str, int | NDArray[np.int64]] = {"first": 0, "middle": middle, "last": -1}
    return {name: potential(embedded.frames_at(at), embedded.text).T for name, at in rows.items()}
