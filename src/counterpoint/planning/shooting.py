"""MPPI and the cross-entropy method: planners that sample plans, score them and keep the best.

A planner gets a function that scores plans from the current state, and needs no other information about the task::

    planner = MPPI(score, action_dim=2)  # score: float64 [B, H, A] -> float [B], the more the better
    planner.reset(seed=0)
    while not done:
        action = planner.act()

After each action the plan is shifted by one step; its last action is repeated.
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
"""A function that scores plans from the current state: float64 [B, H, A] -> float [B]."""


class ShootingConfig(FrozenConfig):
    """The settings that all planners share.

    Attributes:
        horizon: Number of actions in a plan (H).
        samples: Number of plans per round (B); one of them is the current plan.
        rounds: Number of rounds of sampling before each action.
        knots: Number of knots of a disturbance, which is sampled at the knots and linear in between. More knots give
            jerkier plans; with H knots, steps are independent.
        noise: Maximum standard deviation of the disturbances, in action units.
    """

    horizon: int = Field(default=20, ge=1)
    samples: int = Field(default=32, ge=2)
    rounds: int = Field(default=1, ge=1)
    knots: int = Field(default=6, ge=1)
    noise: float = Field(default=1.0, gt=0)


class Shooting:
    """Base class of the planners; subclasses implement `improve` and set `config_type`.

    Args:
        score: A function that scores plans from the current state.
        action_dim: Number of action dimensions (A).
        config: Settings; by default `config_type()`.
        low: Minimum of each action dimension, one number or [A].
        high: Maximum of each action dimension.

    Raises:
        BadInputError: If no action lies between `low` and `high`.
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
        """Start anew with a random seed and an initial plan.

        Args:
            seed: Random seed, 0 or more.
            plan: Initial plan, float [h, A]. Its last action is repeated up to the horizon, and actions beyond the
                horizon are dropped. Without a plan, actions start in the middle of their range.

        Raises:
            BadInputError: If the plan has no actions, or another number of action dimensions.
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
        """Return the action for the current state: float32 [A]."""
        for _ in range(self.config.rounds):
            self.improve()
        action: Array = self.plan[0].astype(np.float32)
        self.plan = _extended(self.plan[1:] if len(self.plan) > 1 else self.plan, len(self.plan))
        return action

    def improve(self) -> None:
        """Sample plans around the current plan, score them, and update the plan."""
        raise NotImplementedError

    def _disturbed(self, sizes: Any, samples: int) -> Array:
        """Return plans [B, H, A]: first the current plan, then disturbed ones; `sizes` scale standard normal knots."""
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
        temperature: Temperature of the weights, in standard deviations of the scores. With 0.1 the best one or two
            plans dominate; this equals the 10 of DecisionNCE's Table 8, which multiplies normalised returns.
    """

    temperature: float = Field(default=0.1, gt=0)


class MPPI(Shooting):
    """Model predictive path integral control (Williams et al. 2017, arXiv 1707.02342).

    The new plan is the mean of the sampled plans, weighted by their scores R::

        w_i = softmax_i( (R_i - mean R) / (temperature * std R) )        plan = sum_i w_i plan_i

    Since R is divided by its standard deviation, one temperature works for all tasks. The size of each plan's
    disturbance is sampled between 1/20 of `noise` and `noise`, so that one round searches near and far.

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
        rounds: Number of rounds of sampling before each action; the standard deviation shrinks from round to round.
        elites: Number of best plans that the next round is fitted to.
        least: Minimum standard deviation after the first round, in action units.
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
    """The cross-entropy method (Rubinstein 1999): plans are sampled from a Gaussian fitted to the best plans.

    The plan is the mean of the last elites. Before every action the standard deviation is reset to `noise`.

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
