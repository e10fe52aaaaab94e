"""Numbers with 95 % intervals: means, shares, and means over a few training seeds.

Bootstraps resample tasks and whole videos, since frames of one video are not independent. Intervals of shares stay
within [0, 1].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import BeforeValidator

from counterpoint.errors import import_extra, require

Array = NDArray[np.float64]
LEVEL = 0.95
Number = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
"""A float; JSON's null is read as `nan`."""


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval.

    Attributes:
        value: The number.
        low: Lower end of the interval; `nan` if n is too small for an interval.
        high: Upper end of the interval.
        n: Number of independent samples (videos, seeds) that the number is computed from.
        method: Name of the interval's method.
    """

    value: Number
    low: Number
    high: Number
    n: int
    method: str

    def as_json(self) -> dict[str, Any]:
        """Return the attributes for JSON, with `None` instead of `nan`."""
        return {name: None if found != found else found for name, found in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"


def mean_bca(values: Float[Array, " N"], *, seed: int = 0) -> Estimate:
    """Return the mean with a bias-corrected and accelerated bootstrap interval (Efron, 1987), for skewed values."""
    checked = _checked(values)
    value, count = float(checked.mean()), len(checked)
    if count == 1:
        return Estimate(value, nan, nan, 1, "none: one value")
    if np.ptp(checked) == 0.0:  # BCa's acceleration would be 0/0, and every resample has the same mean
        return Estimate(value, value, value, count, "BCa bootstrap")
    rng, settings = np.random.default_rng(seed), {"method": "BCa", "confidence_level": LEVEL, "n_resamples": 2000}
    bootstrap = import_extra("scipy.stats", "report").bootstrap
    found = bootstrap([checked], np.mean, rng=rng, vectorized=True, **settings).confidence_interval
    return Estimate(value, float(found.low), float(found.high), count, "BCa bootstrap")


def task_resamples(tasks: Sequence[Hashable], *, seed: int = 0, count: int = 1000) -> list[NDArray[np.int64]]:
    """Return bootstrap samples of videos.

    Tasks are drawn with replacement; then, for each drawn task, as many videos as the task has, also with replacement.
    With one task, only videos are resampled. Statistics of the same samples are paired, so that their differences give
    the interval of a difference.
    """
    members: dict[Hashable, list[int]] = {}
    for video, task in enumerate(tasks):
        members.setdefault(task, []).append(video)
    groups = [np.array(group, np.int64) for group in members.values()]
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(0, len(groups), len(groups)) if len(groups) > 1 else [0] for _ in range(count))
    return [np.concatenate([rng.choice(groups[task], len(groups[task])) for task in picked]) for picked in drawn]


def resample_weights(tasks: Sequence[Hashable], *, seed: int = 0) -> Float[Array, "R+1 N"]:
    """Return how often each of N videos counts: once in the first row; in row r, its count in bootstrap sample r."""
    samples = [np.arange(len(tasks)), *task_resamples(tasks, seed=seed)]
    return np.stack([np.bincount(sample, minlength=len(tasks)) for sample in samples]).astype(np.float64)


@dataclass(frozen=True)
class Drawn:
    """A number computed on N videos and on R bootstrap samples of them.

    Attributes:
        values: The number, then its value on each bootstrap sample, [1 + R].
        n: Number of videos for which it is defined.
    """

    values: Float[Array, " R+1"]
    n: int

    def estimate(self) -> Estimate:
        """Return the number with its interval."""
        return from_resamples(float(self.values[0]), self.values[1:], self.n)

    def __sub__(self, other: Drawn) -> Drawn:
        return Drawn(self.values - other.values, min(self.n, other.n))


def drawn_mean(values: Float[Array, " N"], weights: Float[Array, "R+1 N"]) -> Drawn:
    """Return the mean of values that are not `nan`, over all videos and over every bootstrap sample."""
    defined = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        means = weights @ np.where(defined, values, 0.0) / (weights @ defined)
    return Drawn(means, int(defined.sum()))


def from_resamples(value: float, draws: Float[Array, " R"], count: int) -> Estimate:
    """Return a statistic of `count` videos, with the percentile interval of its values on bootstrap samples."""
    known = draws[np.isfinite(draws)]
    if not len(known) or count < 2 or not np.isfinite(value):
        return Estimate(value, nan, nan, count, "none: too few videos")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), count, "percentile bootstrap over tasks and their videos")


def wilson(successes: int, count: int) -> Estimate:
    """Return a share of `count` independent trials with Wilson's score interval, which is valid at 0 and 1 too."""
    expected = "0 <= successes <= count, count >= 1"
    require(0 <= successes <= count > 0, "successes", f"{successes} of {count}", expected, "count again")
    test = import_extra("scipy.stats", "report").binomtest(successes, count)
    interval = test.proportion_ci(confidence_level=LEVEL, method="wilson")
    return Estimate(successes / count, float(interval.low), float(interval.high), count, "Wilson")


def as_share(found: Estimate) -> Estimate:
    """Return a share of videos with an interval that is wider than zero even for a share of 0 or 1.

    The interval covers Wilson's interval and the bootstrap interval over tasks, which accounts for similar videos of
    one task.
    """
    return wider(wilson(round(found.n * found.value), found.n), found)


def wider(one: Estimate, other: Estimate) -> Estimate:
    """Return the first number with an interval that covers both intervals."""
    low, high = np.nanmin([one.low, other.low]), np.nanmax([one.high, other.high])
    return Estimate(one.value, float(low), float(high), one.n, f"wider of {one.method} and {other.method}")


def seeds_interval(values: Float[Array, " N"], *, share: bool = False) -> Estimate:
    """Return the mean over training seeds with Student's t interval.

    A bootstrap interval over only two or three seeds would be far too narrow.

    Args:
        values: One number per seed.
        share: True for shares, whose interval is clipped to [0, 1].
    """
    checked = _checked(values)
    value, count = float(checked.mean()), len(checked)
    if count == 1:
        return Estimate(value, nan, nan, 1, "none: one seed")
    t = float(import_extra("scipy.stats", "report").t.ppf((1 + LEVEL) / 2, count - 1))
    half = t * float(checked.std(ddof=1)) / count**0.5
    low, high = value - half, value + half
    return Estimate(value, max(low, 0.0) if share else low, min(high, 1.0) if share else high, count, "t over seeds")


def _checked(values: Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    finite = bool(np.isfinite(array).all())
    found, expected = f"shape {array.shape}, finite {finite}", "one finite number a video, at least one"
    require(array.ndim == 1 and len(array) and finite, "values", found, expected, "drop what is not defined")
    return array
