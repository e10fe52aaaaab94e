"""OGBench's quasimetric RL (Wang et al., ICML 2023), with DDPG+BC through a model of latents: `impls/agents/qrl.py`.

With z = phi(s), the interval quasimetric d on latents, a model T of latents, and the multiplier lambda = exp(l)::

    L(d)  = E[ softplus_beta(offset - d(s, g)) ] + lambda E[ relu(d(s, s') - 1)^2 ]
    L(l)  = lambda (eps - E[ relu(d(s, s') - 1)^2 ])
    L(T)  = E[ d(z', T(z, a)) + d(T(z, a), z') ] / 2                          it trains phi, too
    L(pi) = DDPG+BC with Q = - d(T(z, a), z_g),   or AWR with the advantage d(s, g) - d(s', g)

`counterpoint.agents.qrl` explains the method, and is the form of its authors. OGBench's goals are whole states. Goal
coordinates have an encoder of their own here, with that module's two additions: states are pushed apart too, and
d(phi(s'), psi(m(s')))^2 joins the constraint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import awr_loss, ddpg_bc_loss
from counterpoint.agents.networks import EnsembleMLP, InputEncoder, initialise
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig
from counterpoint.agents.qrl import IntervalQuasimetric, push_loss, step_excess
from counterpoint.data.episode import Spaces
from counterpoint.data.transitions import GoalMix


class OGBenchQRLConfig(OGBenchValueConfig):
    """Settings of QRL: OGBench's.

    Attributes:
        latent: Number of dimensions of phi, a multiple of `component_width`.
        component_width: Number of interval ends per component of the quasimetric.
        offset: Distance beyond which pairs are hardly pushed apart.
        beta: Sharpness of the transition at `offset`.
        epsilon: Allowed mean square of the constraint's violation (eps).
        extraction: The policy's loss.
        alpha: Weight of cloning in DDPG+BC, or sharpness of AWR's weights.
    """

    latent: PositiveInt = 512
    component_width: PositiveInt = 8
    offset: float = Field(default=500.0, ge=0)
    beta: float = Field(default=0.01, gt=0)
    epsilon: float = Field(default=0.05, gt=0)
    extraction: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    alpha: float = Field(default=0.003, ge=0)
    value_goals: GoalMix = GoalMix(random=1.0)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.latent % self.component_width:
            raise ValueError(f"latent = {self.latent} is not a multiple of component_width = {self.component_width}")
        return self


class LatentDistance(nn.Module):
    """phi, psi and the quasimetric d; psi is phi if goals are whole states.

    Args:
        spaces: Shapes of observations, goals and actions.
        config: Widths and form.
        generator: Generator for the initial weights.
    """

    def __init__(self, spaces: Spaces, config: OGBenchQRLConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encode = InputEncoder(spaces, generator=generator)

        def mlp(inputs: int) -> EnsembleMLP:
            return EnsembleMLP(1, [inputs, *config.hidden, config.latent], form=config.form, generator=generator)

        self.phi = mlp(self.encode.observation_width)
        self.psi = self.phi if spaces.goal == spaces.observation else mlp(self.encode.goal_width)
        self.between = IntervalQuasimetric(1, config.latent // config.component_width)
        initialise(self, "glorot", generator)

    def states(self, states: Tensor) -> Float[Tensor, "1 B D"]:
        """Return phi of states."""
        found: Tensor = self.phi(self.encode(states))
        return found

    def goals(self, goals: Tensor) -> Float[Tensor, "1 B D"]:
        """Return psi of goals."""
        found: Tensor = self.psi(self.encode(goals))
        return found

    def forward(self, state: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return d from states to goals."""
        found: Tensor = self.between(self.states(state), self.goals(goal))[0]
        return found


class OGBenchQRL(OGBenchValueAgent):
    """Quasimetric RL; arguments as for `Agent`."""

    name: ClassVar[str] = "ogbench_qrl"
    value_name: ClassVar[str] = "minus the distance d(s, g)"
    config: OGBenchQRLConfig

    def build(self, weights: torch.Generator) -> None:
        """Create phi with d, the multiplier, the policy and, for DDPG+BC, the model of latents."""
        config, spaces = self.config, self.spaces
        keys = {"observation", "action", "next_observation", "value_goal", "actor_goal"}
        self.whole = spaces.goal == spaces.observation
        self.reads = frozenset(keys if self.whole else keys | {"next_goal"})
        self.distance = self.network("distance", LatentDistance(spaces, config, weights), config.lr)
        self.dual = self.network("dual", nn.ParameterDict({"log": torch.zeros(())}), config.lr)
        if config.extraction == "ddpg_bc":
            sizes = [config.latent + spaces.action, *config.hidden, config.latent]
            model = EnsembleMLP(1, sizes, form=config.form, generator=weights)
            initialise(model, "glorot", weights)
            self.model = self.network("model", model, config.lr)
        self.actor = self.network("actor", self.policy(weights), config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of d, of the multiplier, of the model and of the policy."""
        config, between = self.config, self.distance.between
        now, later = self.distance.states(batch["observation"]), self.distance.states(batch["next_observation"])
        apart = between(now, self.distance.goals(batch["value_goal"]))[0]
        pushed, excess = [apart], step_excess(between(now, later)[0], 1.0).mean()
        if not self.whole:
            pushed.append(between(now, later.roll(1, dims=1))[0])
            excess = excess + step_excess(between(later, self.distance.goals(batch["next_goal"]))[0], 0.0).mean()
        push = push_loss(torch.stack(pushed), offset=config.offset, beta=config.beta).mean()
        multiplier = self.dual["log"].exp()
        loss = push + multiplier.detach() * excess
        found = {
            "loss": loss,
            "distance/loss": loss,
            "distance/push": push,
            "distance/excess": excess,
            "distance/random": apart.mean(),
            "distance/multiplier": multiplier,
            "dual/loss": multiplier * (config.epsilon - excess.detach()),
        }
        if config.extraction == "ddpg_bc":
            predicted = self._step(now, batch["action"])
            found["model/loss"] = (between(later, predicted) + between(predicted, later)).mean() / 2
        mean = self.actor(batch["observation"], batch["actor_goal"])
        error = (mean - batch["action"]).square().mean()
        return {**found, "actor/loss": self._actor_loss(batch, mean, now), "actor/mean_squared_error": error}

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return minus d from states to goals."""
        found: Tensor = self.distance(observation, goal)
        return -found

    def _actor_loss(self, batch: Mapping[str, Tensor], mean: Tensor, now: Tensor) -> Float[Tensor, ""]:
        action, goal, alpha = batch["action"], batch["actor_goal"], self.config.alpha
        if self.config.extraction == "ddpg_bc":
            with torch.no_grad():
                end = self.distance.goals(goal)
            predicted = self._step(now.detach(), mean.clamp(-1, 1), frozen=True)
            return ddpg_bc_loss(mean, action, -self.distance.between(predicted, end, frozen=True)[0], alpha)
        with torch.no_grad():
            advantage = self.distance(batch["observation"], goal) - self.distance(batch["next_observation"], goal)
        return awr_loss(mean, action, advantage, alpha)

    def _step(self, latent: Tensor, action: Tensor, *, frozen: bool = False) -> Float[Tensor, "1 B D"]:
        """Return T(z, a), predicted as a change of z."""
        change: Tensor = self.model(torch.cat([latent, action[None]], dim=-1), frozen=frozen)
        return latent + change
