"""MPPI and the cross-entropy method: planners that sample plans, score them and keep the best.

A planner is given a function that scores plans from the present state, and knows nothing else of the task::

    planner = MPPI(score, action_dim=2)  # score: float64 [B, H, A] -> float [B], the more the better
    planner.reset(seed=0)
    while not done:
        action = planner.act()

After each action the plan moves on by one step; its last action is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_rng
from counterpoint.data.episode import Array
from counterpoint.errors import require

Score = Callable[[Array], Any]
"""Scores of plans from the present state: float64 [B, H, A] -> float [B]."""


class ShootingConfig(FrozenConfig):
    """The effort and the reach of a planner.

    Attributes:
        horizon: H, the number of actions that a plan looks ahead.
        samples: B, plans per round; one of them is the present plan.
        rounds: Rounds of sampling before each action.
        knots: Number of knots of the disturbances, linear in between. More knots give jerkier plans; with H knots,
            steps are independent.
        noise: Largest standard deviation of the disturbances, in action units.
    """

    horizon: int = Field(default=20, ge=1)
    samples: int = Field(default=32, ge=2)
    rounds: int = Field(default=1, ge=1)
    knots: int = Field(default=6, ge=1)
    noise: float = Field(default=1.0, gt=0)


class Shooting:
    """Base of the planners; a planner writes `improve` and names its settings.

    Args:
        score: A function that scores plans from the present state.
        action_dim: A.
        config: Settings; `config_type()` by default.
        low: Least value of each action, one number or [A].
        high: Largest value of each action.

    Raises:
        BadInputError: When no action lies between `low` and `high`.
    """

    config_type: ClassVar[type[ShootingConfig]]

    def __init__(
        self, score: Score, action_dim: int, config: ShootingConfig | None = None, low: Any = -1.0, high: Any = 1.0
    ) -> None:
        self.config = config or self.config_type()
        self._score, self._shape = score, (self.config.horizon, action_dim)
        self._low, self._high = (np.broadcast_to(np.asarray(end, np.float64), action_dim) for end in (low, high))
        ordered = bool((self._low < self._high).all())
        require(ordered, "low", f"{low}, not below {high}", "bounds in order", "exchange low and high")
        self._basis = _linear(self.config.horizon, self.config.knots)
        self.reset(0)

    def reset(self, seed: int, plan: Array | None = None) -> None:
        """Begin with the random numbers of a seed and a plan.

        Args:
            seed: 0 or more.
            plan: float [h, A] to begin with, whose last action is repeated up to the horizon; actions beyond the
                horizon are dropped. Without a plan, actions begin in the middle of their range.

        Raises:
            BadInputError: A plan without actions, or of another size.
        """
        self._rng = sample_rng(seed, 0, "plans")
        if plan is None:
            self.plan = np.tile((self._low + self._high) / 2, (self._shape[0], 1))
            return
        given = np.asarray(plan, np.float64)
        fits = given.ndim == 2 and len(given) > 0 and given.shape[1] == self._shape[1]
        require(fits, "plan", f"shape {given.shape}", f"[h, {self._shape[1]}]", "give a plan of this action space")
        self.plan = self._bounded(_extended(given, self._shape[0]))

    def act(self) -> Array:
        """Return the action for the present state: float32 [A]."""
        for _ in range(self.config.rounds):
            self.improve()
        action: Array = self.plan[0].astype(np.float32)
        self.plan = _extended(self.plan[1:] if len(self.plan) > 1 else self.plan, len(self.plan))
        return action

    def improve(self) -> None:
        """Sample plans around the present one, score them, and change it."""
        raise NotImplementedError

    def _disturbed(self, sizes: Any, samples: int) -> Array:
        """Return plans [B, H, A]: first the present plan, then disturbed ones; `sizes` scale standard normal knots."""
        knots = self._rng.standard_normal((samples, self._basis.shape[1], self._shape[1]))
        disturbances = sizes * (self._basis @ knots)
        disturbances[0] = 0
        return self._bounded(self.plan + disturbances)

    def _scores(self, plans: Array) -> Array:
        scores = np.asarray(self._score(plans), np.float64)
        good = scores.shape == (len(plans),) and bool(np.isfinite(scores).all())
        found = f"shape {scores.shape}" if scores.shape != (len(plans),) else "scores that are not finite"
        require(good, "score", found, f"{len(plans)} finite numbers", "return one number a plan")
        return scores

    def _bounded(self, plans: Array) -> Array:
        return np.clip(plans, self._low, self._high)


class MPPIConfig(ShootingConfig):
    """The settings of `MPPI`; see `ShootingConfig`.

    Attributes:
        temperature: Temperature of the weights, in standard deviations of the scores. 0.1 follows the best plan or two;
            it is the 10 of DecisionNCE's Table 8, which multiplies normalised returns.
    """

    temperature: float = Field(default=0.1, gt=0)


class MPPI(Shooting):
    """Model predictive path integral control (Williams et al. 2017, arXiv 1707.02342).

    The new plan is the mean of the sampled ones, weighted by their scores R::

        w_i = softmax_i( (R_i - mean R) / (temperature * std R) )        plan = sum_i w_i plan_i

    Dividing by the spread of R makes one temperature do for all tasks. Each plan's disturbance has a size of its own
    between a twentieth and all of `noise`, so that one round searches near and far.

    Arguments are those of `Shooting`.
    """

    config: MPPIConfig
    config_type = MPPIConfig

    def improve(self) -> None:
        """See `Shooting`."""
        settings = self.config
        sizes = settings.noise * np.exp(self._rng.uniform(np.log(0.05), 0, settings.samples))
        plans = self._disturbed(sizes[:, None, None], settings.samples)
        scores = self._scores(plans)
        weights = np.exp((scores - scores.max()) / (settings.temperature * max(float(scores.std()), 1e-9)))
        self.plan = np.tensordot(weights / weights.sum(), plans, axes=1)


class CEMConfig(ShootingConfig):
    """The settings of `CEM`; see `ShootingConfig`.

    Attributes:
        rounds: Rounds of sampling before each action; the spread shrinks from one to the next.
        elites: Number of best plans that the next round is fitted to.
        least: Least standard deviation after the first round, in action units.
    """

    samples: int = Field(default=64, ge=2)
    rounds: int = Field(default=4, ge=1)
    elites: int = Field(default=8, ge=2)
    least: float = Field(default=0.02, gt=0)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.elites > self.samples:
            raise ValueError(f"elites = {self.elites} are more than the {self.samples} samples: ask for fewer")
        return self


class CEM(Shooting):
    """The cross-entropy method (Rubinstein 1999): plans are sampled from a Gaussian that is fitted to the best ones.

    The plan is the mean of the last elites. Before every action the spread is `noise` again.

    Arguments are those of `Shooting`.
    """

    config: CEMConfig
    config_type = CEMConfig

    def act(self) -> Array:
        """See `Shooting`."""
        self._spread = np.full(self._shape, self.config.noise)
        return super().act()

    def improve(self) -> None:
        """See `Shooting`."""
        plans = self._disturbed(self._spread, self.config.samples)
        best = plans[np.argsort(-self._scores(plans), kind="stable")[: self.config.elites]]
        self.plan, self._spread = best.mean(0), np.maximum(best.std(0), self.config.least)


def _extended(plan: Array, steps: int) -> Array:
    """Return the first `steps` actions of a plan; a shorter plan repeats its last action."""
    return np.asarray(plan[np.minimum(np.arange(steps), len(plan) - 1)])


def _linear(steps: int, knots: int) -> Array:
    """Return weights of evenly spaced knots, linear in between: float64 [steps, knots]."""
    if knots == 1:
        return np.ones((steps, 1))
    places = np.linspace(0, knots - 1, steps)
    return np.asarray(np.maximum(0, 1 - np.abs(places[:, None] - np.arange(knots))))
