"""The calibration of a trained reward, fitted to the episodes that the reward was trained on.

Progress is fitted to successful training episodes: a step's target is its share of the episode, t / (T - 1). The fitted
map takes only the reward, never a time, so an episode that stops half-way, or fails, ends at a lower value than
episodes that succeed. The errors of a clock (`error_of_a_ramp`) and of a constant are stored next to the map's error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.calibration import Calibration, RewardForm, best_f1, isotonic
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import RewardModel, embed_steps, embed_text, gains

Array = NDArray[np.float64]

CALIBRATED: dict[RewardForm, tuple[RewardForm, ...]] = {
    "potential": ("potential", "transition"),
    "similarity": ("potential", "transition"),
    "transition": ("transition", "potential"),
}
"""Form that an encoder was trained for -> the forms, the better of which is calibrated; others keep their own form."""
EPISODES, HELD_OUT, FRAMES = 100, 50, 32
"""Maximum number of training episodes, of validation episodes, and of frames of each that are embedded."""
FAILURES = 5
"""Minimum number of failed validation episodes to fix a threshold: F1 ignores one failure among many successes."""
SUCCESS_QUANTILE = 0.1
"""With fewer failures, success begins at this quantile of the successes' final progress."""
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
class _Fit:
    """A fitted map of one form: knots, the fitted episodes' rewards, and the mean absolute error on them."""

    form: RewardForm
    scores: list[Array]
    rewards: tuple[float, ...]
    progress: tuple[float, ...]
    error: float


def calibrate(
    model: RewardModel, train: EpisodeStore, validation: EpisodeStore | None = None, *, seed: int = 0
) -> Calibration | None:
    """Return the calibration of a trained model; `None` where no training episode can be used.

    A reward towards a goal is calibrated with the last frame of another successful training episode of the same
    instruction as the goal.

    Args:
        model: The trained reward.
        train: Training episodes, whose first camera is read. Failures, episodes of one step and, if the form needs
            instructions, episodes without an instruction are left out.
        validation: Episodes for the errors and the thresholds; if there are none, training episodes are used.
        seed: Random seed of the sample, if there are more episodes than `EPISODES`.
    """
    chosen = _sample(model, train, EPISODES, seed, failures=False)
    others = [] if validation is None else _sample(model, validation, HELD_OUT, seed, failures=True)
    if not chosen:
        return None
    with ProgressBar("Calibrating", len(chosen) + len(others), "videos") as bar:
        fitted = [_watch(model, train, number, bar) for number in chosen]
        held_out = [] if validation is None else [_watch(model, validation, number, bar) for number in others]
    share = np.concatenate([one.share for one in fitted])
    weight = np.concatenate([np.full(len(one.steps), 1 / len(one.steps)) for one in fitted])
    fits: list[_Fit] = []
    for form in CALIBRATED.get(model.trained_form, (model.trained_form,)):
        scores = _gains(model, form, fitted, fitted)
        rewards, progress = map(_short, isotonic(np.concatenate(scores), share, weight))
        wrong = np.abs(np.interp(np.concatenate(scores), rewards, progress) - share)
        fits.append(_Fit(form, scores, rewards, progress, float(weight @ wrong)))
    fit = min(fits, key=lambda one: one.error)

    def final(gained: Sequence[Array]) -> Array:
        return np.asarray(np.interp([one[-1] for one in gained], fit.rewards, fit.progress))

    measured = [one for one in held_out if one.success] or fitted
    failed = [one for one in held_out if not one.success]
    apart = measured is not fitted
    measured_gains = _gains(model, fit.form, measured, fitted) if apart else fit.scores
    successes, failures = final(measured_gains), final(_gains(model, fit.form, failed, fitted))
    graded = apart and len(failures) >= FAILURES
    if graded:
        labels = np.repeat([True, False], [len(successes), len(failures)])
        threshold, _ = best_f1(np.concatenate([successes, failures]), labels)
    else:
        threshold = float(np.quantile(successes, SUCCESS_QUANTILE))
    seen = np.concatenate([one.embeddings for one in fitted])
    centre, scale = seen.mean(axis=0), seen.std(axis=0)
    scale = np.maximum(scale, 1e-6 + 1e-3 * scale.max())  # dead dimensions carry no information
    far = np.concatenate([np.sqrt((((one.embeddings - centre) / scale) ** 2).mean(axis=1)) for one in measured])
    clock = float(np.mean([one.steps[-1] for one in fitted]))

    def error(predicted: Callable[[_Watched, Array], Array | float]) -> float:
        pairs = zip(measured, measured_gains, strict=True)
        return float(np.mean([np.abs(predicted(one, gained) - one.share).mean() for one, gained in pairs]))

    return Calibration(
        form=fit.form,
        rewards=fit.rewards,
        progress=fit.progress,
        success=threshold,
        success_from="F1 on validation" if graded else "quantile of successes (uncalibrated)",
        success_quantile=SUCCESS_QUANTILE,
        centre=_short(centre),
        scale=_short(scale),
        distance=max(float(np.quantile(far, DISTANCE_QUANTILE)), 1e-9),
        distance_quantile=DISTANCE_QUANTILE,
        measured_on="validation" if apart else "training",
        episodes=len(fitted),
        measured_episodes=len(measured),
        error=error(lambda one, gained: np.interp(gained, fit.rewards, fit.progress)),
        error_of_a_ramp=error(lambda one, gained: np.minimum(1.0, one.steps / clock)),
        error_of_a_constant=error(lambda one, gained: 0.5),
    )


def _sample(model: RewardModel, store: EpisodeStore, most: int, seed: int, *, failures: bool) -> list[int]:
    """Return the numbers of at most `most` usable episodes, in order."""
    instructed = model.trained_form != "goal"
    usable = [
        number
        for number, info in enumerate(store.episodes)
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
    """Return the last frame of the next fitted episode with this instruction; if there is no other, this episode's."""
    alike = [other for other in fitted if other.instruction == one.instruction]
    after = next((at + 1 for at, other in enumerate(alike) if other is one), 0)
    return np.asarray((alike[after % len(alike)] if alike else one).embeddings[-1])


def _short(values: Array) -> tuple[float, ...]:
    """Return numbers rounded to seven digits, so that the configuration stays small."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())
