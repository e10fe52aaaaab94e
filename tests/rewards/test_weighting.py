"""Weights of steps from progress, beside LeRobot's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import WEIGHT, weighted_mean
from counterpoint.rewards.weighting import chunk_gains, gain_weights, spread_in_words, step_weights
from tests.data.numbered import numbered_store
from tests.golden.load import golden


@pytest.mark.parametrize(("chunk", "kappa"), [(4, 0.01), (7, 0.2)])
def test_weights_are_lerobot_s(chunk: int, kappa: float) -> None:
    arrays, _ = golden("rabc_a")
    parts = np.split(arrays["progress"].double().numpy(), np.cumsum(arrays["lengths"].numpy())[:-1])
    weights = gain_weights(np.concatenate([chunk_gains(part, chunk) for part in parts]), kappa)
    np.testing.assert_allclose(weights, arrays[f"weights_{chunk}"].numpy(), atol=1e-6)
    # Their batches' weights add up to the batch size, and their loss divides by the weights' sum: a weighted mean.
    own, theirs = torch.from_numpy(weights)[arrays["batch"]], arrays[f"batch_{chunk}"].double()
    losses = torch.rand(len(own), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = {WEIGHT: torch.stack([torch.zeros_like(own), own], 1)}
    wanted = (losses * theirs).sum() / (theirs.sum() + 1e-6)
    torch.testing.assert_close(weighted_mean(losses, batch), wanted, atol=1e-6, rtol=0)


def by_hand(progress: list[float], episode: list[int], chunk: int) -> list[float]:
    """SARM, Eqs. 8 and 9, frame by frame."""
    deltas = []
    for t in range(len(progress)):
        later = t
        for ahead in range(1, chunk + 1):
            if t + ahead < len(progress) and episode[t + ahead] == episode[t]:
                later = t + ahead
        deltas.append(progress[later] - progress[t])
    mean, deviation = max(float(np.mean(deltas)), 0.0), max(float(np.std(deltas)), 1e-6)
    weights = []
    for delta in deltas:
        soft = min(max((delta - (mean - 2 * deviation)) / (4 * deviation + 1e-6), 0.0), 1.0)
        weights.append(1.0 if delta > 0.01 else soft if delta >= 0 else 0.0)
    return weights


def test_weights_are_those_of_the_equations() -> None:
    rng = np.random.default_rng(0)
    episode = np.repeat([0, 1, 2, 3], [7, 1, 12, 5])
    progress = rng.uniform(0, 1, 25).round(2)
    progress[7:9] = progress[9]  # deltas of exactly 0
    for chunk in (1, 4, 50):
        parts = np.split(progress, [7, 8, 20])
        found = gain_weights(np.concatenate([chunk_gains(part, chunk) for part in parts]))
        np.testing.assert_allclose(found, by_hand(progress.tolist(), episode.tolist(), chunk), atol=1e-12)
    assert found.min() == 0
    assert found.max() == 1


def written(path: Path, progress: Mapping[int, Any], column: str = "progress_sparse") -> Path:
    parts = {
        "index": np.arange(sum(map(len, progress.values()))),
        "episode_index": np.concatenate([np.full(len(values), number) for number, values in progress.items()]),
        "frame_index": np.concatenate([np.arange(len(values)) for values in progress.values()]),
        column: np.concatenate(list(progress.values())).astype(np.float32),
    }
    pq.write_table(pa.table(parts), path)
    return path


def test_weights_follow_the_demonstrations_that_are_chosen(tmp_path: Path) -> None:
    whole = numbered_store([6, 5, 7])
    progress = {
        0: np.linspace(0, 1, 6),
        1: np.linspace(1, 0, 5),
        2: np.where(np.arange(7) == 3, np.nan, np.linspace(0, 0.1, 7)),
    }
    file = written(tmp_path / "progress.parquet", progress)
    options: dict[str, Any] = {"column": "progress_sparse", "chunk": 2}
    every = step_weights(file, whole, whole, kappa=0.1, **options)
    assert every[:4].tolist() == [1, 1, 1, 1]  # each of these chunks makes more progress than kappa
    assert every[6:10].tolist() == [0, 0, 0, 0]
    assert every[11 + 3] == 1  # unknown progress
    assert 0 < every[11] < 1
    some = step_weights(file, whole, SubsetStore(whole, [2, 0]), kappa=0.1, **options)
    np.testing.assert_array_equal(some, np.concatenate([every[11:], every[:6]]))


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    whole = numbered_store([6, 5])
    options: dict[str, Any] = {"column": "progress_sparse", "chunk": 2, "kappa": 0.01}
    cases = {
        "5 frames": {0: np.zeros(5), 1: np.zeros(5)},
        "episode 7": {0: np.zeros(6), 7: np.zeros(5)},
        r"no progress of episode \[1\]": {0: np.zeros(6)},
    }
    for said, progress in cases.items():
        file = written(tmp_path / "progress.parquet", progress)
        with pytest.raises(BadInputError, match=said):
            step_weights(file, whole, whole, **options)
    with pytest.raises(BadInputError, match="no such file"):
        step_weights(tmp_path / "absent.parquet", whole, whole, **options)
    file = written(tmp_path / "progress.parquet", {0: np.zeros(6), 1: np.zeros(5)}, column="progress_dense")
    with pytest.raises(BadInputError, match="progress_dense"):
        step_weights(file, whole, whole, **options)
    with pytest.raises(BadInputError, match="not numbered"):
        step_weights(file, whole, numbered_store([5, 6]), **options | {"column": "progress_dense"})


def test_the_spread_of_progress_suggests_its_mean_as_kappa() -> None:
    said = spread_in_words([np.linspace(0, 1, 101), np.linspace(1, 0, 101)], chunks=(10,))
    assert said.startswith("Progress of 10 steps: mean 0.000, standard deviation 0.09")
    assert "50% negative" in said
    rising = spread_in_words([np.linspace(0, 1, 101) ** 2], chunks=(10,))
    assert "with kappa 0.01, " in rising
    assert "with kappa 0.09" in rising
