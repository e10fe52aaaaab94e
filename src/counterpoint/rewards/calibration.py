"""The calibration of a trained reward: a fitted map from the reward to progress in [0, 1], and its thresholds.

The map is fitted to successful episodes of the training data; the target of step t is its share of the episode,
t / (T - 1). The map's only input is the reward, not the time, so an episode that fails or stops half-way ends at a
lower value than episodes that succeed. For labels, two further maps read the reward averaged over about the last tenth
of an episode, if this makes the error smaller, and the running maximum of what the first of them reads. Stages of
episodes can have maps of their own. The errors of a clock (progress that only counts steps, `error_of_a_ramp`) and of a
constant are stored next to the maps' errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.calibration import Calibration, ProgressMaps, RewardForm, averaged, best_f1, isotonic
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import embed_steps, embed_text
from counterpoint.rewards.model import RewardModel, gains

Array = NDArray[np.float64]

CALIBRATED: dict[RewardForm, tuple[RewardForm, ...]] = {
    "potential": ("potential", "transition"),
    "similarity": ("potential", "transition"),
    "transition": ("transition", "potential"),
}
"""For three forms that an encoder may be trained for, two candidates each: the candidate with the smaller error is
calibrated. Any other form is calibrated itself."""
EPISODES, HELD_OUT, FRAMES = 100, 50, 32
"""Maximum number of training episodes, of validation episodes, and of embedded frames per episode."""
FITTED = 10
"""Minimum number of successful validation episodes; with fewer, the map is fitted to training episodes."""
STAGE = 5
"""Minimum number of successful segments to fit the maps of a stage."""
FAILURES = 5
"""Minimum number of failed validation episodes to fix a threshold by F1, which one failure would hardly change."""
SUCCESS_QUANTILE = 0.1
"""With fewer failures, the threshold of success is this quantile of the successful episodes' final progress."""
MEMORY = 0.1
"""Time constant of the average of the reward that labels read, as a share of the mean length of the training episodes.
It is short beside an episode, so that a failure still shows."""
DISTANCE_QUANTILE = 0.99
"""A frame is unlike the training data if its distance to them exceeds this quantile of the measured distances."""


@dataclass(frozen=True)
class _Watched:
    """Some frames of one episode.

    Attributes:
        instruction: The episode's instruction.
        success: False for a failure.
        steps: Step numbers of the F frames; always includes the episode's first and last step.
        embeddings: Embeddings of the F frames, [F, D].
    """

    instruction: str
    success: bool
    steps: Float[Array, " F"]
    embeddings: Float[Array, "F D"]

    @property
    def share(self) -> Float[Array, " F"]:
        """Each step's share of the episode, from 0 to 1."""
        return np.asarray(self.steps / self.steps[-1])


@dataclass(frozen=True)
class _Judged:
    """Episodes, the reward that scores them, and the training episodes of this reward."""

    model: RewardModel
    episodes: list[_Watched]
    learned: list[_Watched]

    def only(self, success: bool) -> _Judged:
        """Return only the successful episodes, or only the failed ones."""
        return replace(self, episodes=[one for one in self.episodes if one.success is success])

    def under(self, instruction: str) -> _Judged:
        """Return only the episodes with this instruction."""
        return replace(self, episodes=[one for one in self.episodes if one.instruction == instruction])

    def gains(self, form: RewardForm) -> list[Array]:
        """Return each episode's gains [F]."""
        return _gains(self.model, form, self.episodes, self.learned)

    def distances(self) -> Array:
        """Return the distance of every frame from the frames that the reward learned from."""
        centre, scale = _spread(self.learned)
        deviations = (np.concatenate([one.embeddings for one in self.episodes]) - centre) / scale
        return np.asarray(np.sqrt((deviations**2).mean(axis=1)))


@dataclass(frozen=True)
class _Map:
    """A fitted map from the gains of one form to progress.

    Attributes:
        form: The form.
        memory: Time constant, in steps, of the average of the gains that the map reads; 0 for the gains themselves.
        furthest: True if the map reads the running maximum.
        rewards: The gains at its knots, averaged or as a running maximum if the map reads these.
        progress: Progress at its knots.
        error: Mean absolute error on the episodes that the map was fitted to.
        stages: Maps that replace this one for some instructions.
    """

    form: RewardForm
    memory: float
    furthest: bool
    rewards: tuple[float, ...]
    progress: tuple[float, ...]
    error: float
    stages: Mapping[str, _Map] = field(default_factory=dict)

    @classmethod
    def fitted(
        cls, form: RewardForm, groups: Sequence[_Judged], memory: float = 0.0, *, furthest: bool = False
    ) -> _Map:
        """Fit the map to all episodes, with equal weight; the reward of each group computes its episodes' gains."""
        episodes = [one for group in groups for one in group.episodes]
        pairs = zip(episodes, _all_gains(groups, form), strict=True)
        scores = np.concatenate([_read(gained, one.steps, memory, furthest=furthest) for one, gained in pairs])
        share = np.concatenate([one.share for one in episodes])
        weight = np.concatenate([np.full(len(one.steps), 1 / len(one.steps)) for one in episodes])
        rewards, progress = map(_short, isotonic(scores, share, weight))
        wrong = np.abs(np.interp(scores, rewards, progress) - share)
        return cls(form, memory, furthest, rewards, progress, float(weight @ wrong))

    def refitted(self, groups: Sequence[_Judged]) -> _Map:
        """Return the same map, fitted to other episodes."""
        return self.fitted(self.form, groups, self.memory, furthest=self.furthest).by_stage(groups, self.stages)

    def by_stage(self, groups: Sequence[_Judged], instructions: Collection[str]) -> _Map:
        """Add a map for each of the instructions with at least `STAGE` episodes, fitted to these."""
        stages = {}
        for one in sorted(instructions):
            own = [group.under(one) for group in groups]
            if sum(len(group.episodes) for group in own) >= STAGE:
                stages[one] = self.fitted(self.form, own, self.memory, furthest=self.furthest)
        return replace(self, stages=stages)

    def __call__(self, gained: Array, steps: Array, instruction: str) -> Array:
        """Return the progress of gains [F] at an episode's steps [F]."""
        one = self.stages.get(instruction, self)
        return np.asarray(
            np.interp(_read(gained, steps, self.memory, furthest=self.furthest), one.rewards, one.progress)
        )


@dataclass(frozen=True)
class _Measured:
    """An episode, and the progress that a map computes from its gains."""

    episode: _Watched
    progress: Array

    def error(self, progress: Array | float | None = None) -> float:
        """Return the mean absolute error of the map's progress, or of the given progress."""
        wrong = (self.progress if progress is None else progress) - self.episode.share
        return float(np.abs(wrong).mean())


def calibrate(
    model: RewardModel,
    train: EpisodeStore,
    validation: EpisodeStore | None = None,
    *,
    judges: Sequence[tuple[RewardModel, Sequence[int]]] = (),
    by_stage: bool = False,
    seed: int = 0,
) -> Calibration | None:
    """Return the calibration of a trained model; `None` if no training episode can be used.

    With cross-fitting, the map is fitted to rewards of episodes by judges that did not learn from them. The error on
    each judge's episodes is measured with a map that was fitted to the other judges' episodes. Otherwise, the map is
    fitted to the successful validation episodes, and its error on each is measured with a map fitted to the others. If
    there are fewer than `FITTED`, the map is fitted to training episodes, on which rewards rise higher than on others.
    If the form needs a goal, it is the last frame of another successful training episode with the same instruction.
    With `by_stage`, each instruction of `STAGE` or more fitted episodes gets maps of its own, if these make the error
    of labels smaller on episodes to which they were not fitted.

    Args:
        model: The trained reward.
        train: Training episodes, whose first camera is read. Failures, episodes of one step and, if the form needs
            instructions, episodes without an instruction are left out.
        validation: Episodes for the errors and the thresholds; if there are none, training episodes are used.
        judges: The rewards of cross-fitting, each trained without one part of the training episodes, which it judges;
            with the numbers of these episodes in the whole data set.
        by_stage: True for episodes that are segments, each under the instruction of its stage.
        seed: Random seed of the sample, if there are more episodes than `EPISODES`.
    """
    every, whole = range(len(train.episodes)), train.whole if isinstance(train, SubsetStore) else train
    wanted = [(model, train, _sample(model, train, every, EPISODES, seed, failures=False))]
    if not wanted[0][2]:
        return None
    if validation is not None:
        others = range(len(validation.episodes))
        wanted.append((model, validation, _sample(model, validation, others, HELD_OUT, seed, failures=True)))
    for judge, part in judges:
        learned = sorted(set(range(len(whole.episodes))) - set(part))
        wanted.append((judge, whole, _sample(judge, whole, part, -(-EPISODES // len(judges)), seed, failures=True)))
        wanted.append((judge, whole, _sample(judge, whole, learned, HELD_OUT, seed, failures=False)))
    with ProgressBar("Calibrating", sum(len(numbers) for *_, numbers in wanted), "videos") as bar:
        fitted, *more = [[_watch(one, store, number, bar) for number in numbers] for one, store, numbers in wanted]
    held_out = _Judged(model, more.pop(0) if validation is not None else [], fitted)
    pairs = zip(judges, zip(more[::2], more[1::2], strict=True), strict=True)
    unseen = [_Judged(one, *pair) for (one, _), pair in pairs]
    crossed = [group for group in (one.only(True) for one in unseen) if group.episodes]
    solved = held_out.only(True).episodes
    if not crossed and len(solved) >= FITTED:
        crossed = [_Judged(model, [one], fitted) for one in solved]
    basis = crossed or [_Judged(model, fitted, fitted)]
    fit = min(
        (_Map.fitted(form, basis) for form in CALIBRATED.get(model.trained_form, (model.trained_form,))),
        key=lambda one: one.error,
    )
    clock = float(np.mean([one.steps[-1] for one in fitted]))
    smooth = min((fit, _Map.fitted(fit.form, basis, MEMORY * clock)), key=lambda one: one.error)
    monotone = _Map.fitted(fit.form, basis, smooth.memory, furthest=True)
    measured, failed = basis, [held_out.only(False)]
    where: Literal["cross-fitting", "validation", "training"] = "training"
    if judges and crossed:
        failed, where = [one.only(False) for one in unseen], "cross-fitting"
    elif solved:
        measured, where = crossed or [held_out.only(True)], "validation"
    fits, refit, one_map_error = [fit, smooth, monotone], len(crossed) > 1, None
    found = [_measure(one, measured, basis, refit=refit) for one in fits]
    if by_stage and refit:
        parted = [one.by_stage(basis, {each.instruction for each in fitted}) for one in fits]
        again = [_measure(one, measured, basis, refit=True) for one in parted]
        if _error(again[1]) < _error(found[1]):
            fits, found, one_map_error = parted, again, _error(found[1])
    successes = np.array([one.progress[-1] for one in found[0]])
    ends = zip([one for group in failed for one in group.episodes], _all_gains(failed, fit.form), strict=True)
    failures = np.array([fits[0](gained, one.steps, one.instruction)[-1] for one, gained in ends])
    graded = where != "training" and len(failures) >= FAILURES
    if graded:
        labels = np.repeat([True, False], [len(successes), len(failures)])
        threshold, _ = best_f1(np.concatenate([successes, failures]), labels)
    else:
        threshold = float(np.quantile(successes, SUCCESS_QUANTILE))
    centre, scale = _spread(fitted)
    far = np.concatenate([group.distances() for group in measured])
    return Calibration(
        form=fit.form,
        **_as_fields(fits),
        stages={name: ProgressMaps(**_as_fields([one.stages[name] for one in fits])) for name in fits[0].stages},
        success=threshold,
        success_from="F1 on unseen episodes" if graded else "quantile of successes (uncalibrated)",
        success_quantile=SUCCESS_QUANTILE,
        centre=_short(centre),
        scale=_short(scale),
        distance=max(float(np.quantile(far, DISTANCE_QUANTILE)), 1e-9),
        distance_quantile=DISTANCE_QUANTILE,
        measured_on=where,
        episodes=sum(len(group.episodes) for group in basis),
        measured_episodes=len(successes),
        error=_error(found[0]),
        memory=smooth.memory,
        averaged_error=_error(found[1]),
        monotone_error=_error(found[2]),
        error_of_one_map=one_map_error,
        error_of_a_ramp=float(np.mean([one.error(np.minimum(1.0, one.episode.steps / clock)) for one in found[0]])),
        error_of_a_constant=float(np.mean([one.error(0.5) for one in found[0]])),
    )


def _as_fields(fits: Sequence[_Map]) -> dict[str, tuple[float, ...]]:
    """Return the fields of `ProgressMaps` of a map of rewards, of averaged rewards and of their running maximum."""
    pairs = list(zip(("", "averaged_", "monotone_"), fits, strict=True))
    return {f"{prefix}{name}": getattr(one, name) for prefix, one in pairs for name in ("rewards", "progress")}


def _measure(fit: _Map, measured: Sequence[_Judged], basis: Sequence[_Judged], *, refit: bool) -> list[_Measured]:
    """Apply a map to groups of episodes; with `refit`, each group gets a map that is fitted to the other groups."""
    found = []
    for at, group in enumerate(measured):
        others = [one for number, one in enumerate(basis) if number != at]
        to = fit.refitted(others) if refit else fit
        pairs = zip(group.episodes, group.gains(fit.form), strict=True)
        found += [_Measured(one, to(gained, one.steps, one.instruction)) for one, gained in pairs]
    return found


def _error(found: Sequence[_Measured]) -> float:
    return float(np.mean([one.error() for one in found]))


def _read(gained: Array, steps: Array, memory: float, *, furthest: bool) -> Array:
    """Return what a map reads: gains [F], averaged if `memory` is above 0; with `furthest`, the largest so far."""
    means = averaged(gained, steps, memory)
    return np.maximum.accumulate(means) if furthest else means


def _spread(episodes: Sequence[_Watched]) -> tuple[Array, Array]:
    """Return the mean embedding of all frames, [D], and the standard deviation of each dimension, [D]."""
    seen = np.concatenate([one.embeddings for one in episodes])
    scale = seen.std(axis=0)
    return seen.mean(axis=0), np.maximum(scale, 1e-6 + 1e-3 * scale.max())  # dead dimensions carry no information


def _all_gains(groups: Sequence[_Judged], form: RewardForm) -> list[Array]:
    return [gained for group in groups for gained in group.gains(form)]


def _sample(
    model: RewardModel, store: EpisodeStore, numbers: Sequence[int], most: int, seed: int, *, failures: bool
) -> list[int]:
    """Return at most `most` usable episodes, sampled at random, as sorted indices."""
    instructed = model.trained_form != "goal"
    usable = [
        number
        for number, info in ((number, store.episodes[number]) for number in numbers)
        if info.length > 1 and (info.instruction.strip() or not instructed) and (failures or info.success is not False)
    ]
    drawn = sample_rng(seed, 0, "calibration").choice(len(usable), min(most, len(usable)), replace=False)
    return sorted(usable[at] for at in drawn.tolist())


def _watch(model: RewardModel, store: EpisodeStore, number: int, bar: ProgressBar) -> _Watched:
    info = store.episodes[number]
    steps = np.unique(np.linspace(0, info.length - 1, min(info.length, FRAMES)).round().astype(np.int64))
    embeddings = embed_steps(model.encoder, store, number, steps, batch_size=model.batch_size)
    bar.advance()
    return _Watched(info.instruction, info.success is not False, steps.astype(np.float64), embeddings)


def _gains(
    model: RewardModel, form: RewardForm, episodes: Sequence[_Watched], fitted: Sequence[_Watched]
) -> list[Array]:
    """Return each episode's `gains` [F] under its instruction, or towards another episode's last frame."""
    if form == "goal":
        targets = [_goal(one, fitted)[None] for one in episodes]
    else:
        texts = list(dict.fromkeys(one.instruction for one in episodes))
        embedded = dict(zip(texts, embed_text(model.encoder, texts) if texts else (), strict=True))
        targets = [embedded[one.instruction][None] for one in episodes]
    pairs = zip(episodes, targets, strict=True)
    return [gains(model.score(form, one.embeddings, target), form)[0] for one, target in pairs]


def _goal(one: _Watched, fitted: Sequence[_Watched]) -> Float[Array, " D"]:
    """Return an episode's goal: the last frame of the next fitted episode that has the same instruction.

    An episode without such a successor gets its own last frame.
    """
    alike = [other for other in fitted if other.instruction == one.instruction]
    after = next((at + 1 for at, other in enumerate(alike) if other is one), 0)
    return np.asarray((alike[after % len(alike)] if alike else one).embeddings[-1])


def _short(values: Array) -> tuple[float, ...]:
    """Return numbers rounded to seven digits, so that the configuration stays small."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())
