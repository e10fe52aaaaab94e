"""Means over episodes with percentile bootstrap intervals, resampled within strata such as tasks, if given."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import nan

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import bootstrap

from counterpoint.errors import require
from counterpoint.evaluation.statistics import LEVEL, Estimate

Array = NDArray[np.float64]


def mean_percentile(values: Float[Array, " N"], strata: Sequence[Hashable] | None = None, *, seed: int = 0) -> Estimate:
    """Return the mean with a percentile bootstrap interval, resampled within strata (instructions) if given.

    A stratum of one value cannot vary by itself, so such strata are resampled together. If there is only one of them,
    it is resampled with the smallest other stratum.
    """
    finite = values.ndim == 1 and len(values) > 0 and bool(np.isfinite(values).all())
    found, expected = f"shape {values.shape}, finite {finite}", "one finite number a video, at least one"
    require(finite, "values", found, expected, "drop what is not defined")
    groups, count = _strata(values, strata), len(values)
    if count == 1:
        return Estimate(float(values[0]), nan, nan, 1, "none: one video")
    method = "percentile bootstrap over videos" + (" within instructions" if len(groups) > 1 else "")
    resampled = bootstrap(
        groups,
        lambda *parts, axis: sum(part.sum(axis=axis) for part in parts) / count,
        rng=np.random.default_rng(seed),
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=2000,
        vectorized=True,
    ).confidence_interval
    return Estimate(float(np.mean(values)), float(resampled.low), float(resampled.high), count, method)


def mean_where_defined(
    values: Float[Array, " N"], strata: Sequence[Hashable] | None = None, *, seed: int = 0
) -> Estimate:
    """Return `mean_percentile` of the values that are defined (not `nan`)."""
    defined = np.isfinite(values)
    if not defined.any():
        return Estimate(nan, nan, nan, 0, "none: not defined on any video")
    kept = None if strata is None else [label for label, keep in zip(strata, defined, strict=True) if keep]
    return mean_percentile(values[defined], kept, seed=seed)


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
