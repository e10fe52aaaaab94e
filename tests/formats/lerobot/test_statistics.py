from __future__ import annotations

import numpy as np
import pytest

from counterpoint.formats.lerobot.statistics import PixelCounts, sampled_steps, vector_stats


def test_pixel_statistics_of_large_images_come_from_a_sample() -> None:
    assert list(sampled_steps(3)) == [0, 1, 2]
    assert len(sampled_steps(1000)) == 16
    assert (sampled_steps(1000)[0], sampled_steps(1000)[-1]) == (0, 999)
    counts = PixelCounts()
    counts.add(np.full((2, 500, 400, 3), 51, dtype=np.uint8))
    assert counts.counts.sum() < 2 * 500 * 400 * 3
    assert np.ravel(counts.stats()["q99"]) == pytest.approx([0.2, 0.2, 0.2])


def test_vector_statistics_of_one_row() -> None:
    stats = vector_stats(np.array([[1.0, 2.0]], dtype=np.float32))
    assert stats["min"] == stats["max"] == stats["mean"] == stats["q01"] == [1.0, 2.0]
    assert stats["std"] == [0.0, 0.0]


def test_rows_that_are_not_finite_are_left_out() -> None:
    stats = vector_stats(np.array([[1.0, 2.0], [np.nan, 9.0], [3.0, 4.0]]))
    assert (stats["min"], stats["max"], stats["mean"], stats["count"]) == ([1, 2], [3, 4], [2, 3], [2])
    assert vector_stats(np.full((2, 1), np.inf))["max"] == [0]
