from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.draws import LastFrame, SortedFrames, StartGoal
from counterpoint.data.spec import Augment, Key, Spec, epoch_order, sample_rng
from counterpoint.errors import BadInputError

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


POLICY = Spec({"window": SortedFrames(frames=3)}, {"actions": Key("actions", "window")})
AUXILIARY = Spec({"clip": StartGoal()}, {"frames": Key("frames", "clip")}, unique_instructions=True)


@settings(deadline=None)
@given(st.integers(3, 60), large, st.integers(0, 10_000))
def test_merge_changes_no_draw(length: int, seed: int, sample: int) -> None:
    merged = POLICY.merge(AUXILIARY)
    for spec in (POLICY, AUXILIARY):
        for name, draw in spec.draws.items():
            alone = draw(length, sample_rng(seed, sample, name))
            together = merged.draws[name](length, sample_rng(seed, sample, name))
            np.testing.assert_array_equal(alone.indices, together.indices)


def test_merge_asks_for_both_either_way() -> None:
    merged, turned = POLICY.merge(AUXILIARY), AUXILIARY.merge(POLICY)
    assert merged == turned
    assert merged.draws.keys() == {"window", "clip"}
    assert merged.keys.keys() == {"actions", "frames"}
    assert merged.unique_instructions
    assert merged.merge(POLICY) == merged
    assert merged.min_length == 2


def test_merge_keeps_the_one_augmentation() -> None:
    augmented = Spec(POLICY.draws, POLICY.keys, augment=Augment(jitter=0.5))
    assert AUXILIARY.merge(augmented).augment == augmented.augment
    with pytest.raises(BadInputError, match="augment"):
        augmented.merge(Spec(POLICY.draws, POLICY.keys, augment=Augment()))


def test_one_name_one_meaning() -> None:
    with pytest.raises(BadInputError, match="'clip'"):
        AUXILIARY.merge(Spec({"clip": StartGoal(frames=5)}, {}))
    with pytest.raises(BadInputError, match="'frames'"):
        AUXILIARY.merge(Spec({"end": LastFrame()}, {"frames": Key("frames", "end")}))


def test_key_must_name_a_draw() -> None:
    with pytest.raises(BadInputError, match="draw 'end'"):
        Spec({"clip": StartGoal()}, {"goal": Key("frames", "end")})


def test_shortest_episode_is_the_longest_need() -> None:
    assert Spec({"a": LastFrame(), "b": StartGoal()}, {}).min_length == 2
    assert Spec({}, {}).min_length == 1
