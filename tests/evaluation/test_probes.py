from __future__ import annotations

import numpy as np
import pytest

from counterpoint.evaluation.probes import effective_rank, effective_rank_estimate, time_probe


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(np.eye(7)) == pytest.approx(7.0)
    assert effective_rank(np.outer(np.arange(1.0, 9.0), [1.0, -2.0, 3.0])) == pytest.approx(1.0)
    singular = np.array([3.0, 1.0])
    share = singular / singular.sum()
    expected = float(np.exp(-(share * np.log(share)).sum()))
    assert effective_rank(np.diag(singular)) == pytest.approx(expected)
    assert effective_rank(np.zeros((4, 3))) == pytest.approx(1.0)


def test_effective_rank_of_many_videos_is_that_of_their_frames() -> None:
    rng = np.random.default_rng(0)
    videos = [rng.normal(size=(rng.integers(4, 9), 5)) for _ in range(23)]
    found = effective_rank_estimate(videos)
    assert found.value == pytest.approx(effective_rank(np.concatenate(videos)))
    assert found.low < found.value < found.high
    assert found.n == 23
    assert np.isnan(effective_rank_estimate(videos[:1]).low)


def test_time_is_found_where_it_is_and_only_there() -> None:
    rng = np.random.default_rng(0)
    direction = rng.normal(size=6)
    lengths = rng.integers(10, 20, 12)
    tells = [np.outer(np.linspace(0, 1, n), direction) + rng.normal(0, 0.05, (n, 6)) for n in lengths]
    silent = [rng.normal(size=(n, 6)) for n in lengths]
    told, untold = time_probe(tells), time_probe(silent)
    assert told is not None
    assert untold is not None
    assert told.value > 0.95
    assert untold.value < 0.1
    assert told.low <= told.value <= told.high


def test_time_is_probed_on_unseen_videos() -> None:
    """A video's own look gives its time away within it, and nothing in another video."""
    rng = np.random.default_rng(0)
    videos = [np.outer(np.linspace(0, 1, 12), rng.normal(size=30)) for _ in range(10)]
    found = time_probe(videos)
    assert found is not None
    assert found.value < 0.2


def test_one_video_cannot_be_probed() -> None:
    assert time_probe([np.ones((5, 3))]) is None
