from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.rewards import model as scores

Array = NDArray[np.float64]


def cosine_by_hand(a: Array, b: Array) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return dot / lengths if lengths else 0.0


@pytest.fixture
def frames() -> Array:
    return np.random.default_rng(0).normal(size=(7, 5))


@pytest.fixture
def text() -> Array:
    return np.random.default_rng(1).normal(size=(3, 5)) * 10


def test_potential_is_the_cosine_of_each_frame(frames: Array, text: Array) -> None:
    expected = [[cosine_by_hand(o, word) for o in frames] for word in text]
    np.testing.assert_allclose(scores.potential(frames, text), expected, atol=1e-12)


def test_transition_is_the_cosine_of_the_change_and_zero_at_the_start(frames: Array, text: Array) -> None:
    expected = [[cosine_by_hand(o - frames[0], word) for o in frames] for word in text]
    found = scores.transition(frames, text)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found[:, 0] == 0.0).all()


def test_segment_scores_agree_with_the_curves(frames: Array, text: Array) -> None:
    start, goal = frames[:1], frames[-1:]
    curve = scores.potential(frames, text)
    np.testing.assert_allclose(scores.potential_gain(start, goal, text)[0], curve[:, -1] - curve[:, 0])
    np.testing.assert_allclose(scores.transition_score(start, goal, text)[0], scores.transition(frames, text)[:, -1])


def test_a_still_video_has_no_transition_even_with_rounding(text: Array) -> None:
    frame = np.random.default_rng(2).normal(size=5)
    noisy = frame + np.random.default_rng(3).normal(size=(6, 5)) * 1e-7
    assert (scores.transition(noisy, text) == 0.0).all()


def test_scale_of_embeddings_does_not_matter(frames: Array, text: Array) -> None:
    np.testing.assert_allclose(scores.potential(100 * frames, text), scores.potential(frames, 0.01 * text))
    np.testing.assert_allclose(scores.transition(100 * frames, text), scores.transition(frames, 0.01 * text))


def test_zero_embeddings_score_zero(text: Array) -> None:
    assert (scores.cosine(np.zeros((2, 5)), text) == 0.0).all()
    assert (scores.potential_gain(np.zeros((2, 5)), np.zeros((2, 5)), text) == 0.0).all()


def test_several_cameras_give_the_mean_of_their_scores(frames: Array, text: Array) -> None:
    """Late fusion, whatever the scale of each camera's embeddings."""
    views = np.stack([frames, 7.0 * np.random.default_rng(5).normal(size=frames.shape)], axis=1)
    for curve in (scores.potential, scores.transition):
        expected = (curve(views[:, 0], text) + curve(views[:, 1], text)) / 2
        np.testing.assert_allclose(curve(views, text), expected)
        np.testing.assert_allclose(curve(frames[:, None], text), curve(frames, text))
    for segment in (scores.potential_gain, scores.transition_score):
        each = [segment(views[:2, view], views[-2:, view], text) for view in range(2)]
        np.testing.assert_allclose(segment(views[:2], views[-2:], text), np.mean(each, axis=0))
