"""C-learning: learn a classifier of a policy's future states by temporal differences, and reach goals with it.

Eysenbach, Salakhutdinov and Levine, "C-Learning: Learning to Achieve Goals via Recursive Classification", ICLR 2021;
a baseline of TD InfoNCE, implemented as a contrastive RL agent. With C = sigmoid(f), f = phi(s, a) . psi(s+)::

    critic   - (1 - gamma) log C(s, a, s') - gamma w log C(s, a, g) - log(1 - C(s, a, g)),  g ~ p(s+)
             w = sg C / (1 - C) at (s', a', g), minimum of the target twins, at most `weight_limit`; a' ~ pi(. | s', g)
    actor    - E_{a ~ pi(. | s, g)} min over twins f(s, a, g)

The goal that the policy is commanded to reach is always the state that is classified, which psi reads. So phi reads
only the state and the action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent, CriticLoss
from counterpoint.agents.contrastive_rl import ContrastiveRLConfig
from counterpoint.agents.networks import flat, matched
from counterpoint.objectives.c_learning import c_learning_loss


class CLearningConfig(ContrastiveRLConfig):
    """Settings of C-learning: those of contrastive RL, with TD InfoNCE's network sizes.

    As in contrastive RL, representations are not normalised, since logits must be able to leave [-1, 1].

    Attributes:
        tau: Rate of the target network's soft update.
        actor_goals: Goals of the actor loss: `random` (as for the critic's weights w), `future`, or `half`, which
            takes half of each.
        weight_limit: Maximum of the weights w; 20 in the authors' code.
        self_normalised: Divide w by its mean over the batch, as in Appendix E.3 of TD InfoNCE.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    actor_goals: Literal["random", "future", "half"] = "random"
    weight_limit: float = Field(default=20.0, gt=0)
    self_normalised: bool = False


class CLearning(ContrastiveAgent):
    """The C-learning agent: temporal-difference NCE with one future state for each situation (s, a)."""

    name = "c_learning"
    config: CLearningConfig
    critic_reads: ClassVar[frozenset[str]] = frozenset({"next_observation", "next_goal", "random_goal"})

    def build(self, weights: torch.Generator) -> None:
        """Create the critic, the actor and the critic's target network."""
        super().build(weights)
        self.target_critic = self.target("critic", self.critic, self.config.tau)

    def critic_loss(self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> CriticLoss:
        """Return the loss of classifying next against random states; log w is the target network's clipped logit."""
        goal = features["random_goal"]
        phi = self.critic.encode_actions(features["observation"], features["action"])
        psi_next, psi_random = self.critic.encode_futures(torch.cat([features["next_goal"], goal])).chunk(2, dim=1)
        next_logits, future_logits = matched(phi, psi_next), matched(phi, psi_random)
        with torch.no_grad():
            next_action = self.actor.sample(flat(features["next_observation"], goal), batch["next_noise"])
            target = self.target_critic(batch["next_observation"], next_action, batch["random_goal"])
            weight_logits = matched(*target)
        loss = c_learning_loss(
            next_logits,
            future_logits,
            weight_logits.clamp(max=math.log(self.config.weight_limit)),
            discount=self.config.discount,
            self_normalised=self.config.self_normalised,
        )
        metrics = {
            "categorical_accuracy": (next_logits > future_logits).float().mean(),
            "logits_pos": next_logits.mean(),
            "logits_neg": future_logits.mean(),
        }
        return loss, metrics, {"random_goal": psi_random}
