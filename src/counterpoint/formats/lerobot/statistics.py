"""The statistics that LeRobot stores for every feature, for each episode and for the whole data set.

They are min, max, mean, std, count and the quantiles q01 to q99. Statistics of images are per channel, in [0, 1] and of
shape (3, 1, 1), and come from a sample of the pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_FRAMES, _SIDE = 16, 112  # frames per episode, and pixels per side, that statistics are computed from


def vector_stats(values: Array) -> dict[str, list[Any]]:
    """Return statistics over those rows of [N, *shape] that are finite; min and max keep the dtype."""
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    values = values[finite] if finite.any() else np.zeros_like(values[:1])
    wide = values.astype(np.float64)
    stats = {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": wide.mean(axis=0).tolist(),
        "std": wide.std(axis=0).tolist(),
        "count": [len(values)],
    }
    quantiles = np.quantile(wide, list(_QUANTILES.values()), axis=0)
    return stats | {name: row.tolist() for name, row in zip(_QUANTILES, quantiles, strict=True)}


def sampled_steps(length: int) -> NDArray[np.int64]:
    """Return the steps whose images enter statistics: all of a short episode, evenly spaced steps of a long one."""
    return np.unique(np.linspace(0, length - 1, min(length, _FRAMES)).astype(np.int64))


class PixelCounts:
    """A histogram of the 256 values of each channel, which suffices for all statistics; histograms can be added."""

    def __init__(self) -> None:
        self.frames = 0
        self.counts = np.zeros((3, 256), dtype=np.int64)

    def add(self, frames: Array) -> None:
        """Count the pixels of images uint8 [N, H, W, 3]; in large images only every second, third ... pixel."""
        stride = max(1, min(frames.shape[1:3]) // _SIDE)
        self.frames += len(frames)
        for channel, counts in enumerate(self.counts):
            counts += np.bincount(frames[:, ::stride, ::stride, channel].ravel(), minlength=256)

    def merge(self, other: PixelCounts) -> None:
        """Add the counts of another histogram."""
        self.frames += other.frames
        self.counts += other.counts

    def stats(self) -> dict[str, list[Any]]:
        """Return the statistics; `count` is the number of frames counted."""
        levels = np.arange(256) / 255
        share = self.counts / self.counts.sum(axis=1, keepdims=True)
        mean = share @ levels
        variance = share @ levels**2 - mean**2
        reached = share.cumsum(axis=1)
        rows = {
            "min": [levels[row.nonzero()[0][0]] for row in self.counts],
            "max": [levels[row.nonzero()[0][-1]] for row in self.counts],
            "mean": mean,
            "std": np.sqrt(np.maximum(variance, 0)),
            **{name: [levels[np.searchsorted(r, q - 1e-12)] for r in reached] for name, q in _QUANTILES.items()},
        }
        shaped = {name: np.asarray(row).reshape(3, 1, 1).tolist() for name, row in rows.items()}
        return {**shaped, "count": [self.frames]}
