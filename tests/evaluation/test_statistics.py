from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import (
    Drawn,
    Estimate,
    as_share,
    drawn_mean,
    from_resamples,
    mean_bca,
    resample_weights,
    seeds_interval,
    task_resamples,
    wilson,
)
from studies.means import mean_percentile


def test_wilson_is_its_formula_and_holds_at_the_ends() -> None:
    z, n, k = 1.959963984540054, 10, 7
    centre = (k / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    found = wilson(k, n)
    assert (found.value, found.n) == (0.7, 10)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half))
    assert wilson(10, 10).high == pytest.approx(1.0)
    assert 0.6 < wilson(10, 10).low < 1.0
    assert wilson(0, 10).low == pytest.approx(0.0)


def test_seeds_use_students_t() -> None:
    found = seeds_interval(np.array([1.0, 2.0, 3.0]))
    assert found.value == 2.0
    assert found.high - 2.0 == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert math.isnan(seeds_interval(np.array([1.0])).low)


def test_intervals_of_shares_stay_within_0_and_1() -> None:
    shares = np.array([0.1, 0.9, 1.0])
    free, cut = seeds_interval(shares), seeds_interval(shares, share=True)
    assert free.low < 0
    assert free.high > 1
    assert (cut.value, cut.low, cut.high) == (free.value, 0.0, 1.0)
    assert seeds_interval(np.array([0.5, 0.52]), share=True) == seeds_interval(np.array([0.5, 0.52]))


Mean: TypeAlias = Callable[..., Estimate]
means = pytest.mark.parametrize("mean", [mean_bca, mean_percentile], ids=["bca", "percentile"])


@means
def test_a_bootstrap_covers_a_mean_about_as_often_as_it_says(mean: Mean) -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(120):
        found = mean(rng.normal(1.0, 2.0, 25), seed=trial)
        inside += found.low <= 1.0 <= found.high
    assert 0.86 <= inside / 120 <= 0.99


@means
def test_equal_values_and_single_values(mean: Mean) -> None:
    same, one = mean(np.ones(6)), mean(np.array([0.4]))
    assert (same.low, same.high) == (1.0, 1.0)
    assert one.value == 0.4
    assert math.isnan(one.low)
    assert one.method.startswith("none")


@means
def test_intervals_are_a_function_of_the_seed(mean: Mean) -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert mean(values, seed=3) == mean(values, seed=3)
    assert mean(values, seed=3) != mean(values, seed=4)


def test_any_statistic_of_videos() -> None:
    values = np.random.default_rng(0).normal(5.0, 1.0, 30)
    samples = resample_weights(["a task"] * 30)
    found = Drawn(np.array([np.median(np.repeat(values, row.astype(int))) for row in samples]), 30).estimate()
    assert found.value == float(np.median(values))
    assert found.low < found.value < found.high


@pytest.mark.parametrize("bad", [np.array([]), np.array([1.0, math.nan]), np.ones((2, 2))])
@means
def test_values_that_are_none_are_refused(mean: Mean, bad: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(BadInputError, match="values"):
        mean(bad)
    with pytest.raises(BadInputError, match="successes"):
        wilson(3, 2)


def test_means_are_over_the_videos_on_which_a_number_is_defined() -> None:
    values, tasks = np.array([1.0, math.nan, 3.0, 5.0]), ["a", "a", "b", "b"]
    weights = resample_weights(tasks, seed=3)
    found = drawn_mean(values, weights)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 4).all()
    assert (found.values[0], found.n) == (3.0, 3)
    for row, sample in zip(found.values[1:20], task_resamples(tasks, seed=3), strict=False):
        assert row == pytest.approx(np.nanmean(values[sample]))
    assert (found - found).estimate().high == 0.0


def test_an_estimate_reads_as_a_line() -> None:
    assert str(Estimate(0.5, 0.25, 0.75, 8, "")) == "0.500 [0.250, 0.750] (n=8)"


def test_tasks_are_resampled_and_then_their_videos() -> None:
    tasks = ["a", "a", "b", "b", "b", "c"]
    samples = task_resamples(tasks, seed=0, count=400)
    assert len(samples) == 400
    present = []
    for sample in samples:
        counts = {name: sum(tasks[video] == name for video in sample) for name in "abc"}
        assert counts["a"] % 2 == 0  # whole tasks, each with as many videos as it has
        assert counts["b"] % 3 == 0
        assert counts["a"] / 2 + counts["b"] / 3 + counts["c"] == 3
        present.append(len({tasks[video] for video in sample}))
    assert min(present) == 1
    assert 0.15 < np.mean(np.array(present) == 3) < 0.3  # 3! / 3**3
    assert all((np.diff(np.sort(one)) >= 0).all() and len(one) == 4 for one in task_resamples(["x"] * 4, count=5))
    again = task_resamples(tasks, seed=0, count=400)
    assert all((one == other).all() for one, other in zip(samples, again, strict=True))


def test_differences_of_the_same_samples_are_paired() -> None:
    """Two rewards of the same videos: what the videos have in common leaves the interval of the difference."""
    rng = np.random.default_rng(0)
    left = rng.normal(0.0, 1.0, 40)
    right = left - 0.2 + rng.normal(0.0, 0.05, 40)
    samples = task_resamples([0] * 40, seed=0)
    draws = [np.array([values[sample].mean() for sample in samples]) for values in (left, right)]
    apart = [from_resamples(float(v.mean()), d, 40) for v, d in zip((left, right), draws, strict=True)]
    paired = from_resamples(float((left - right).mean()), draws[0] - draws[1], 40)
    assert paired.high - paired.low < 0.2 * (apart[0].high - apart[0].low)
    assert 0.0 < paired.low < 0.2 < paired.high
    assert math.isnan(from_resamples(1.0, np.full(5, np.nan), 40).low)
    assert math.isnan(from_resamples(1.0, np.ones(5), 1).low)


def test_videos_that_are_hit_or_missed_together_count_as_one() -> None:
    tasks = [task for task in range(6) for _ in range(5)]
    together = np.repeat([True, True, False, False, False, False], 5)
    spread = np.tile([True, False, False], 10)
    weights, plain = resample_weights(tasks), wilson(10, 30)
    clustered, apart, every = (
        as_share(drawn_mean(hits.astype(float), weights).estimate()) for hits in (together, spread, np.ones(30))
    )
    assert clustered.value == apart.value == plain.value
    assert clustered.high - clustered.low > 1.5 * (plain.high - plain.low)
    assert apart.low <= plain.low
    assert apart.high >= plain.high
    assert every.low == wilson(30, 30).low
    assert every.high == pytest.approx(1.0)
    alone = as_share(drawn_mean(np.ones(1), resample_weights(["a"])).estimate())
    assert alone.low == wilson(1, 1).low
