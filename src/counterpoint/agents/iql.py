"""IQL: implicit Q-learning, which evaluates only actions that occur in the data.

Offline Reinforcement Learning with Implicit Q-Learning (Kostrikov et al., 2022); a baseline of TD InfoNCE's offline
table (Table 1). As in `td3_bc.py`, nothing is relabelled: goals and rewards come from the data.

    L(V)  = E[ |tau - 1(u < 0)| u^2 ],    u = min_i Qbar_i(s, a, g) - V(s, g)                       expectile regression
    L(Q)  = sum_i E[ (Q_i(s, a, g) - r - gamma (1 - terminated) V(s', g))^2 ] / 2
    L(pi) = - E[ min(exp(beta (min_i Qbar_i(s, a, g) - V(s, g))), 100) log pi(a | s, g) ]

tau = .9 and beta = 10 are the authors' values for AntMaze, where they also subtract 1 from every reward
(`reward_shift = -1`). The policy is the Gaussian of `gcbc.py`. The authors' policy has one standard deviation for all
states, and its learning rate follows a cosine schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.agents.base import AgentConfig, Metrics, RewardAgent
from counterpoint.agents.extraction import advantage_weight
from counterpoint.agents.gcbc import gaussian_log_likelihood
from counterpoint.agents.networks import initialise
from counterpoint.agents.situations import SituationMLP, StochasticPolicy
from counterpoint.agents.td3_bc import td_target


class IQLConfig(AgentConfig):
    """Settings of IQL: the authors' values for AntMaze, with TD InfoNCE's hidden layers.

    Attributes:
        expectile: Expectile of V (tau of the equations): 0.5 is the mean, 1 the largest value in the data.
        temperature: Sharpness of the actions' weights (beta); 0 clones all actions with equal weight.
        largest_weight: Maximum weight of an action.
        reward_shift: Number that is added to every reward of the data.
        lr: Adam's learning rate for all networks.
        tau: Rate of the target network's soft update.
        min_scale: Minimum standard deviation of the policy.
    """

    expectile: float = Field(default=0.9, gt=0, lt=1)
    temperature: float = Field(default=10.0, ge=0)
    largest_weight: float = Field(default=100.0, gt=0)
    reward_shift: float = 0.0
    lr: float = Field(default=3e-4, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    min_scale: float = Field(default=1e-2, gt=0)


def expectile_loss(
    gap: Float[Tensor, "*E B"], expectile: float, advantage: Float[Tensor, " B"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean of |tau - 1(u < 0)| u^2 over gaps u; with an advantage A, 1(A < 0) replaces 1(u < 0)."""
    below = (gap if advantage is None else advantage) < 0
    return ((expectile - below.to(gap.dtype)).abs() * gap.square()).mean()


class IQL(RewardAgent):
    """Implicit Q-learning, for continuous actions; arguments as for `Agent`."""

    name: ClassVar[str] = "iql"
    value_name: ClassVar[str] = "V(s, g)"
    config: IQLConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the policy, the twin Q with its target network, and V."""
        config, spaces = self.config, self.spaces
        actor = StochasticPolicy(spaces, config.hidden, weights, min_scale=config.min_scale)
        critic = SituationMLP(spaces, config.hidden, 1, weights, members=2, actions=spaces.action)
        value = SituationMLP(spaces, config.hidden, 1, weights)
        for module in (actor, critic, value):
            initialise(module, "orthogonal", weights)
        self.critic, self.target_critic = self.tracked("critic", critic, config.lr, config.tau)
        self.value_network = self.network("value", value, config.lr)
        self.actor = self.network("actor", actor, config.lr)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of V, Q and the policy."""
        config, observation, goal, action = self.config, batch["observation"], batch["goal"], batch["action"]
        with torch.no_grad():
            best = self.target_critic(observation, goal, action)[..., 0].amin(dim=0)
            next_value = self.value_network(batch["next_observation"], goal)[0, :, 0]
        value = self.value_network(observation, goal)[0, :, 0]
        reward = batch["reward"] + config.reward_shift
        target = td_target(reward, batch["terminated"], next_value, config.discount)
        values = self.critic(observation, goal, action)[..., 0]
        critic = (values - target).square().mean(dim=1).sum() / 2
        weight = advantage_weight(best - value, config.temperature, config.largest_weight)
        likelihood = gaussian_log_likelihood(*self.actor.gaussian(observation, goal), action)
        return {
            "loss": critic,
            "actor/loss": -(weight * likelihood).mean(),
            "actor/weight": weight.mean(),
            "actor/log_likelihood": likelihood.mean(),
            "critic/loss": critic,
            "critic/value": values.mean(),
            "value/loss": expectile_loss(best - value, config.expectile),
            "value/value": value.mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return V."""
        found: Tensor = self.value_network(observation, goal)
        return found[0, :, 0]

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Sample from the policy, clipped to the action box, or return its mode."""
        return self.actor.act(observation, goal, explore)
