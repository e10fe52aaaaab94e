from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.draws import GoalTransition, LastFrame, R3MFrames, SortedFrames, SortedUniform, StartGoal
from counterpoint.data.spec import Draw, sample_rng

RULES: list[Draw] = [
    StartGoal(),
    StartGoal(frames=5),
    StartGoal(frames=9),
    SortedUniform(),
    SortedUniform(frames=5),
    SortedFrames(),
    SortedFrames(frames=3),
    LastFrame(),
    GoalTransition(),
    R3MFrames(),
    R3MFrames(share=0.9),
]
seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("excess", [0, 1, 2, 17])
def test_never_leaves_the_episode(rule: Draw, excess: int) -> None:
    length = rule.min_length + excess
    for g in range(200):
        drawn = rule(length, sample_rng(3, g, "clip"))
        assert drawn.indices.shape == drawn.valid.shape == (rule.count,)
        assert drawn.indices.dtype == np.int64
        assert drawn.indices.min() >= 0
        assert drawn.indices.max() <= length - 1


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_lengths_around_the_number_of_frames(rule: Draw, offset: int) -> None:
    length = max(rule.min_length, rule.count + offset)
    for g in range(50):
        indices = rule(length, sample_rng(0, g, "clip")).indices
        assert 0 <= indices.min() <= indices.max() <= length - 1


@settings(deadline=None)
@given(st.sampled_from(RULES), st.integers(0, 300), seeds)
def test_any_length_any_seed(rule: Draw, excess: int, seed: int) -> None:
    length = rule.min_length + excess
    drawn = rule(length, sample_rng(seed, 0, "clip"))
    assert 0 <= drawn.indices.min() <= drawn.indices.max() <= length - 1
    np.testing.assert_array_equal(drawn.indices, rule(length, sample_rng(seed, 0, "clip")).indices)


@settings(deadline=None)
@given(st.sampled_from([2, 3, 5, 9]), st.integers(0, 100), seeds)
def test_start_goal_is_ordered_and_ends_on_the_goal(frames: int, excess: int, seed: int) -> None:
    length = 2 + excess
    indices = StartGoal(frames)(length, sample_rng(seed, 0, "clip")).indices
    start, goal = indices[0], indices[-1]
    assert start < goal
    # Eq. 24 and 25: frame i stands at start + floor(m i / (F - 1)).
    expected = [start + ((goal - start) * i) // (frames - 1) for i in range(frames)]
    np.testing.assert_array_equal(indices, expected)


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(0, 50), seeds)
def test_sorted_uniform_is_distinct_and_sorted(frames: int, excess: int, seed: int) -> None:
    indices = SortedUniform(frames)(frames + excess, sample_rng(seed, 0, "clip")).indices
    assert (np.diff(indices) > 0).all()


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 30), seeds)
def test_sorted_frames_pads_short_clips_and_says_so(frames: int, length: int, seed: int) -> None:
    drawn = SortedFrames(frames)(length, sample_rng(seed, 0, "clip"))
    have = min(frames, length)
    assert drawn.valid.tolist() == [True] * have + [False] * (frames - have)
    assert (np.diff(drawn.indices[drawn.valid]) > 0).all()
    assert (drawn.indices[~drawn.valid] == drawn.indices[have - 1]).all()
    if length <= frames:
        np.testing.assert_array_equal(drawn.indices[:have], np.arange(length))


@settings(deadline=None)
@given(st.integers(2, 60), seeds)
def test_goal_transition_stays_in_its_segment(length: int, seed: int) -> None:
    start, goal, step, following, last = GoalTransition()(length, sample_rng(seed, 0, "clip")).indices
    assert start < goal
    assert start <= step <= following <= goal
    assert following - step == (step < goal)
    assert last == length - 1


@settings(deadline=None)
@given(st.integers(3, 60), seeds)
def test_r3m_frames_are_three_in_order_and_two_edges(length: int, seed: int) -> None:
    first, last, *middle = R3MFrames()(length, sample_rng(seed, 0, "clip")).indices
    edge = max(1, length // 5)
    assert first < edge
    assert last >= length - edge
    assert middle[0] < middle[1] < middle[2]


def spans(rule: Draw, length: int, draws: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    rng = np.random.default_rng(0)
    return np.array([np.ptp(rule(length, rng).indices) for _ in range(draws)])


def test_start_goal_follows_equation_8() -> None:
    # With n = 1..T-1 steps left, m is uniform in 1..n: E[m] = (T + 2) / 4, P(m = 1) = mean of 1 / n.
    length, draws = 20, 40_000
    found = spans(StartGoal(), length, draws)
    probability = sum(1 / n for n in range(1, length)) / (length - 1)
    assert probability == pytest.approx(0.187, abs=5e-4)
    assert found.mean() == pytest.approx(5.5, abs=5 * found.std() / np.sqrt(draws))
    assert (found == 1).mean() == pytest.approx(probability, abs=5 * np.sqrt(probability / draws))


def test_sorted_uniform_follows_the_released_rule() -> None:
    length, draws = 20, 40_000
    found = spans(SortedUniform(), length, draws)
    assert found.mean() == pytest.approx(7.0, abs=5 * found.std() / np.sqrt(draws))
    assert (found == 1).mean() == pytest.approx(0.10, abs=5 * np.sqrt(0.1 / draws))
