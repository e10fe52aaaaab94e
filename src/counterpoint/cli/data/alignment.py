"""Measure whether the action of each step is the one that leads to the next state.

In a data set, action t must lead from state t to state t + 1. If a recorder reads the state only after acting, actions
are stored one step too early or too late, and a policy that is trained on such data copies actions that are over. The
check finds which action explains a change of state best: the action of the same step, of the step before, or of the
step after.

For each lag L of -1, 0 and 1, the changes s[t + 1] - s[t] are predicted from a[t + L] by linear least squares. The fit
is cross-validated: each of five folds of the steps is predicted from the other four, so that a fit to chance scores 0.
The score of a lag is the share of the variance that is explained (R^2, at least 0). It is averaged over the dimensions
of the state that respond to the actions: those with an R^2 of at least `_ANSWERS` at any lag. Another lag counts as
better than lag 0 only if its score is higher by `_MARGIN` and its error is smaller in four of the five folds. For few
steps, both limits are higher (`_DOUBT`).

The check gives no result if no dimension responds: if states or actions are constant, if actions are targets that the
robot is far from, or if states are unrelated to actions. Actions that change slowly have similar scores at all lags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

LAGS = (-1, 0, 1)
EPISODES = 50
"""Number of episodes that are measured, evenly spread over the data set."""
_FOLDS = 5
_ANSWERS, _MARGIN = 0.1, 0.1
_DOUBT = 2.0  # times action dimensions / steps, added to both limits: with few steps, fits agree by chance
_RIDGE = 1e-3  # share of the variance of an action; keeps the fit finite where dimensions are copies of each other
_STEPS = 4  # steps needed for each number of a fit


@dataclass(frozen=True, slots=True)
class Alignment:
    """A measurement of which action explains the changes of the state.

    Attributes:
        scores: Share of the variance explained, in [0, 1], at each of `LAGS`; empty if there is no result.
        steps: Number of changes of state that were measured.
        reason: Why there is no result.
        lag: The lag that explains the changes best, or 0 if no other lag is clearly better than 0.
    """

    scores: dict[int, float]
    steps: int = 0
    reason: str = ""
    lag: int = 0

    def __str__(self) -> str:
        if not self.scores:
            return f"cannot tell: {self.reason}"
        told = ", ".join(f"{_NAMES[lag]} {score:.2f}" for lag, score in self.scores.items())
        verdict = f"changes of state follow {_NAMES[self.lag]}" if self.lag else "no other action is clearly better"
        return f"{verdict} (R2 over {self.steps} steps: {told})"

    def finding(self, path: str | Path) -> Iterator[BadInputError]:
        """Yield the finding that `counterpoint data doctor` reports if the action of another step fits best."""
        if not self.lag:
            return
        found = f"changes of state that follow {_NAMES[self.lag]}: R2 {self.scores[self.lag]:.2f}, against "
        found += f"{self.scores[0]:.2f} for the action of the same step, over {self.steps} steps"
        late = "move the actions up by a row: action t + 1 to row t"
        early = "move the actions down by a row (action t - 1 to row t), unless the robot answers a step late"
        hint = f"name another --dialect where the format has one, or {late if self.lag > 0 else early}; "
        hint += "counterpoint data info --check-alignment measures again"
        yield BadInputError(path, found, "action t leads from state t to state t + 1", hint)


_NAMES = {-1: "the action one step before", 0: "the action of the same step", 1: "the action one step after"}


def alignment_of(store: EpisodeStore) -> Alignment:
    """Measure `EPISODES` episodes of a data set; episodes that cannot be read are left out."""
    return measure(_recorded(store))


def _recorded(store: EpisodeStore) -> Iterator[tuple[Array, Array]]:
    count = len(store.episodes)
    for episode in np.unique(np.linspace(0, count - 1, min(count, EPISODES)).astype(int)).tolist():
        try:
            state, actions = store.state(episode), store.actions(episode)
        except BadInputError:  # `counterpoint data doctor` reports it
            continue
        if state is not None and actions is not None:
            yield state, actions


def measure(episodes: Iterable[tuple[Array, Array]]) -> Alignment:
    """Measure episodes of states [T, S] or [T + 1, S] and actions [T, A]; episodes of other shapes are left out."""
    changes, actions = list[Array](), list[Array]()
    for state, action in episodes:
        if state.ndim == action.ndim == 2 and len(action) >= 3 and len(state) >= 3:
            count = min(len(state), len(action)) - 2  # steps t = 1 ... count, which have an action on either side
            wide = state.astype(np.float64)
            changes.append(wide[2 : count + 2] - wide[1 : count + 1])
            actions.append(np.stack([action[1 + lag : count + 1 + lag] for lag in LAGS]).astype(np.float64))
    widths = {(change.shape[1], action.shape[2]) for change, action in zip(changes, actions, strict=True)}
    if len(widths) != 1:
        return Alignment({}, reason="robots of several kinds" if widths else "no states with actions")
    change, action = np.concatenate(changes), np.concatenate(actions, axis=1)
    change, action = change[:, _varies(change)], action[:, :, _varies(action[1])]
    steps = len(change)
    if not (change.shape[1] and action.shape[2]):
        return Alignment({}, steps, "states or actions never change")
    if steps < _STEPS * (action.shape[2] + 1):
        return Alignment({}, steps, f"{steps} steps, too few for actions of {action.shape[2]} dimensions")
    errors = np.stack([_errors(values, change) for values in action])  # [lag, fold, S]
    spread = _errors(np.zeros((steps, 0)), change)
    explained = np.clip(1 - errors.sum(1) / spread.sum(0), 0, 1)
    doubt = _DOUBT * action.shape[2] / steps
    answers = explained.max(0) >= _ANSWERS + doubt
    if not answers.any():
        return Alignment({}, steps, "the state does not answer to the actions")
    scores = {lag: float(score) for lag, score in zip(LAGS, explained[:, answers].mean(1), strict=True)}
    best = max(LAGS, key=lambda lag: scores[lag])
    share = (errors / spread.sum(0))[:, :, answers].sum(2)  # [lag, fold]
    wins = int((share[LAGS.index(best)] < share[LAGS.index(0)]).sum())
    clear = scores[best] - scores[0] >= _MARGIN + doubt and wins >= _FOLDS - 1
    return Alignment(scores, steps, lag=best if clear else 0)


def _varies(values: Array) -> Array:
    """Return, as bool [n], which columns vary by more than rounding errors."""
    varies: Array = np.ptp(values, axis=0) > 1e-6 * np.maximum(1e-6, np.abs(values).max(axis=0))
    return varies


def _errors(given: Array, wanted: Array) -> Array:
    """Return squared errors [fold, S] of `wanted` [N, S], predicted from `given` by a linear fit to the other folds."""
    errors = []
    for fold in np.array_split(np.arange(len(wanted)), _FOLDS):
        rest = np.ones(len(wanted), np.bool_)
        rest[fold] = False
        centre, mean = given[rest].mean(0), wanted[rest].mean(0)
        known, target = given[rest] - centre, wanted[rest] - mean
        gram = known.T @ known
        weights = np.linalg.solve(gram + _RIDGE * np.diag(np.diag(gram) + 1e-12), known.T @ target)
        errors.append((((given[fold] - centre) @ weights + mean - wanted[fold]) ** 2).sum(0))
    return np.stack(errors)
