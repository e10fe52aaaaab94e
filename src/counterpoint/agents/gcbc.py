"""GCBC: goal-conditioned behaviour cloning of the actions that led to a state.

Goal-conditioned imitation learning (Ding et al., 2019), learning to reach goals via iterated supervised learning
(Ghosh et al., 2021); a baseline of TD InfoNCE (section 4.1, Fig. 2 and Table 1):

    L(pi) = - E[ log pi(a_t | s_t, g) ],    g a future of transition t in the same episode

For continuous actions the policy is N(a; tanh mu(s, g), sigma(s, g)), a Gaussian around a squashed mean, whose samples
are clipped. This policy has a density at the bounds of the action box, where recorded actions often lie; a Gaussian
whose samples are squashed has none there. `min_scale` bounds the density, which would become infinite on data of a
deterministic controller. For discrete actions the loss is the cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.base import Agent, AgentConfig, Metrics
from counterpoint.agents.situations import StochasticPolicy


class GCBCConfig(AgentConfig):
    """Settings of GCBC; as in the paper, networks and batch size are those of TD InfoNCE.

    Attributes:
        lr: Adam's learning rate.
        min_scale: Minimum standard deviation of the policy, in units of the action box's half-width.
        exploration_noise: Standard deviation of the noise added to sampled actions in collection, before clipping.
    """

    lr: float = Field(default=3e-4, gt=0)
    min_scale: float = Field(default=1e-2, gt=0)
    exploration_noise: float = Field(default=0.0, ge=0)


def gaussian_log_likelihood(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], actions: Float[Tensor, "B A"]
) -> Float[Tensor, " B"]:
    """Return log N(a; tanh(loc), scale), summed over the dimensions of the action."""
    residual = (actions - torch.tanh(loc)) / scale
    return -(residual.square() / 2 + scale.log() + math.log(2 * math.pi) / 2).sum(dim=-1)


def gaussian_cloning_loss(
    loc: Float[Tensor, "B A"], scale: Float[Tensor, "B A"], actions: Float[Tensor, "B A"]
) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood of the data's actions."""
    return -gaussian_log_likelihood(loc, scale, actions).mean()


class GCBC(Agent):
    """Goal-conditioned behaviour cloning; arguments as for `Agent`."""

    name: ClassVar[str] = "gcbc"
    reads = frozenset({"observation", "action", "future_goal"})
    config: GCBCConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the policy network, the only network of this agent."""
        policy = StochasticPolicy(self.spaces, self.config.hidden, weights, min_scale=self.config.min_scale)
        self.actor = self.network("actor", policy, self.config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the negative log-likelihood of the data's actions."""
        observation, goal, action = batch["observation"], batch["future_goal"], batch["action"]
        if self.spaces.discrete:
            scores = self.actor.log_probabilities(observation, goal)
            loss = functional.nll_loss(scores, action)
            accuracy = (scores.argmax(dim=-1) == action).float().mean()
            return {"loss": loss, "actor/loss": loss, "actor/accuracy": accuracy}
        loc, scale = self.actor.gaussian(observation, goal)
        loss = gaussian_cloning_loss(loc, scale, action)
        error = functional.mse_loss(torch.tanh(loc), action)
        return {"loss": loss, "actor/loss": loss, "actor/mean_squared_error": error, "actor/scale": scale.mean()}

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Sample from the policy, or return its mode."""
        return self.actor.act(observation, goal, explore, self.config.exploration_noise)
