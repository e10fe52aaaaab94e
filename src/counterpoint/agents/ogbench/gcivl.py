"""GCIVL: goal-conditioned implicit V-learning, a baseline of OGBench (ICLR 2025) without a Q function.

After implicit Q-learning (Kostrikov et al., 2022); OGBench's `impls/agents/gcivl.py`. With r = -1, or r = 0 and m = 0
if s is the goal (m = 1 otherwise), twins V_i, their targets Vbar_i, and weights |tau - 1(A < 0)|::

    A     = r + gamma m min_i Vbar_i(s', g) - mean_i Vbar_i(s, g)
    L(V)  = sum_i E[ |tau - 1(A < 0)| (r + gamma m Vbar_i(s', g) - V_i(s, g))^2 ]
    L(pi) = AWR with the advantage mean_i V_i(s', g) - mean_i V_i(s, g)

The sign of A, from the targets, decides the weight, as double DQN separates choice and estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import awr_loss
from counterpoint.agents.iql import expectile_loss
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig


class GCIVLConfig(OGBenchValueConfig):
    """Settings of GCIVL: OGBench's.

    Attributes:
        expectile: Expectile of V: 0.5 is the mean, 1 the largest value in the data.
        tau: Rate of the target network's soft update.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    expectile: float = Field(default=0.9, gt=0, lt=1)


class GCIVL(OGBenchValueAgent):
    """Implicit V-learning with AWR; arguments as for `Agent`."""

    name: ClassVar[str] = "gcivl"
    value_name: ClassVar[str] = "V(s, g), mean over twins"
    config: GCIVLConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the twin V with its target network, and the policy."""
        config = self.config
        self.value_network, self.target_value = self.tracked("value", self.values(weights), config.lr, config.tau)
        self.actor = self.network("actor", self.policy(weights), config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of V and the policy."""
        observation, following, goal = batch["observation"], batch["next_observation"], batch["value_goal"]
        with torch.no_grad():
            later = self.target_value(following, goal)[..., 0]
            now = self.target_value(observation, goal)[..., 0].mean(dim=0)
            advantage = self.target_of(batch, later.amin(dim=0)) - now
            targets = self.target_of(batch, later)
            wanted = batch["actor_goal"]
            ends = [self.value_network(state, wanted)[..., 0].mean(dim=0) for state in (observation, following)]
        value = self.value_network(observation, goal)[..., 0]
        loss = 2 * expectile_loss(targets - value, self.config.expectile, advantage)  # the sum over twins
        mean = self.actor(observation, wanted)
        actor = awr_loss(mean, batch["action"], ends[1] - ends[0], self.config.alpha)
        return {
            "loss": loss,
            "value/loss": loss,
            "value/value": value.mean(),
            "actor/loss": actor,
            "actor/advantage": (ends[1] - ends[0]).mean(),
            "actor/mean_squared_error": (mean - batch["action"]).square().mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the mean over twins of V."""
        found: Tensor = self.value_network(observation, goal)
        return found[..., 0].mean(dim=0)
