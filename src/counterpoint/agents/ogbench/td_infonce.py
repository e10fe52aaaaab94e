"""TD InfoNCE in the form of OGBench's agents, with its method's critic and their networks, goals and policy.

The critic is that of `counterpoint.agents.td_infonce` (Eq. 10). In this form the next action is the policy's clipped
mean, phi . psi is divided by sqrt(D) instead of being normalised, and the policy's loss is DDPG+BC::

    Q(s, a, g) = log softmax_j of min over twins f(s_i, a_i, g_i; g_j) at j = i      (Eq. 11), or the logit itself

Its author's `impls/agents/gctd_infonce.py` (a fork of OGBench) takes next actions from the data instead, and phi does
not read the goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from counterpoint.agents.base import Metrics
from counterpoint.agents.contrastive import ACTOR_OBJECTIVES, log_ratio
from counterpoint.agents.extraction import ddpg_bc_loss
from counterpoint.agents.networks import matched, pair_metrics, pairs
from counterpoint.agents.ogbench.base import OGBenchValueAgent, OGBenchValueConfig
from counterpoint.data.transitions import GoalMix
from counterpoint.objectives.td_infonce import td_infonce_loss


class OGBenchTDInfoNCEConfig(OGBenchValueConfig):
    """Settings of TD InfoNCE in OGBench's form.

    Attributes:
        representation: Number of dimensions of phi and psi (D).
        actor_objective: The policy's Q: `softmax` (Eq. 11) or `logit`, as in contrastive RL.
        alpha: Weight of cloning in DDPG+BC.
        tau: Rate of the target network's soft update.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    representation: PositiveInt = 512
    actor_objective: Literal["softmax", "logit"] = "softmax"
    alpha: float = Field(default=0.1, ge=0)
    value_goals: GoalMix = GoalMix(random=1.0)


class OGBenchTDInfoNCE(OGBenchValueAgent):
    """TD InfoNCE; arguments as for `Agent`."""

    name: ClassVar[str] = "ogbench_td_infonce"
    value_name: ClassVar[str] = "log p(g | s, a) / p(g) at the policy's clipped mean"
    config: OGBenchTDInfoNCEConfig
    reads = frozenset({"observation", "action", "next_observation", "next_goal", "value_goal", "actor_goal"})

    def build(self, weights: torch.Generator) -> None:
        """Create the twin critic with its target network, and the policy."""
        config = self.config
        critic = self.contrastive(config.representation, weights, reads_goal=True)
        self.critic, self.target_critic = self.tracked("critic", critic, config.lr, config.tau)
        self.actor = self.network("actor", self.policy(weights), config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of the critic and of the policy."""
        observation, following, goal = batch["observation"], batch["next_observation"], batch["value_goal"]
        phi, psi_random = self.critic(observation, batch["action"], goal)
        next_logits = pairs(phi, self.critic.encode_futures(self.critic.encode(batch["next_goal"])))
        with torch.no_grad():
            next_action = self.actor(following, goal).clamp(-1, 1)
            weight_logits = pairs(*self.target_critic(following, next_action, goal))
        future_logits = pairs(phi, psi_random)
        loss = td_infonce_loss(next_logits, future_logits, weight_logits, discount=self.config.discount)
        mean, action, wanted = self.actor(observation, batch["actor_goal"]), batch["action"], batch["actor_goal"]
        score, cost = ACTOR_OBJECTIVES[self.config.actor_objective]
        encoded = self.critic.encode(wanted).detach()
        inputs = (self.critic.encode(observation).detach(), mean.clamp(-1, 1), encoded)
        chosen = self.critic.encode_actions(*inputs, frozen=True)
        q = -cost(score(chosen, self.critic.encode_futures(encoded, frozen=True)))
        metrics = {f"critic/{name}": value for name, value in pair_metrics(next_logits).items()}
        return {
            "loss": loss,
            "critic/loss": loss,
            **metrics,
            "actor/loss": ddpg_bc_loss(mean, action, q, self.config.alpha),
            "actor/mean_squared_error": (mean - action).square().mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the logit of the policy's loss, before its softmax: the minimum over twins of f(s, a, g; g)."""
        mean = self.choose(observation, goal, (), None)
        return matched(*self.critic(observation, mean, goal)).amin(dim=-1)

    def comparable_value(self, observation: Tensor, goal: Tensor, goals: Tensor) -> Float[Tensor, " B"]:
        """Return `log_ratio` at the policy's clipped mean."""
        phi, psi = self.critic(observation, self.choose(observation, goal, (), None), goal)
        return log_ratio(phi, psi, self.critic.encode_futures(self.critic.encode(goals)))
