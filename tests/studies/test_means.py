from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from studies.means import mean_percentile, mean_where_defined

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def test_the_interval_covers_a_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(120):
        found = mean_percentile(rng.normal(1.0, 2.0, 25), seed=trial)
        inside += found.low <= 1.0 <= found.high
    assert 0.86 <= inside / 120 <= 0.99


def test_strata_take_differences_between_instructions_out_of_the_interval() -> None:
    rng = np.random.default_rng(0)
    labels = [task for task in range(5) for _ in range(8)]
    values = np.array([10.0 * task for task in labels]) + rng.normal(0, 0.1, 40)
    together, apart = mean_percentile(values), mean_percentile(values, labels)
    assert together.value == apart.value
    assert apart.high - apart.low < 0.1 * (together.high - together.low)
    assert apart.low < apart.value < apart.high


@pytest.mark.parametrize("labels", [["a", "b", "c", "d"], ["a", "a", "a", "b"], ["a", "a", "b", "c"], ["a"] * 4])
def test_lonely_strata_are_resampled_too(labels: list[str]) -> None:
    found = mean_percentile(np.array([1.0, 2.0, 3.0, 9.0]), labels)
    assert found.value == 3.75
    assert found.low < 3.75 < found.high


def test_equal_values_and_single_values() -> None:
    same, one = mean_percentile(np.ones(6)), mean_percentile(np.array([0.4]))
    assert (same.low, same.high) == (1.0, 1.0)
    assert one.value == 0.4
    assert math.isnan(one.low)
    assert one.method.startswith("none")


def test_intervals_are_a_function_of_the_seed() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert mean_percentile(values, seed=3) == mean_percentile(values, seed=3)
    assert mean_percentile(values, seed=3) != mean_percentile(values, seed=4)


def test_undefined_values_are_left_out_and_counted() -> None:
    values = np.array([1.0, math.nan, 3.0, 2.0])
    found = mean_where_defined(values, ["a", "a", "b", "b"])
    assert (found.value, found.n) == (2.0, 3)
    nothing = mean_where_defined(np.array([math.nan]))
    assert nothing.n == 0
    assert math.isnan(nothing.value)


@pytest.mark.parametrize("bad", [np.array([]), np.array([1.0, math.nan]), np.ones((2, 2))])
def test_values_that_are_none_are_refused(bad: Array) -> None:
    with pytest.raises(BadInputError, match="values"):
        mean_percentile(bad)
