"""Contrastive RL: learn which futures belong to which situation (s, a); act to make the goal the most likely future.

Eysenbach, Zhang, Levine and Salakhutdinov, "Contrastive Learning as Goal-Conditioned Reinforcement Learning", NeurIPS
2022; the Monte Carlo baseline of TD InfoNCE (its Eq. 6). With F[i, j] = phi(s_i, a_i) . psi(g_j), where g_i is a
state k steps after transition i, with k geometric::

    critic, InfoNCE   CE(F, I) + c mean_i logsumexp_j(F[i, j])^2
    critic, NCE       binary cross entropy of F against I, mean over all entries
    actor             - E_{a ~ pi(. | s, g)} min over twins phi(s, a) . psi(g)

There is no target network, since no loss bootstraps. For images the authors add an adaptive entropy bonus to the actor
loss; in this library, as in TD InfoNCE, there is none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.contrastive import ContrastiveAgent, ContrastiveConfig, CriticLoss
from counterpoint.agents.networks import pair_metrics, pairs
from counterpoint.objectives.contrastive_rl import contrastive_nce_loss, logsumexp_penalty
from counterpoint.objectives.td_infonce import mc_infonce_loss


class ContrastiveRLConfig(ContrastiveConfig):
    """Settings of contrastive RL: the authors' where the loss needs them, otherwise TD InfoNCE's (Appendix D.5).

    Network sizes are TD InfoNCE's, so that comparisons are fair. Products of unit vectors at temperature 1 lie in
    [-1, 1], which is too narrow for a classifier's logits, so representations are not normalised.

    Attributes:
        representation: Number of dimensions of phi and psi (d); 64 in the authors' code.
        critic_init: Initial weights of phi and psi: Glorot's, as in the authors' code. The policy's initial weights are
            as in TD InfoNCE.
        actor_lr: Adam's learning rate for the policy, equal to the critic's.
        actor_objective: The policy's objective: `logit`, the critic's value for the row's goal, or `softmax`.
    """

    representation: int = Field(default=64, ge=1)
    normalise: bool = False
    critic_init: Literal["fan_in", "glorot"] = "glorot"
    actor_lr: float = Field(default=3e-4, gt=0)
    actor_objective: Literal["softmax", "logit"] = "logit"
    actor_goals: Literal["random", "future", "half"] = "half"


class ContrastiveRLInfoNCEConfig(ContrastiveRLConfig):
    """Settings with the InfoNCE loss.

    Attributes:
        logsumexp_penalty: Weight (c) of the penalty that keeps each row's logsumexp, which the InfoNCE loss does not
            determine, near 0; 0.01 in the authors' code, not in the paper.
    """

    logsumexp_penalty: float = Field(default=0.01, ge=0)


class _ContrastiveRL(ContrastiveAgent):
    critic_reads: ClassVar[frozenset[str]] = frozenset({"future_goal"})

    @abstractmethod
    def classification_loss(self, logits: Float[Tensor, "B B 2"]) -> Float[Tensor, ""]:
        """Return the loss of the logits of all pairs."""

    def critic_loss(self, features: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> CriticLoss:
        """Return the loss of contrasting every situation with every future of the batch."""
        phi = self.critic.encode_actions(features["observation"], features["action"])
        psi = self.critic.encode_futures(features["future_goal"])
        logits = pairs(phi, psi)
        return self.classification_loss(logits), pair_metrics(logits), {"future_goal": psi}


class ContrastiveRLInfoNCE(_ContrastiveRL):
    """Contrastive RL with the softmax loss, "contrastive RL" in TD InfoNCE's tables."""

    name = "contrastive_rl"
    config: ContrastiveRLInfoNCEConfig

    def classification_loss(self, logits: Float[Tensor, "B B 2"]) -> Float[Tensor, ""]:
        """Return Eq. 6 of TD InfoNCE plus the penalty on the rows' normalising constants."""
        return mc_infonce_loss(logits) + logsumexp_penalty(logits, self.config.logsumexp_penalty)


class ContrastiveRLNCE(_ContrastiveRL):
    """Contrastive RL with the binary loss, "contrastive RL (NCE)" in TD InfoNCE's tables."""

    name = "contrastive_rl_nce"

    def classification_loss(self, logits: Float[Tensor, "B B 2"]) -> Float[Tensor, ""]:
        """Return the binary cross entropy of every pair."""
        return contrastive_nce_loss(logits)
