"""The bench of rewards: rewards on the same videos and changed copies of them, and metrics with bootstrap intervals.

A reward gives a curve over a video. The curve is computed for the video as recorded, and for inputs that should change
it: the frames in reverse order, in random order, one frame repeated, and only the first, middle or last frame. Thorough
tests add segments of the video and paraphrases of the instructions. `counterpoint.evaluation.definitions` defines all
numbers. All intervals come from bootstrap samples, which draw tasks and then videos of these tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from counterpoint.data.draws import StartGoal, sample_rng
from counterpoint.data.store import Cameras, EpisodeStore, camera_names, states_of
from counterpoint.encoders.calibration import best_f1
from counterpoint.evaluation import metrics
from counterpoint.evaluation.definitions import REWARD
from counterpoint.evaluation.embedded import RECORDED, spread
from counterpoint.evaluation.statistics import Drawn, drawn_mean, resample_weights
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import STATE, reads_state
from counterpoint.rewards.sources import EPISODE, Curves, Reward

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

WRONG = "wrong text"
INPUTS = (RECORDED, "reversed", "shuffled", "frozen", "first frame", "middle frame", "last frame")
ALONE = INPUTS[-3:]
RANDOM, SHORT, PARAPHRASES = "random segments", "short segments", "paraphrases"
SEGMENTS = {RANDOM: None, SHORT: 0.2}
"""Length of each kind of segment, as a share of the video. For `None`, start and goal are sampled as in training
(DecisionNCE, Eq. 8)."""
EACH = 16
"""Number of segments of each kind per video."""
CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a video at which the true grades on RoboRewardBench's scale are 1, 2, 3, 4 and 5."""


@dataclass(frozen=True)
class Answers:
    """A reward's results for N videos with one kind of input.

    Attributes:
        ends: Last value of the curve under each instruction, [N, L].
        halves: Last value of the curve of the video's first half, under the video's instruction, [N].
        voc: Spearman's rho between the curve and time, under the video's instruction, [N].
        pearson: Pearson's r between the curve and time, under the video's instruction, [N].
        kendall: Kendall's tau-b between the curve and time, under the video's instruction, [N].
    """

    ends: Float[Array, "N L"]
    halves: Float[Array, " N"]
    voc: Float[Array, " N"]
    pearson: Float[Array, " N"]
    kendall: Float[Array, " N"]


@dataclass(frozen=True)
class Answered:
    """All results of a reward for N videos.

    Attributes:
        inputs: The results for each input, keyed by the input's name. Under the key `wrong text`, each value for the
            video's instruction is replaced by the mean over the other instructions. This key is missing if there is
            only one instruction.
        cuts: Progress after the first 0, 1/4, 1/2, 3/4 and all of a video, under its instruction, [N, 5].
        rounds: Last values of the curves of K segments or paraphrases under each instruction, [N, K, L]. The keys are
            `random segments`, `short segments` and `paraphrases`, if these were computed.
    """

    inputs: Mapping[str, Answers]
    cuts: Float[Array, "N 5"]
    rounds: Mapping[str, Float[Array, "N K L"]]


def ask(
    rewards: Sequence[Reward],
    store: EpisodeStore,
    instructions: Sequence[str],
    *,
    cameras: Cameras = None,
    max_frames: int = 128,
    seed: int = 0,
    thorough: int = 0,
    segments: bool = False,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    features: Mapping[str, EpisodeStore] | None = None,
) -> list[Answered]:
    """Compute every reward on every video, as recorded and changed; each video is decoded once.

    Args:
        rewards: The rewards.
        store: Episodes, each under one of the instructions.
        instructions: The L candidate instructions.
        cameras: The camera, by default the store's first; with several, rewards are the mean over the cameras.
        max_frames: Maximum number of frames of a video, evenly spread.
        seed: Random seed of the shuffles and segments.
        thorough: Number of rewards, counted from the first, that are also computed on segments and paraphrases.
        segments: True to compute the first `thorough` rewards on segments of every video.
        paraphrases: One or more other wordings of each instruction, on which the first `thorough` rewards are computed.
        features: The same episodes with precomputed features of a frozen backbone, keyed by the backbone's digest.

    Raises:
        BadInputError: If an episode lacks the state that a reward reads; raised before any video is decoded.
    """
    views = camera_names(cameras, store)
    reading = any(map(reads_state, rewards))
    states = [states_of(store, number) for number in range(len(store.episodes) if reading else 0)]
    wordings = list(zip(*((paraphrases or {}).get(text, ()) for text in instructions), strict=False))
    said: list[list[_Said]] = [[] for _ in rewards]
    with ProgressBar("Asking rewards", len(store.episodes), "videos", shorten="--max-videos") as progress:
        for number, info in enumerate(store.episodes):
            steps, own = spread(info.length, max_frames), instructions.index(info.instruction)
            frames: dict[str, NDArray[Any]] = {view: store.frames(number, steps, view) for view in views}
            if reading:
                frames[STATE] = states[number][steps]
            stored = {digest: kept.features(number) for digest, kept in (features or {}).items()}
            shared: dict[Any, Any] = {digest: kept[steps, 0] for digest, kept in stored.items() if kept is not None}
            shared[EPISODE] = number
            length = len(steps)
            parts = _segments(length, seed, number) if segments else {}
            for at, (reward, answers) in enumerate(zip(rewards, said, strict=True)):
                curves, rounds = reward.watch(frames, shared), {}
                if at < thorough:
                    for name, some in parts.items():
                        rounds[name] = np.stack([curves(part, instructions)[:, -1] for part in some])
                    if wordings:
                        rounds[PARAPHRASES] = np.stack([curves(np.arange(length), texts)[:, -1] for texts in wordings])
                cuts = _cuts(curves, steps, info.instruction)
                answers.append(_Said(_answers(curves, length, own, instructions, (seed, number)), cuts, rounds))
            progress.advance()
    return [_gathered(answers) for answers in said]


@dataclass(frozen=True)
class _Said:
    """A reward's results for one video: the fields of `Answers` for each input, and the other fields of `Answered`."""

    inputs: Mapping[str, tuple[Any, ...]]
    cuts: Array
    rounds: Mapping[str, Array]


def _gathered(videos: Sequence[_Said]) -> Answered:
    inputs = {
        name: Answers(*map(np.array, zip(*(video.inputs[name] for video in videos), strict=True)))
        for name in videos[0].inputs
    }
    rounds = {name: np.stack([video.rounds[name] for video in videos]) for name in videos[0].rounds}
    return Answered(inputs, np.array([video.cuts for video in videos]), rounds)


def _answers(
    curves: Curves, length: int, own: int, instructions: Sequence[str], key: tuple[int, int]
) -> dict[str, tuple[Any, ...]]:
    """Return the values of the fields of `Answers` for one video, keyed by the name of the input."""
    found: dict[str, tuple[Any, ...]] = {}
    half = max(1, length // 2)
    for name in INPUTS:
        values, part = curves(_order(name, length, key), instructions), _order(name, half, key)
        over = (np.nan, np.nan, np.nan) if name in ALONE else _correlations(values[own])
        found[name] = (values[:, -1], float(curves(part, [instructions[own]])[0, -1]), *over)
        if name == RECORDED and len(instructions) > 1:
            others = [column for column in range(len(instructions)) if column != own]
            swapped = values[:, -1].copy()
            swapped[own] = swapped[others].mean()
            halves = curves(part, [instructions[column] for column in others])[:, -1]
            over = tuple(np.mean(_correlations(values[others]), axis=1))
            found[WRONG] = (swapped, float(halves.mean()), *over)
    return found


def _correlations(curves: Float[Array, "*L T"]) -> tuple[Any, Any, Any]:
    order = metrics.value_order_correlation(curves)
    return order, metrics.value_time_correlation(curves), metrics.kendall_tau_b(curves)


def _order(name: str, length: int, key: tuple[int, int]) -> Indices:
    """Return the steps of a video of `length` frames that make up the input `name`, in order."""
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


def _segments(length: int, seed: int, video: int) -> dict[str, list[Indices]]:
    """Return the frames of `EACH` random and `EACH` short segments of a video; equal arguments give equal segments."""
    found: dict[str, list[Indices]] = {name: [] for name in SEGMENTS}
    for name, share in SEGMENTS.items():
        for segment in range(EACH):
            rng = sample_rng(seed, video * EACH + segment, "segment")
            if share is None:
                start, goal = StartGoal()(np.array([length]), rng)[0].tolist()
            else:
                span = max(1, round(share * (length - 1)))
                start = int(rng.integers(0, length - span))
                goal = start + span
            found[name].append(np.arange(start, goal + 1))
    return found


def _cuts(curves: Curves, steps: Indices, instruction: str) -> Array:
    ends = [max(1, round(cut * (len(steps) - 1)) + 1) for cut in CUTS]
    return np.array([curves(np.arange(end), [instruction], progress=True)[0, -1] for end in ends])


@dataclass(frozen=True)
class Heatmap:
    """Mean scores of whole videos or segments, as in DecisionNCE's Figure 6.

    Attributes:
        name: The kind of segments.
        rows: Instructions that the segments carry out.
        columns: Instructions under which the segments are scored.
        values: Mean score [rows, columns].
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


Numbers = Mapping[str, Drawn]


class Bench:
    """The compared videos, with their successes and failures, and the bootstrap samples that all rewards share.

    Args:
        own: Column of each video's instruction, [N].
        success: True unless the video is recorded as a failure, [N].
        instructions: The L candidate instructions.
        seed: Random seed of the samples and of the instructions that replace missing failures.

    Attributes:
        weights: How often each video counts, [1 + R, N]: 1 in the first row, then its count in each bootstrap sample.
        items: Trajectories for success detection and ranking, [I, 3]: video, instruction's column, and level (0
            failure, 1 first half of a success, 2 success). If no failures are recorded, each video is also scored under
            an instruction that it did not carry out, and counts as a failure there. Instructions that differ in one
            word are preferred. If there is only one instruction, there are no failures.
    """

    def __init__(
        self, own: Indices, success: Bool[NDArray[np.bool_], " N"], instructions: Sequence[str], seed: int = 0
    ) -> None:
        self.own, self.success, self.instructions = own, success, tuple(instructions)
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
        self.weights = resample_weights(own.tolist(), seed=seed)

    def scores(self, answers: Answers) -> Float[Array, " I"]:
        """Return the score of every item: the last value of its curve."""
        video, column, level = self.items.T
        return np.asarray(np.where(level == 1, answers.halves[video], answers.ends[video, column]))

    def numbers(
        self,
        answered: Answered,
        name: str,
        validation: tuple[Array, NDArray[np.bool_]] | None,
        stages: Float[Array, " N"] | None = None,
        *,
        progress: bool,
    ) -> dict[str, Drawn]:
        """Return every number defined for one input.

        Args:
            answered: The reward's results.
            name: The input.
            validation: Scores and successes that fix thresholds.
            stages: The reward's row of `counterpoint.evaluation.stages.stage_accuracy`.
            progress: True if the reward is progress.
        """
        answers = answered.inputs[name]
        means = {"voc": answers.voc, "voc_pearson": answers.pearson, "voc_kendall": answers.kendall}
        if name != WRONG and answers.ends.shape[1] > 1:
            means["accuracy"] = metrics.matched(answers.ends, self.own).astype(np.float64)
            means["triples"] = metrics.triples(answers.ends, self.own)
            means["triples_one_word_apart"] = metrics.triples(answers.ends, self.own, self.hard)
            means["confusion_gap"] = metrics.confusion_gap(answers.ends, self.own)
        if progress and name == RECORDED:
            means["grade_error"] = np.abs(metrics.grade(answered.cuts) - (1 + 4 * np.array(CUTS))).mean(axis=1)
        if stages is not None and name == RECORDED:
            means["stage_accuracy"] = stages
        found = {key: self._mean(values) for key, values in means.items()}
        scores, positive = self.scores(answers), self.items[:, 2] == 2
        passed = self._passed(scores, positive, validation)
        counts = self.weights[:, self.items[:, 0]]
        statistics = {
            "ranking_tau_b": self._ranking(scores),
            "auroc": metrics.auroc(scores, positive, counts),
            "auprc": metrics.auprc(scores, positive, counts),
            "f1": metrics.f1(passed, positive, counts),
        }
        found |= {key: Drawn(values, len(self.own)) for key, values in statistics.items()}
        return {key: drawn for key, drawn in found.items() if np.isfinite(drawn.values[0])}

    def share(self, scores: Float[Array, "N K L"]) -> dict[str, Drawn]:
        """Return the share of correctly scored segments or paraphrases of a video, as the mean over videos."""
        hits = [metrics.matched(part, self.own) for part in np.moveaxis(scores, 1, 0)]
        return {"accuracy": self._mean(np.mean(hits, axis=0))}

    def chance(self) -> dict[str, float]:
        """Return the chance level of every number: the value that a worthless reward reaches."""
        successes = float((self.items[:, 2] == 2).mean())
        levels = {name: metric.level(len(self.instructions), successes) for name, metric in REWARD.items()}
        return {name: level for name, level in levels.items() if level is not None}

    def heatmap(self, name: str, scores: Float[Array, "N L"]) -> Heatmap:
        """Return the mean score of each task's successes under each instruction."""
        tasks = [(row, self.success & (self.own == row)) for row in range(len(self.instructions))]
        seen = [(row, mine) for row, mine in tasks if mine.any()]
        return Heatmap(
            name=name,
            rows=tuple(self.instructions[row] for row, _ in seen),
            columns=self.instructions,
            values=tuple(tuple(scores[mine].mean(axis=0).tolist()) for _, mine in seen),
        )

    def _mean(self, values: Float[Array, " N"]) -> Drawn:
        return drawn_mean(np.where(self.success, values, np.nan), self.weights)

    def _ranking(self, scores: Float[Array, " I"]) -> Float[Array, " R+1"]:
        """Return `quality_ranking` as the mean over tasks that have two or more levels."""
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
        """Return True for items that reach a threshold, fixed on validation items or the other half of the videos."""
        if validation is not None:
            return np.asarray(scores >= _threshold(*validation))
        fold = self.fold[self.items[:, 0]]
        fixed = [_threshold(scores[fold != half], positive[fold != half]) for half in (0, 1)]
        return np.asarray(scores >= np.array(fixed)[fold])


def _threshold(scores: Array, success: NDArray[np.bool_]) -> float:
    """Return the threshold with the best F1; infinity if there are no successes or no failures."""
    return best_f1(scores, success)[0] if success.any() and not success.all() else np.inf


def bench_of(store: EpisodeStore, instructions: Sequence[str], seed: int) -> Bench:
    """Return the bench of a store's episodes, each under one of the instructions."""
    own = np.array([instructions.index(info.instruction) for info in store.episodes], np.int64)
    return Bench(own, np.array([info.success is not False for info in store.episodes]), instructions, seed)


def over_seeds(seeds: Sequence[Numbers]) -> dict[str, Drawn]:
    """Return the mean over training seeds of each number that every seed has."""
    names = [name for name in seeds[0] if all(name in one for one in seeds)]
    return {name: Drawn(np.mean([one[name].values for one in seeds], axis=0), seeds[0][name].n) for name in names}


def minus(left: Numbers, right: Numbers) -> dict[str, Drawn]:
    """Return left minus right for each number that both have, on each bootstrap sample."""
    return {name: drawn - right[name] for name, drawn in left.items() if name in right}
