"""The calibration of a reward: maps its values to progress and success, and measures distance from the training data.

A `Calibration` is part of the encoder's configuration, so that it is saved with the model;
`counterpoint.rewards.calibration` measures it on training episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Num
from numpy.typing import NDArray
from pydantic import Field

from counterpoint.config import FrozenConfig
from counterpoint.errors import require

Array = NDArray[np.float64]

RewardForm = Literal["potential", "similarity", "transition", "goal", "language"]
"""The reward that an encoder was trained for; `counterpoint.rewards.model` defines the forms."""

BINS = 50
"""Maximum number of equally large groups of rewards that the isotonic regression is fitted to."""


SLACK = 0.1
"""A success ends when progress has fallen below the threshold of success by this amount."""


class ProgressMaps(FrozenConfig):
    """Monotone maps from the reward to progress.

    Attributes:
        rewards: Rewards at the map's knots, in increasing order. If the form is `potential` or `goal`, they are gains
            since the first frame; otherwise they are the rewards themselves.
        progress: Progress at the knots, never decreasing, in [0, 1].
        averaged_rewards: Rewards at the knots of a second map, from the averaged reward to progress.
        averaged_progress: Progress at these knots.
        monotone_rewards: Rewards at the knots of a third map, from the running maximum of the averaged reward to
            progress that never falls.
        monotone_progress: Progress at these knots.
    """

    rewards: tuple[float, ...]
    progress: tuple[float, ...]
    averaged_rewards: tuple[float, ...]
    averaged_progress: tuple[float, ...]
    monotone_rewards: tuple[float, ...]
    monotone_progress: tuple[float, ...]


class Calibration(ProgressMaps):
    """Monotone maps from the reward to progress, and thresholds of success and of distance from the training data.

    Attributes:
        form: The form of the reward that is mapped. For encoders trained for `potential` or `transition`, it is the one
            of these two with the smaller error on the training episodes; otherwise it is the encoder's form.
        stages: Maps that replace the model's own for some instructions. A model of segments (`data.segments`) has them
            for its stages, if they make the error of labels smaller.
        success: Minimum progress that counts as success.
        success_from: How `success` was chosen: as the threshold with the best F1 on unseen episodes, if there were
            enough failures; otherwise (uncalibrated) as the quantile `success_quantile` of the final progress of
            successful episodes.
        success_quantile: The quantile used by `success_from`.
        centre: Mean embedding of training frames.
        scale: Standard deviation of each of the D dimensions of the embedding.
        distance: Distance (root mean square of the deviations from `centre` in units of `scale`) above which a frame is
            unlike the training data.
        distance_quantile: Share of the frames of the episodes `measured_on` whose distance is smaller than `distance`.
        measured_on: Episodes on which the errors and the distance were measured. `cross-fitting`: training episodes,
            each scored by a model that did not learn from it. `validation`: validation episodes. `training`: training
            episodes, if the other two are not available.
        episodes: Number of episodes in the regression.
        measured_episodes: Number of successful episodes on which the errors were measured.
        error: Mean absolute error of progress.
        memory: Time constant, in steps, of the average of the reward (`averaged`) that labels read; 0 if labels have
            a smaller error without it.
        averaged_error: Mean absolute error of the second map.
        monotone_error: Mean absolute error of the third map.
        error_of_one_map: With `stages`, the mean absolute error that the second map would have without them.
        error_of_a_ramp: Mean absolute error of a baseline that rises linearly in time and reaches 1 at the mean length
            of the training episodes.
        error_of_a_constant: Mean absolute error of a baseline that is always 0.5.
    """

    form: RewardForm
    stages: dict[str, ProgressMaps] = Field(default_factory=dict)
    success: float
    success_from: Literal["F1 on unseen episodes", "quantile of successes (uncalibrated)"]
    success_quantile: float
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    distance: float
    distance_quantile: float
    measured_on: Literal["cross-fitting", "validation", "training"]
    episodes: int
    measured_episodes: int
    error: float
    memory: float
    averaged_error: float
    monotone_error: float
    error_of_one_map: float | None = None
    error_of_a_ramp: float
    error_of_a_constant: float

    def progress_of(self, rewards: Float[Array, "*L T"], instructions: Sequence[str] = ()) -> Float[Array, "*L T"]:
        """Return progress in [0, 1] for rewards (for gains, if the form is `potential` or `goal`).

        Args:
            rewards: The rewards.
            instructions: The instruction of each row of rewards; none for goals.
        """
        if not instructions:
            return np.asarray(np.interp(rewards, self.rewards, self.progress))
        maps = [self._maps(one) for one in instructions]
        return np.stack([np.interp(row, one.rewards, one.progress) for row, one in zip(rewards, maps, strict=True)])

    def labels_of(
        self, rewards: Float[Array, " T"], instruction: str = "", *, monotone: bool = False
    ) -> Float[Array, " T"]:
        """Return an episode's progress in [0, 1] for labels, computed from its averaged rewards.

        Args:
            rewards: The rewards (gains, as in `progress_of`) of all T frames of the episode. The value at a frame
                depends on the frames up to that frame.
            instruction: The episode's instruction; empty for a goal.
            monotone: True to return progress that never falls.
        """
        means, maps = averaged(rewards, np.arange(len(rewards)), self.memory), self._maps(instruction)
        if monotone:
            return np.asarray(np.interp(np.maximum.accumulate(means), maps.monotone_rewards, maps.monotone_progress))
        return np.asarray(np.interp(means, maps.averaged_rewards, maps.averaged_progress))

    def _maps(self, instruction: str) -> ProgressMaps:
        return self.stages.get(instruction, self)

    @property
    def graded(self) -> bool:
        """True if `success` was chosen by the best F1, with the help of failures."""
        return self.success_from == "F1 on unseen episodes"

    def success_of(self, progress: Float[Array, " T"]) -> Bool[NDArray[np.bool_], " T"]:
        """Return, as bool [T], which frames of an episode count as success, without flicker.

        Success begins when progress reaches `success`, and ends when progress falls by `SLACK` below it.
        """
        reached, lost = progress >= self.success, progress < self.success - SLACK
        last = np.maximum.accumulate(np.where(reached | lost, np.arange(len(progress)), -1))  # the last change
        return np.asarray((last >= 0) & reached[last])

    def novelty_of(self, embeddings: Float[Array, "T D"]) -> Float[Array, " T"]:
        """Return each frame's distance from the training data, divided by `distance`; above 1, the frame is novel."""
        deviations = (embeddings - np.array(self.centre)) / np.array(self.scale)
        return np.asarray(np.sqrt((deviations**2).mean(axis=1)) / self.distance)


def averaged(rewards: Float[Array, " T"], steps: Num[NDArray[Any], " T"], memory: float) -> Float[Array, " T"]:
    """Return the exponential average over time of a reward that is linear between the given frames.

    The average m starts at the first reward and follows memory * dm/dt = reward - m. It hardly depends on how many
    frames of an episode are given.

    Args:
        rewards: The rewards of T frames.
        steps: Each frame's step number, increasing.
        memory: Time constant in steps; 0 returns the rewards.
    """
    if not memory:
        return rewards
    passed = np.diff(steps)
    kept = np.exp(-passed / memory)
    lag = (1 - kept) * memory / passed
    # The exact solution from one frame to the next is kept * m plus this.
    new = (1 - lag) * rewards[1:] + (lag - kept) * rewards[:-1]
    means = [float(rewards[0])]
    for share, change in zip(kept.tolist(), new.tolist(), strict=True):
        means.append(share * means[-1] + change)
    return np.array(means)


def isotonic(
    x: Float[Array, " N"], y: Float[Array, " N"], weight: Float[Array, " N"], bins: int = BINS
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """Fit a non-decreasing function by least squares, by pooling adjacent violators (Ayer et al., 1955).

    Args:
        x: Inputs.
        y: Targets.
        weight: Weight of each pair, above 0.
        bins: Maximum number of groups of about equal weight in which neighbouring pairs are averaged before the fit;
            pairs with equal inputs stay in one group.

    Returns:
        Knots of the fitted function, x strictly increasing; the function is linear between knots and constant outside.
    """
    order = np.argsort(x, kind="stable")
    x, y, weight = x[order], y[order], weight[order]
    share = np.cumsum(weight) / weight.sum()
    first = np.flatnonzero(np.r_[True, np.diff(x) > 0])  # first index of each run of equal inputs
    group = np.minimum((share[first] - 1e-12) * bins, bins - 1).astype(int)
    starts = first[np.r_[True, np.diff(group) > 0]]
    total = np.add.reduceat(weight, starts)
    at, mean = (np.add.reduceat(weight * values, starts) / total for values in (x, y))
    blocks: list[tuple[float, float, float, float]] = []  # weight, mean, first and last input
    for block in zip(total.tolist(), mean.tolist(), at.tolist(), at.tolist(), strict=True):
        blocks.append(block)
        while len(blocks) > 1 and blocks[-2][1] >= blocks[-1][1]:
            (w, m, low, _), (v, n, _, high) = blocks[-2:]
            blocks[-2:] = [(w + v, (w * m + v * n) / (w + v), low, high)]
    knots = [(x, m) for _, m, low, high in blocks for x in dict.fromkeys((low, high))]
    return np.array([x for x, _ in knots]), np.array([m for _, m in knots])


def best_f1(scores: Float[Array, " N"], success: Bool[NDArray[np.bool_], " N"]) -> tuple[float, float]:
    """Return the threshold for which `scores >= threshold` predicts success with the highest F1, and that F1.

    Thresholds are midpoints of neighbouring scores; if several are equally good, the highest is returned.

    Raises:
        BadInputError: If there is no success, or no failure.
    """
    both = bool(success.any() and not success.all())
    require(both, "success", f"{success.sum()} of {len(success)}", "successes and failures", "add the other kind")
    levels = np.unique(scores)
    candidates = np.r_[levels[0], (levels[1:] + levels[:-1]) / 2]
    flagged = scores >= candidates[:, None]
    hits = (flagged & success).sum(axis=1)
    f1 = 2 * hits / (flagged.sum(axis=1) + success.sum())
    best = len(f1) - 1 - int(f1[::-1].argmax())
    return float(candidates[best]), float(f1[best])
