"""What an instruction says about frames: pure functions of raw embeddings, phi(o) of frames, psi(l) of text.

S is the cosine. Two readings of "how far has it come" (DecisionNCE, section 3.3)::

    potential   S(phi(o_t), psi(l))              a frame alone      steps of it: Eq. 3   a segment: Eq. 4
    direction   S(phi(o_t) - phi(o_0), psi(l))   since the start                         a segment: Eq. 6

A direction that does not exist (t = 0, or a frame that looks like the first) scores 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

__all__ = ["SegmentScore", "cosine", "direction", "potential", "potential_gain", "transition_direction"]

Array = NDArray[np.float64]

SegmentScore = Callable[[Array, Array, Array], Array]
"""(start frames [N, D], goal frames [N, D], text [L, D]) -> score of each segment under each text, [N, L]."""

STILL = 1e-5
"""Embeddings nearer than this share of their length are equal: float32 networks give no more digits."""


def cosine(left: Float[Array, "N D"], right: Float[Array, "L D"]) -> Float[Array, "N L"]:
    """Cosine of every row of `left` with every row of `right`; 0 where either is the zero vector."""
    similarity: Array = _unit(left) @ _unit(right).T
    return similarity


def potential(frames: Float[Array, "T D"], text: Float[Array, "L D"]) -> Float[Array, "L T"]:
    """S(phi(o_t), psi(l)): AcTOL's reward (section 5.4); its differences are DecisionNCE-P's (Eq. 3)."""
    return cosine(text, frames)


def direction(frames: Float[Array, "T D"], text: Float[Array, "L D"]) -> Float[Array, "L T"]:
    """S(phi(o_t) - phi(o_0), psi(l)): DecisionNCE-T's reward (Eq. 6) of the segment from the start to t."""
    return transition_direction(np.broadcast_to(frames[:1], frames.shape), frames, text).T


def potential_gain(
    start: Float[Array, "N D"], goal: Float[Array, "N D"], text: Float[Array, "L D"]
) -> Float[Array, "N L"]:
    """S(phi(o_goal), psi(l)) - S(phi(o_start), psi(l)): DecisionNCE-P's segment score (Eq. 4), in [-2, 2]."""
    return cosine(goal, text) - cosine(start, text)


def transition_direction(
    start: Float[Array, "N D"], goal: Float[Array, "N D"], text: Float[Array, "L D"]
) -> Float[Array, "N L"]:
    """S(phi(o_goal) - phi(o_start), psi(l)): the segment score of DecisionNCE-T (Eq. 6), in [-1, 1]."""
    moved = goal - start
    size = np.maximum(np.linalg.norm(start, axis=1), np.linalg.norm(goal, axis=1))
    still = np.linalg.norm(moved, axis=1) <= STILL * size
    return np.where(still[:, None], 0.0, cosine(moved, text))


def _unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / np.where(lengths == 0.0, 1.0, lengths)
    return unit
