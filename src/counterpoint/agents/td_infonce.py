"""TD InfoNCE: learn the future states of a goal-conditioned policy by temporal differences, and reach goals with it.

Zheng, Salakhutdinov and Eysenbach, "Contrastive Difference Predictive Coding", ICLR 2024: Algorithm 1, Eq. 10, 11, 17.
With F[i, j] = phi(s_i, a_i, g_i) . psi(.), for one of the twin critics::

    critic   (1 - gamma) CE(F_next, I) + gamma CE(F_future, W)
             F_next[i, j]   = phi_i . psi(s'_j)             what came next
             F_future[i, j] = phi_i . psi(s+_j)             what might come later, s+ ~ p(s+)
             W              = sg softmax_rows(phibar(s'_i, a'_i, g_i) . psibar(s+_j)),  a'_i ~ pi(. | s'_i, g_i)
    actor    CE(F_goal, I),  F_goal[i, j] = phi(s_i, a_i, g_i) . psi(g_j),  a_i ~ pi(. | s_i, g_i)

The rows of W sum to 1, as in the authors' code, and not to N, as Algorithm 1 prints. W and the actor use the
elementwise minimum of the twins' logits before the softmax. The future states s+ are the batch's random goals, which
are samples of p(s+). These goals are encoded once and used for the actor too, so each row's commanded goal is among its
N columns. The authors roll the columns of F_future and W by one, which only changes the order of the sum over j.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent, ContrastiveConfig, CriticLoss
from counterpoint.agents.networks import flat, pair_metrics, pairs
from counterpoint.objectives.contrastive_rl import logsumexp_penalty
from counterpoint.objectives.td_infonce import td_infonce_loss


class TDInfoNCEConfig(ContrastiveConfig):
    """Settings of TD InfoNCE: the paper's Table 2 (online).

    Table 3 (offline) has `actor_goals="future"`, `behaviour_cloning=.1`, and wider networks on large mazes.

    Attributes:
        tau: Rate of the target network's soft update.
        logsumexp_penalty: Weight of contrastive RL's penalty on the rows of F_future. `actor_objective="logit"` needs
            it; `actor_objective="softmax"`, the method's objective, does not.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    logsumexp_penalty: float = Field(default=0.0, ge=0)


class TDInfoNCE(ContrastiveAgent):
    """The TD InfoNCE agent (Algorithm 1)."""

    name = "td_infonce"
    config: TDInfoNCEConfig
    goal_conditioned: ClassVar[bool] = True
    critic_reads: ClassVar[frozenset[str]] = frozenset({"next_observation", "next_goal", "random_goal"})

    def build(self, weights: torch.Generator) -> None:
        """Create the critic, the actor and the critic's target network."""
        super().build(weights)
        self.target_critic = self.target("critic", self.critic, self.config.tau)

    def critic_loss(self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> CriticLoss:
        """Return Eq. 10 over a batch, and psi of the random goals for the actor."""
        goal = features["random_goal"]
        phi = self.critic.encode_actions(features["observation"], features["action"], goal)
        psi_next, psi_random = self.critic.encode_futures(torch.cat([features["next_goal"], goal])).chunk(2, dim=1)
        next_logits, future_logits = pairs(phi, psi_next), pairs(phi, psi_random)
        metrics = pair_metrics(next_logits)
        with torch.no_grad():
            next_action = self.actor.sample(flat(features["next_observation"], goal), batch["next_noise"])
            target = self.target_critic(batch["next_observation"], next_action, batch["random_goal"])
            weight_logits = pairs(*target)
        loss = td_infonce_loss(next_logits, future_logits, weight_logits, discount=self.config.discount)
        if self.config.logsumexp_penalty:
            loss = loss + logsumexp_penalty(future_logits, self.config.logsumexp_penalty)
        return loss, metrics, {"random_goal": psi_random}
