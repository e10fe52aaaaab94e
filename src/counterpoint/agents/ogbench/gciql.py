"""GCIQL: goal-conditioned implicit Q-learning with DDPG+BC or AWR, a baseline of OGBench (ICLR 2025).

After implicit Q-learning (Kostrikov et al., 2022); OGBench's `impls/agents/gciql.py`. With r = -1, or r = 0 and m = 0
if s is the goal (m = 1 otherwise), and u = min_i Qbar_i(s, a, g) - V(s, g)::

    L(V)  = E[ |tau - 1(u < 0)| u^2 ]
    L(Q)  = sum_i E[ (Q_i(s, a, g) - r - gamma m V(s', g))^2 ]
    L(pi) = DDPG+BC with Q = min_i Q_i, or AWR with the advantage min_i Q_i - V

Unlike `iql.py`, goals are relabelled and rewards follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import awr_loss, ddpg_bc_loss
from counterpoint.agents.iql import expectile_loss
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig


class GCIQLConfig(OGBenchValueConfig):
    """Settings of GCIQL: OGBench's.

    Attributes:
        expectile: Expectile of V: 0.5 is the mean, 1 the largest value in the data.
        extraction: The policy's loss.
        alpha: Weight of cloning in DDPG+BC, or sharpness of AWR's weights.
        tau: Rate of the target network's soft update.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    expectile: float = Field(default=0.9, gt=0, lt=1)
    extraction: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    alpha: float = Field(default=0.3, ge=0)


class GCIQL(OGBenchValueAgent):
    """Implicit Q-learning with relabelled goals; arguments as for `Agent`."""

    name: ClassVar[str] = "gciql"
    value_name: ClassVar[str] = "V(s, g)"
    config: GCIQLConfig

    def build(self, weights: torch.Generator) -> None:
        """Create V, the twin Q with its target network, and the policy."""
        config = self.config
        critic = self.values(weights, actions=self.spaces.action)
        self.critic, self.target_critic = self.tracked("critic", critic, config.lr, config.tau)
        self.value_network = self.network("value", self.values(weights, members=1), config.lr)
        self.actor = self.network("actor", self.policy(weights), config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of V, Q and the policy."""
        observation, action, goal = batch["observation"], batch["action"], batch["value_goal"]
        with torch.no_grad():
            best = self.target_critic(observation, goal, action)[..., 0].amin(dim=0)
            target = self.target_of(batch, self.value_network(batch["next_observation"], goal)[0, :, 0])
        value = self.value_network(observation, goal)[0, :, 0]
        values = self.critic(observation, goal, action)[..., 0]
        value_loss = expectile_loss(best - value, self.config.expectile)
        critic = (values - target).square().mean(dim=1).sum()
        mean = self.actor(observation, batch["actor_goal"])
        return {
            "loss": critic,
            "critic/loss": critic,
            "critic/value": values.mean(),
            "value/loss": value_loss,
            "value/value": value.mean(),
            "actor/loss": self._actor_loss(batch, mean),
            "actor/mean_squared_error": (mean - action).square().mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return V."""
        found: Tensor = self.value_network(observation, goal)
        return found[0, :, 0]

    def _actor_loss(self, batch: Mapping[str, Tensor], mean: Tensor) -> Tensor:
        observation, action, goal, alpha = batch["observation"], batch["action"], batch["actor_goal"], self.config.alpha
        if self.config.extraction == "ddpg_bc":
            q = self.critic(observation, goal, mean.clamp(-1, 1), frozen=True)[..., 0].amin(dim=0)
            return ddpg_bc_loss(mean, action, q, alpha)
        with torch.no_grad():
            q = self.critic(observation, goal, action)[..., 0].amin(dim=0)
            advantage = q - self.value_network(observation, goal)[0, :, 0]
        return awr_loss(mean, action, advantage, alpha)
