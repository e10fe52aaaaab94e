"""C-learning: classify by temporal differences where a goal-conditioned policy will be, and reach goals with it.

Eysenbach, Salakhutdinov and Levine, "C-Learning: Learning to Achieve Goals via Recursive Classification", ICLR 2021;
a baseline of TD InfoNCE, built as a contrastive RL agent there. With C = sigmoid(f), f = phi(s, a) . psi(s+)::

    critic   - (1 - gamma) log C(s, a, s') - gamma w log C(s, a, g) - log(1 - C(s, a, g)),  g ~ p(s+)
             w = sg C / (1 - C) at (s', a', g) of the target's lesser twin, at most `weight_limit`; a' ~ pi(. | s', g)
    actor    - E_{a ~ pi(. | s, g)} min over twins f(s, a, g)

The policy is commanded to reach the very state that is classified, so that phi need not read the command.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import Metrics
from counterpoint.agents.contrastive import ContrastiveAgent, ContrastiveConfig
from counterpoint.agents.critics import Seen, action_vectors
from counterpoint.objectives.c_learning import c_learning_loss

__all__ = ["CLearning", "CLearningConfig"]


class CLearningConfig(ContrastiveConfig):
    """Contrastive RL's settings at TD InfoNCE's network sizes; its logits, too, must leave [-1, 1].

    Attributes:
        representation: d.
        normalise: No.
        actor_lr: As the critic's.
        actor_goals: Random goals, which are those the classifier's weights are computed for.
        weight_limit: The greatest w; 20 in the authors' code.
        self_normalised: Divide w by its mean over the batch, as TD InfoNCE's Appendix E.3 tries.
    """

    representation: int = Field(default=64, ge=1)
    normalise: bool = False
    actor_lr: float = Field(default=3e-4, gt=0)
    actor_goals: Literal["random", "future", "half"] = "random"
    weight_limit: float = Field(default=20.0, gt=0)
    self_normalised: bool = False


class CLearning(ContrastiveAgent):
    """TD NCE with one future state for each situation."""

    name = "c_learning"
    config: CLearningConfig
    reads: ClassVar[frozenset[str]] = frozenset({"next_observation", "next_goal", "random_goal"})

    def critic_loss(
        self, seen: Seen, batch: Mapping[str, Tensor], noise: Float[Tensor, "B A"]
    ) -> tuple[Float[Tensor, ""], Metrics, dict[str, Float[Tensor, "2 B D"]]]:
        """Next states against random ones, with psi of the random goals for the actor."""
        phi = self.critic.encode_actions(seen["observation"], action_vectors(batch["action"], self.spaces))
        both = self.critic.encode_futures(torch.cat([seen["next_goal"], seen["random_goal"]]))
        psi_next, psi_random = both.chunk(2, dim=1)
        next_logits = self.critic.matched(phi, psi_next)
        future_logits = self.critic.matched(phi, psi_random)
        loss = c_learning_loss(
            next_logits,
            future_logits,
            self.weight_logits(seen, batch, noise),
            discount=self.config.discount,
            self_normalised=self.config.self_normalised,
        )
        metrics = {
            "categorical_accuracy": (next_logits > future_logits).float().mean(),
            "logits_pos": next_logits.mean(),
            "logits_neg": future_logits.mean(),
        }
        return loss, metrics, {"random_goal": psi_random}

    @torch.no_grad()
    def weight_logits(
        self, seen: Seen, batch: Mapping[str, Tensor], noise: Float[Tensor, "B A"]
    ) -> Float[Tensor, "B 2"]:
        """The target's logits of the random goal at the next state and the policy's action there: log w."""
        action = self._next_actions(seen, "random_goal", noise)
        target = Seen(batch, self.target.sight)
        phi = self.target.encode_actions(target["next_observation"], action)
        psi = self.target.encode_futures(target["random_goal"])
        return self.target.matched(phi, psi).clamp(max=math.log(self.config.weight_limit))

    def reaching(self, phi: Float[Tensor, "2 K*B D"], psi: Float[Tensor, "2 B D"]) -> Float[Tensor, "K B"]:
        """- min over twins of each action's logit for its own goal."""
        return self.least_own_logit(phi, psi).neg()
