from __future__ import annotations

import math

import numpy as np
import pytest

from studies.means import mean_percentile, mean_where_defined


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


def test_undefined_values_are_left_out_and_counted() -> None:
    values = np.array([1.0, math.nan, 3.0, 2.0])
    found = mean_where_defined(values, ["a", "a", "b", "b"])
    assert (found.value, found.n) == (2.0, 3)
    nothing = mean_where_defined(np.array([math.nan]))
    assert nothing.n == 0
    assert math.isnan(nothing.value)
