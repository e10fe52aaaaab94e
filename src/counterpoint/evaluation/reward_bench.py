"""Rewards asked about the same videos in several ways, and the numbers of their answers with bootstrap samples.

Every reward is a curve over a video. It is asked about the video as recorded and about inputs that should change the
answer: frames from last to first, in random order, one frame repeated, and the first, middle or last frame alone.
`docs/methods/metrics.md` defines every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.encoders.calibration import best_f1
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import spread
from counterpoint.evaluation.statistics import Estimate, from_resamples, task_resamples
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import STATE, reads_state, states_of
from counterpoint.rewards.sources import Curves, EncoderReward, Reward

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

RECORDED, WRONG = "as recorded", "wrong text"
INPUTS = (RECORDED, "reversed", "shuffled", "frozen", "first frame", "middle frame", "last frame")
ALONE = INPUTS[-3:]
CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a video whose true grades, on RoboRewardBench's scale, are 1, 2, 3, 4 and 5."""


@dataclass(frozen=True)
class Answers:
    """A reward's answers to N videos in one order of their frames.

    Attributes:
        ends: Last value under each instruction, [N, L].
        halves: Last value of the first half, under the own instruction, [N].
        voc: Spearman's rho under the own instruction, [N].
        pearson: Pearson's r likewise.
    """

    ends: Float[Array, "N L"]
    halves: Float[Array, " N"]
    voc: Float[Array, " N"]
    pearson: Float[Array, " N"]


@dataclass(frozen=True)
class Answered:
    """All that a reward says about N videos.

    Attributes:
        inputs: Input -> answers; those of `wrong text` have the mean over the other instructions for the own one, and
            there are none where there is no other.
        cuts: Progress after the first 0, 1/4, 1/2, 3/4 and all of a video, under its own instruction, [N, 5].
    """

    inputs: Mapping[str, Answers]
    cuts: Float[Array, "N 5"]


def ask(
    rewards: Sequence[Reward],
    store: EpisodeStore,
    instructions: Sequence[str],
    *,
    cameras: Cameras = None,
    max_frames: int = 128,
    seed: int = 0,
) -> list[Answered]:
    """Ask every reward about every video; each video is decoded once.

    Args:
        rewards: The rewards.
        store: Episodes, each under one of the instructions.
        instructions: The L candidates.
        cameras: The view, by default the store's first; of several, rewards are the mean of theirs.
        max_frames: Greatest number of frames of a video, evenly spread.
        seed: Random seed of the shuffles.
    """
    views = camera_names(cameras, store.cameras)
    said: list[list[tuple[dict[str, tuple[Any, ...]], Array]]] = [[] for _ in rewards]
    with ProgressBar("Comparing", len(store.episodes), "videos") as progress:
        for number, info in enumerate(store.episodes):
            steps, own = spread(info.length, max_frames), instructions.index(info.instruction)
            frames = {view: store.frames(number, steps, view) for view in views}
            if any(reads_state(one.model.encoder) for one in rewards if isinstance(one, EncoderReward)):
                frames[STATE] = states_of(store, number)[steps]
            shared: dict[str, Any] = {}
            for reward, answers in zip(rewards, said, strict=True):
                curves = reward.watch(frames, shared)
                answers.append(
                    (
                        _answers(curves, len(steps), own, instructions, (seed, number)),
                        _cuts(curves, steps, info.instruction),
                    )
                )
            progress.advance()
    found = []
    for answers in said:
        inputs = {
            name: Answers(*(np.array([video[name][part] for video, _ in answers]) for part in range(4)))
            for name in answers[0][0]
        }
        found.append(Answered(inputs, np.array([cuts for _, cuts in answers])))
    return found


def _answers(
    curves: Curves, length: int, own: int, instructions: Sequence[str], key: tuple[int, int]
) -> dict[str, tuple[Any, ...]]:
    """Return for every input its last values, the half's, and both correlations with time."""
    found: dict[str, tuple[Any, ...]] = {}
    half = max(1, length // 2)
    for name in INPUTS:
        values, part = curves(_order(name, length, key), instructions), _order(name, half, key)
        over = _correlations(values[own]) if name not in ALONE else (np.nan, np.nan)
        found[name] = (values[:, -1], float(curves(part, [instructions[own]])[0, -1]), *over)
        if name == RECORDED and len(instructions) > 1:
            others = [column for column in range(len(instructions)) if column != own]
            swapped = values[:, -1].copy()
            swapped[own] = swapped[others].mean()
            halves = curves(part, [instructions[column] for column in others])[:, -1]
            over = np.mean([_correlations(values[column]) for column in others], axis=0)
            found[WRONG] = (swapped, float(halves.mean()), *over)
    return found


def _correlations(curve: Array) -> tuple[float, float]:
    return metrics.value_order_correlation(curve), metrics.value_time_correlation(curve)


def _order(name: str, length: int, key: tuple[int, int]) -> Indices:
    """Return the steps of a video of `length` frames that an input shows."""
    middle = length // 2
    match name:
        case "reversed":
            return np.arange(length)[::-1].copy()
        case "shuffled":
            return np.asarray(sample_rng(*key, "shuffle").permutation(length))
        case "frozen":
            return np.full(length, middle)
        case "first frame" | "middle frame" | "last frame":
            return np.array([{"first frame": 0, "middle frame": middle, "last frame": length - 1}[name]])
    return np.arange(length)


def _cuts(curves: Curves, steps: Indices, instruction: str) -> Array:
    ends = [max(1, round(cut * (len(steps) - 1)) + 1) for cut in CUTS]
    return np.array([curves(np.arange(end), [instruction], progress=True)[0, -1] for end in ends])


@dataclass(frozen=True)
class Drawn:
    """A number of the N videos, and behind it its values on R bootstrap samples.

    Attributes:
        values: [1 + R].
        n: Number of videos on which it is defined.
    """

    values: Float[Array, " R+1"]
    n: int

    def estimate(self) -> Estimate:
        """Return the number with its interval."""
        return from_resamples(float(self.values[0]), self.values[1:], self.n)

    def __sub__(self, other: Drawn) -> Drawn:
        return Drawn(self.values - other.values, min(self.n, other.n))


Numbers = Mapping[str, Drawn]


class Bench:
    """The compared videos: who succeeds, what counts as a failure, and bootstrap samples that all rows share.

    Args:
        own: Column of each video's instruction, [N].
        success: True unless the video is recorded as a failure, [N].
        instructions: The L candidates.
        seed: Random seed of the samples and of the instructions that stand in for failures.

    Attributes:
        weights: How often each video counts: once, then on each bootstrap sample, [1 + R, N].
        items: Trajectories for success detection and ranking, [I, 3]: video, column, and level (0 failure, 1 the first
            half of a success, 2 success). Without recorded failures, each video under one other instruction (one word
            apart where there is one) stands in: another goal was reached. One instruction alone leaves first halves.
    """

    def __init__(
        self, own: Indices, success: Bool[NDArray[np.bool_], " N"], instructions: Sequence[str], seed: int = 0
    ) -> None:
        self.own, self.success = own, success
        self.hard = metrics.one_word_apart(instructions)
        self.recorded = not success.all()
        columns, items = len(instructions), []
        for video, (mine, good) in enumerate(zip(own.tolist(), success.tolist(), strict=True)):
            items += [(video, mine, 2), (video, mine, 1)] if good else [(video, mine, 0)]
            if good and not self.recorded and columns > 1:
                near = np.flatnonzero(self.hard[mine])
                others = near if len(near) else np.delete(np.arange(columns), mine)
                items.append((video, int(sample_rng(seed, video, "another goal").choice(others)), 0))
        self.items = np.array(items, np.int64)
        self.fold = np.argsort(np.argsort(own, kind="stable"), kind="stable") % 2
        samples = [np.arange(len(own)), *task_resamples(own.tolist(), seed=seed)]
        self.weights = np.stack([np.bincount(sample, minlength=len(own)) for sample in samples]).astype(np.float64)

    def scores(self, answers: Answers) -> Float[Array, " I"]:
        """Return the score of every item: a last value."""
        video, column, level = self.items.T
        return np.asarray(np.where(level == 1, answers.halves[video], answers.ends[video, column]))

    def numbers(
        self, answered: Answered, name: str, validation: tuple[Array, NDArray[np.bool_]] | None, *, progress: bool
    ) -> dict[str, Drawn]:
        """Return every number that is defined of one input; `validation` has scores and successes of other items."""
        answers, success = answered.inputs[name], self.success
        means = {"voc": answers.voc, "voc_pearson": answers.pearson}
        if name != WRONG and answers.ends.shape[1] > 1:
            means["accuracy"] = metrics.matched(answers.ends, self.own).astype(np.float64)
            means["triples_easy"] = metrics.triples(answers.ends, self.own, ~self.hard)
            means["triples_one_word_apart"] = metrics.triples(answers.ends, self.own, self.hard)
            means["confusion_gap"] = metrics.confusion_gap(answers.ends, self.own)
        if progress and name == RECORDED:
            means["grade_error"] = np.abs(metrics.grade(answered.cuts) - (1 + 4 * np.array(CUTS))).mean(axis=1)
        found = {key: self._mean(np.where(success, values, np.nan)) for key, values in means.items()}
        scores, positive = self.scores(answers), self.items[:, 2] == 2
        passed = self._passed(scores, positive, validation)
        counts = self.weights[:, self.items[:, 0]]
        statistics = {
            "kendall_tau_b": self._ranking(scores),
            "auroc": metrics.auroc(scores, positive, counts),
            "auprc": metrics.auprc(scores, positive, counts),
            "f1": metrics.f1(passed, positive, counts),
        }
        found |= {key: Drawn(values, len(self.own)) for key, values in statistics.items()}
        return {key: drawn for key, drawn in found.items() if np.isfinite(drawn.values[0])}

    def _mean(self, values: Float[Array, " N"]) -> Drawn:
        defined = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            means = self.weights @ np.where(defined, values, 0.0) / (self.weights @ defined)
        return Drawn(means, int(defined.sum()))

    def _ranking(self, scores: Float[Array, " I"]) -> Float[Array, " R+1"]:
        """Return the mean over tasks of the ranking, where a task has two levels or more."""
        video, column, level = self.items.T
        each = []
        for task in np.unique(column):
            members = [np.flatnonzero((column == task) & (level == rank)) for rank in range(3)]
            present = [rows for rows in members if len(rows)]
            if len(present) > 1:
                counts = [self.weights[:, video[rows]] for rows in present]
                each.append(metrics.quality_ranking([scores[rows] for rows in present], counts))
        known = np.isfinite(each)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(known, each, 0.0).sum(axis=0) / known.sum(axis=0))

    def _passed(
        self, scores: Array, positive: NDArray[np.bool_], validation: tuple[Array, NDArray[np.bool_]] | None
    ) -> NDArray[np.bool_]:
        """Return the items at or above a threshold that was fixed on others: on validation, or on the other half."""
        if validation is not None:
            return np.asarray(scores >= _threshold(*validation))
        fold = self.fold[self.items[:, 0]]
        fixed = [_threshold(scores[fold != half], positive[fold != half]) for half in (0, 1)]
        return np.asarray(scores >= np.array(fixed)[fold])


def _threshold(scores: Array, success: NDArray[np.bool_]) -> float:
    """Return the threshold with the best F1; one that nothing reaches where a kind is missing."""
    return best_f1(scores, success)[0] if success.any() and not success.all() else np.inf


def bench_of(store: EpisodeStore, instructions: Sequence[str], seed: int) -> Bench:
    """Return the bench of a store's episodes, each under one of the instructions."""
    own = np.array([instructions.index(info.instruction) for info in store.episodes], np.int64)
    return Bench(own, np.array([info.success is not False for info in store.episodes]), instructions, seed)


def over_seeds(seeds: Sequence[Numbers]) -> dict[str, Drawn]:
    """Return the mean over training seeds of the numbers that all have."""
    names = [name for name in seeds[0] if all(name in one for one in seeds)]
    return {name: Drawn(np.mean([one[name].values for one in seeds], axis=0), seeds[0][name].n) for name in names}


def minus(left: Numbers, right: Numbers) -> dict[str, Drawn]:
    """Return the differences of the numbers that both have, sample by sample."""
    return {name: drawn - right[name] for name, drawn in left.items() if name in right}
