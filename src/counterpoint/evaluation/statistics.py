"""Numbers with intervals: what a mean, a share or a handful of seeds can be trusted to say.

Intervals are 95 % unless asked otherwise. Bootstraps resample whole videos, since frames of one video are not
independent, and within each instruction where instructions differ in difficulty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.errors import BadInputError, import_extra

__all__ = [
    "Estimate",
    "mean_bca",
    "mean_percentile",
    "mean_where_defined",
    "seeds_interval",
    "statistic_percentile",
    "wilson",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number and how far to trust it.

    Attributes:
        value: The number.
        low: Lower end of its interval; `nan` where n is too small to say.
        high: Upper end.
        n: How many independent things (videos, seeds) it rests on.
        method: How the interval was made.
    """

    value: float
    low: float
    high: float
    n: int
    method: str

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"


def mean_percentile(
    values: Float[Array, " N"],
    strata: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2000,
) -> Estimate:
    """The mean with a percentile bootstrap interval, resampled within strata (instructions) where given.

    A stratum of one value cannot vary by itself: such strata are resampled together, and a lone one with the
    smallest other stratum.

    Raises:
        BadInputError: When there is no value.
    """
    groups = _strata(_checked(values), strata)
    count = len(values)

    def mean(*parts: Array, axis: int = -1) -> Array:
        total: Array = sum(part.sum(axis=axis) for part in parts)
        return total / count

    value = float(np.mean(values))
    method = "percentile bootstrap over videos" + (" within instructions" if len(groups) > 1 else "")
    if count == 1:
        return Estimate(value, float("nan"), float("nan"), 1, "none: one video")
    low, high = _bootstrap(groups, mean, "percentile", seed, level, resamples)
    return Estimate(value, low, high, count, method)


def mean_where_defined(
    values: Float[Array, " N"], strata: Sequence[Hashable] | None = None, *, seed: int = 0
) -> Estimate:
    """`mean_percentile` over the videos on which a number is defined, that is, not `nan`."""
    defined = np.isfinite(values)
    if not defined.any():
        return Estimate(float("nan"), float("nan"), float("nan"), 0, "none: not defined on any video")
    kept = None if strata is None else [label for label, keep in zip(strata, defined, strict=True) if keep]
    return mean_percentile(values[defined], kept, seed=seed)


def mean_bca(values: Float[Array, " N"], *, seed: int = 0, level: float = 0.95, resamples: int = 2000) -> Estimate:
    """The mean with a bias-corrected and accelerated bootstrap interval (Efron, 1987): for skewed values.

    Raises:
        BadInputError: When there is no value.
    """
    checked = _checked(values)
    value = float(checked.mean())
    if len(checked) == 1:
        return Estimate(value, float("nan"), float("nan"), 1, "none: one value")
    if np.ptp(checked) == 0.0:  # BCa's acceleration is 0/0 there, and every resample has the same mean
        return Estimate(value, value, value, len(checked), "BCa bootstrap")
    low, high = _bootstrap([checked], np.mean, "BCa", seed, level, resamples)
    return Estimate(value, low, high, len(checked), "BCa bootstrap")


def statistic_percentile(
    statistic: Callable[[NDArray[np.int64]], float],
    count: int,
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 1000,
) -> Estimate:
    """Any statistic of `count` videos with a percentile bootstrap interval.

    Args:
        statistic: Takes the indices of the videos drawn, with repeats.
        count: How many videos there are.
        seed: Of the resamples.
        level: Share of resamples inside the interval.
        resamples: How many.

    Raises:
        BadInputError: When there is no video.
    """
    everything = np.arange(count)
    _checked(everything.astype(np.float64))
    value = float(statistic(everything))
    if count == 1:
        return Estimate(value, float("nan"), float("nan"), 1, "none: one video")
    rng = np.random.default_rng(seed)
    draws = np.array([statistic(rng.integers(0, count, count)) for _ in range(resamples)])
    tail = (1 - level) / 2
    low, high = np.nanquantile(draws, [tail, 1 - tail])
    return Estimate(value, float(low), float(high), count, "percentile bootstrap over videos")


def wilson(successes: int, count: int, *, level: float = 0.95) -> Estimate:
    """A share of `count` independent trials with Wilson's score interval, which holds at 0 and 1 too.

    Raises:
        BadInputError: When there is no trial or more successes than trials.
    """
    if not 0 <= successes <= count or count == 0:
        raise BadInputError(
            "successes", f"{successes} of {count}", "0 <= successes <= count, count >= 1", "count again"
        )
    test = import_extra("scipy.stats", "report").binomtest(successes, count)
    interval = test.proportion_ci(confidence_level=level, method="wilson")
    return Estimate(successes / count, float(interval.low), float(interval.high), count, "Wilson")


def seeds_interval(values: Float[Array, " N"], *, level: float = 0.95) -> Estimate:
    """The mean over training seeds with Student's t interval; seeds are few, so no bootstrap.

    Raises:
        BadInputError: When there is no value.
    """
    checked = _checked(values)
    value, count = float(checked.mean()), len(checked)
    if count == 1:
        return Estimate(value, float("nan"), float("nan"), 1, "none: one seed")
    t = float(import_extra("scipy.stats", "report").t.ppf((1 + level) / 2, count - 1))
    half = t * float(checked.std(ddof=1)) / count**0.5
    return Estimate(value, value - half, value + half, count, "t over seeds")


def _checked(values: Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise BadInputError(
            "values",
            f"shape {array.shape}, finite {bool(np.isfinite(array).all())}",
            "one finite number a video, at least one",
            "evaluate at least one video, and drop those on which the number is not defined",
        )
    return array


def _strata(values: Array, labels: Sequence[Hashable] | None) -> list[Array]:
    if labels is None:
        return [values]
    members: dict[Hashable, list[float]] = {}
    for value, label in zip(values, labels, strict=True):
        members.setdefault(label, []).append(float(value))
    groups = [np.array(group) for group in members.values() if len(group) > 1]
    single = np.array([group[0] for group in members.values() if len(group) == 1])
    if len(single) == 1 and groups:
        groups.sort(key=len)
        return [np.append(groups[0], single), *groups[1:]]
    return [*groups, single] if len(single) else groups


def _bootstrap(
    groups: list[Array], statistic: Any, method: str, seed: int, level: float, resamples: int
) -> tuple[float, float]:
    result = import_extra("scipy.stats", "report").bootstrap(
        groups,
        statistic,
        method=method,
        confidence_level=level,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
        vectorized=True,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
