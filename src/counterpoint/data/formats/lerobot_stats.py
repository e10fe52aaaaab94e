"""The statistics LeRobot keeps of every feature, of one episode and of the whole data set.

Each is a mapping with min, max, mean, std, count and the quantiles q01 to q99. Pictures are summed up channel
by channel in [0, 1], with shape (3, 1, 1), from a sample of frames and pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array

__all__ = ["QUANTILES", "PixelCounts", "sampled_steps", "vector_stats"]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_FRAMES, _SIDE = 16, 112  # frames an episode, and pixels a side, that statistics look at


def vector_stats(values: Array) -> dict[str, list[Any]]:
    """Statistics over the rows of [N, n]; min and max keep the dtype."""
    wide = values.astype(np.float64)
    stats = {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": wide.mean(axis=0).tolist(),
        "std": wide.std(axis=0).tolist(),
        "count": [len(values)],
    }
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return stats | {name: row.tolist() for name, row in zip(QUANTILES, quantiles, strict=True)}


def sampled_steps(length: int) -> NDArray[np.int64]:
    """The steps of an episode whose pictures are counted: all of a short one, else some evenly spaced."""
    return np.unique(np.linspace(0, length - 1, min(length, _FRAMES)).astype(np.int64))


class PixelCounts:
    """How often each of the 256 values occurs in each channel: enough for all statistics, and they add up."""

    def __init__(self) -> None:
        self.frames = 0
        self.counts = np.zeros((3, 256), dtype=np.int64)

    def add(self, frames: Array) -> None:
        """Count the pixels of uint8 [N, H, W, 3], every second, third ... of large pictures."""
        stride = max(1, min(frames.shape[1:3]) // _SIDE)
        self.frames += len(frames)
        for channel, counts in enumerate(self.counts):
            counts += np.bincount(frames[:, ::stride, ::stride, channel].ravel(), minlength=256)

    def merge(self, other: PixelCounts) -> None:
        """Add another's counts."""
        self.frames += other.frames
        self.counts += other.counts

    def stats(self) -> dict[str, list[Any]]:
        """The statistics; `count` is the number of frames looked at."""
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
            **{
                name: [levels[np.searchsorted(r, q - 1e-12)] for r in reached]
                for name, q in QUANTILES.items()
            },
        }
        shaped = {name: np.asarray(row).reshape(3, 1, 1).tolist() for name, row in rows.items()}
        return {**shaped, "count": [self.frames]}
