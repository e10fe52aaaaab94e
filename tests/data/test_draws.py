from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.draws import (
    GoalTransition,
    LastFrame,
    Pick,
    R3MFrames,
    SortedFrames,
    SortedUniform,
    StartGoal,
    cross_folds,
    epoch_order,
    hold_out,
    sample_rng,
)

RULES: list[Pick] = [
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


def one(rule: Pick, length: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    (steps,) = rule(np.array([length]), sample_rng(seed, 0, "clip"))
    return np.asarray(steps)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("excess", [0, 17])
def test_never_leaves_the_episode(rule: Pick, excess: int) -> None:
    length = rule.min_length + excess
    drawn = rule(np.full(200, length), sample_rng(3, 0, "clip"))
    assert drawn.shape == (200, rule.count)
    assert drawn.dtype == np.int64
    assert drawn.min() >= (-1 if length < rule.count else 0)
    assert drawn.max() <= length - 1


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_lengths_around_the_number_of_frames(rule: Pick, offset: int) -> None:
    length = max(rule.min_length, rule.count + offset)
    indices = rule(np.full(50, length), sample_rng(0, 0, "clip"))
    assert (-1 if length < rule.count else 0) <= indices.min() <= indices.max() <= length - 1


@settings(deadline=None)
@given(st.sampled_from(RULES), st.integers(0, 300), seeds)
def test_any_length_any_seed(rule: Pick, excess: int, seed: int) -> None:
    length = rule.min_length + excess
    drawn = one(rule, length, seed)
    assert 0 <= drawn[drawn >= 0].min() <= drawn.max() <= length - 1
    assert (drawn >= 0).all() or length < rule.count
    np.testing.assert_array_equal(drawn, one(rule, length, seed))


@settings(deadline=None)
@given(st.sampled_from([2, 3, 5, 9]), st.integers(0, 100), seeds)
def test_start_goal_is_ordered_and_ends_on_the_goal(frames: int, excess: int, seed: int) -> None:
    length = 2 + excess
    indices = one(StartGoal(frames), length, seed)
    start, goal = indices[0], indices[-1]
    assert start < goal
    # Eq. 24 and 25: frame i stands at start + floor(m i / (F - 1)).
    expected = [start + ((goal - start) * i) // (frames - 1) for i in range(frames)]
    np.testing.assert_array_equal(indices, expected)


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(0, 50), seeds)
def test_sorted_uniform_is_distinct_and_sorted(frames: int, excess: int, seed: int) -> None:
    indices = one(SortedUniform(frames), frames + excess, seed)
    assert (np.diff(indices) > 0).all()


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 30), seeds)
def test_sorted_frames_pads_short_clips_and_says_so(frames: int, length: int, seed: int) -> None:
    steps = one(SortedFrames(frames), length, seed)
    have = min(frames, length)
    assert (np.diff(steps[:have]) > 0).all()
    assert (steps[:have] >= 0).all()
    assert (steps[have:] == -1).all()
    if length <= frames:
        np.testing.assert_array_equal(steps[:have], np.arange(length))


@settings(deadline=None)
@given(st.integers(2, 60), seeds)
def test_goal_transition_stays_in_its_segment(length: int, seed: int) -> None:
    start, goal, step, following, last = one(GoalTransition(), length, seed)
    assert start < goal
    assert start <= step <= following <= goal
    assert following - step == (step < goal)
    assert last == length - 1


@settings(deadline=None)
@given(st.integers(3, 60), seeds)
def test_r3m_frames_are_three_in_order_and_two_edges(length: int, seed: int) -> None:
    first, last, *middle = one(R3MFrames(), length, seed)
    edge = max(1, length // 5)
    assert first < edge
    assert last >= length - edge
    assert middle[0] < middle[1] < middle[2]


def spans(rule: Pick, length: int, draws: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    steps = rule(np.full(draws, length), np.random.default_rng(0))
    return np.asarray(steps.max(1) - steps.min(1))


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


def test_distinct_steps_are_uniform_over_subsets() -> None:
    draws = SortedUniform(3)(np.full(40_000, 6), np.random.default_rng(1))
    found, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(found) == 20
    assert np.abs(counts / len(draws) - 1 / 20).max() < 5 * np.sqrt(1 / 20 / len(draws))


def test_clips_of_many_lengths_are_picked_side_by_side() -> None:
    lengths = np.array([2, 30, 4, 11, 3] * 40)
    steps = SortedFrames(10)(lengths, np.random.default_rng(2))
    assert ((steps >= 0).sum(1) == np.minimum(lengths, 10)).all()
    assert (steps.max(1) < lengths).all()


words = st.text(min_size=1, max_size=12)
large = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(large, large, words)
def test_sample_rng_is_pure(seed: int, sample: int, name: str) -> None:
    first, again = (sample_rng(seed, sample, name).integers(0, 2**62, 4) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_streams_of_other_keys_differ() -> None:
    keys = [(seed, sample, name) for seed in range(4) for sample in range(50) for name in ("clip", "frames augment")]
    starts = {tuple(sample_rng(*key).integers(0, 2**62, 2).tolist()) for key in keys}
    assert len(starts) == len(keys)


def test_numbers_drawn_elsewhere_change_nothing() -> None:
    before = sample_rng(1, 2, "clip").random(3)
    np.random.seed(0)
    np.random.random(10)
    other = sample_rng(1, 2, "other")
    other.random(1000)
    np.testing.assert_array_equal(sample_rng(1, 2, "clip").random(3), before)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 2**32), st.integers(0, 1000))
def test_epoch_order_is_a_pure_permutation(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed, epoch)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    np.testing.assert_array_equal(order, epoch_order(count, seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in range(3) for epoch in range(10)}
    assert len(orders) == 30


@given(
    tasks=st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), share=st.floats(0.01, 0.9), seed=st.integers(0, 9)
)
def test_episodes_are_held_out_by_task(tasks: list[str], share: float, seed: int) -> None:
    kept, out = hold_out(tasks, share, seed)
    assert sorted(kept + out) == list(range(len(tasks)))
    for task in set(tasks):
        own = [episode for episode, other in enumerate(tasks) if other == task]
        held = len(set(own) & set(out))
        assert held == (0 if len(own) == 1 else min(max(1, round(share * len(own))), len(own) - 1))
    assert hold_out(tasks, share, seed) == (kept, out)
    assert hold_out(tasks, 0.0, seed) == (list(range(len(tasks))), [])


def test_another_seed_holds_out_others() -> None:
    tasks = ["a"] * 10 + ["b"] * 10
    assert len({tuple(hold_out(tasks, 0.3, seed)[1]) for seed in range(8)}) > 4


def test_folds_share_tasks_evenly_and_keep_recordings_together() -> None:
    tasks = ["open"] * 6 + ["close"] * 4 + ["wait"]
    recordings = [0, 0, 1, 2, 3, 4, 0, 5, 6, 7, 8]
    folds = cross_folds(tasks, recordings, 3, seed=0)
    assert folds == cross_folds(tasks, recordings, 3, seed=0) != cross_folds(tasks, recordings, 3, seed=1)
    assert sorted(episode for fold in folds for episode in fold) == list(range(10))  # "wait" has one recording
    for fold in folds:
        inside = {recordings[episode] for episode in fold}
        assert {n for n, recording in enumerate(recordings[:10]) if recording in inside} == set(fold)
    counts = [len({recordings[e] for e in fold if tasks[e] == "open"}) for fold in folds]
    assert max(counts) - min(counts) <= 1
    assert cross_folds(["open"] * 2, [0, 1], 5, seed=0) in {((0,), (1,)), ((1,), (0,))}
    assert cross_folds(["open"] * 2, [0, 0], 5, seed=0) == ()
