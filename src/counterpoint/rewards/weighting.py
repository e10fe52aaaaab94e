"""Weights of demonstrations' steps from progress: reward-aligned behaviour cloning (RA-BC), as LeRobot has it.

    r_t = p_{min(t + chunk, T - 1)} - p_t                          the progress of the next `chunk` steps
    soft_t = clip((r_t - (mu - 2 sigma)) / (4 sigma + 1e-6), 0, 1)
    w_t = 1 if r_t > kappa, soft_t if 0 <= r_t <= kappa, 0 if r_t < 0

The method is SARM's (arXiv 2509.25358, Eq. 8 and 9; LeRobot's `rewards/sarm/rabc.py`). mu (at least 0) and sigma are
the mean and the standard deviation of r over all steps in the file. A step whose progress is unknown has the weight 1.
LeRobot's chunk is the policy's chunk size, and its kappa is .01.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import StateStore, SubsetStore
from counterpoint.errors import require, require_known
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.signals import read_signals

Array = NDArray[np.float64]

EPSILON = 1e-6
KAPPA = 0.01
"""LeRobot's threshold."""


def chunk_gains(progress: Float[Array, " T"], chunk: int) -> Float[Array, " T"]:
    """Return the progress of the next `chunk` steps from each step on, or of those up to the episode's end."""
    last = len(progress) - 1
    return np.asarray(progress[np.minimum(np.arange(last + 1) + chunk, last)] - progress)


def gain_weights(gains: Float[Array, " N"], kappa: float = KAPPA) -> Float[Array, " N"]:
    """Return the weight of each step in [0, 1].

    Args:
        gains: The progress of the chunk from each of all N steps on; NaN where it is unknown.
        kappa: A step whose chunk makes more progress than this has the weight 1.
    """
    mean, deviation = spread_of(gains)
    soft = np.clip((gains - (mean - 2 * deviation)) / (4 * deviation + EPSILON), 0, 1)
    weights = np.where(gains > kappa, 1.0, np.where(gains < 0, 0.0, soft))
    return np.where(np.isnan(gains), 1.0, weights)


def spread_of(gains: Float[Array, " N"]) -> tuple[float, float]:
    """Return the mean of the gains, at least 0, and their standard deviation, at least 1e-6."""
    known = gains[~np.isnan(gains)]
    if not len(known):
        return 0.0, EPSILON
    return max(float(known.mean()), 0.0), max(float(known.std()), EPSILON)


def step_weights(
    file: Path, whole: EpisodeStore, store: EpisodeStore, *, column: str, chunk: int, kappa: float
) -> Float[NDArray[np.float32], " N"]:
    """Return the weight of each of the N steps of some demonstrations, episode after episode.

    Args:
        file: A progress file or sidecar of the whole data set.
        whole: The data set.
        store: The demonstrations: the data set, some of its episodes, or a split of a LeRobot data set.
        column: The column of progress.
        chunk: Number of steps over which progress is compared.
        kappa: See `gain_weights`.

    Raises:
        BadInputError: If the file does not fit the data set, lacks the column or one of the demonstrations, or the
            demonstrations are a split whose numbers in the data set are unknown.
    """
    numbers = _numbers(whole)
    columns = read_signals(file, numbers, whole.lengths.tolist())
    require_known(column, columns, f"data.weights {file}")
    gains = {place: chunk_gains(progress, chunk) for place, progress in columns[column].items()}
    weights = gain_weights(np.concatenate(list(gains.values())), kappa)
    stops = np.cumsum([len(one) for one in gains.values()])
    each = dict(zip((numbers[place] for place in gains), np.split(weights, stops[:-1]), strict=True))
    own = _numbers(store)
    lengths = {number: int(length) for number, length in zip(numbers, whole.lengths, strict=True)}
    same = [lengths.get(number) for number in own] == store.lengths.tolist()
    hint = "name no split (data.split), or convert the data: counterpoint data convert DATA OUT"
    require(same, "data.weights", "demonstrations that are not numbered as the whole data set is", "all of it", hint)
    missing = [number for number in own if number not in each]
    require(not missing, file, f"no progress of episode {missing[:3]}", "progress of every demonstration", "label them")
    return np.concatenate([each[number] for number in own]).astype(np.float32)


def _numbers(store: EpisodeStore) -> list[int]:
    """Return the number of each episode in its data set."""
    if isinstance(store, StateStore):
        return _numbers(store.stores[0])
    if isinstance(store, SubsetStore):
        numbers = _numbers(store.whole)
        return [numbers[index] for index in store.indices]
    return list(store.numbers) if isinstance(store, LeRobotStore) else list(range(len(store.episodes)))


def spread_in_words(progress: Sequence[Float[Array, " T"]], chunks: Sequence[int] = (16, 50)) -> str:
    """Describe the progress of chunks and the weights that follow from it, and suggest a threshold.

    The suggested kappa is the mean progress of a chunk: steps with more have the weight 1.
    """
    lines = []
    for chunk in chunks:
        gains = np.concatenate([chunk_gains(one, chunk) for one in progress])
        mean, deviation = spread_of(gains)
        kappa = round(mean, 3)
        each = [f"{gain_weights(gains, one).mean():.2f} with kappa {one:g}" for one in dict.fromkeys((KAPPA, kappa))]
        lines.append(
            f"Progress of {chunk} steps: mean {mean:.3f}, standard deviation {deviation:.3f}, "
            f"{(gains < 0).mean():.0%} negative; mean weight of a step {', '.join(each)}"
        )
    return "\n".join(lines)
