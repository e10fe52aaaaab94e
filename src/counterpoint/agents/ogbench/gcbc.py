"""OGBench's goal-conditioned behaviour cloning: L(pi) = - E[log N(a; mu(s, g), 1)], `impls/agents/gcbc.py`.

Unlike `counterpoint.agents.gcbc`, TD InfoNCE's baseline, the spread is fixed, the mean is not squashed, and goals are
later states at uniform offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from counterpoint.agents.base import Metrics
from counterpoint.agents.extraction import log_likelihood
from counterpoint.agents.ogbench.base import OGBenchAgent, OGBenchConfig


class OGBenchGCBC(OGBenchAgent):
    """Behaviour cloning with a goal; arguments as for `Agent`."""

    name: ClassVar[str] = "ogbench_gcbc"
    config: OGBenchConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the policy, the only network."""
        self.actor = self.network("actor", self.policy(weights), self.config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the negative log-likelihood of the data's actions."""
        mean, action = self.actor(batch["observation"], batch["actor_goal"]), batch["action"]
        loss = -log_likelihood(mean, action).mean()
        return {"loss": loss, "actor/loss": loss, "actor/mean_squared_error": (mean - action).square().mean()}
