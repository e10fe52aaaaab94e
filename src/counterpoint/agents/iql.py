"""IQL: implicit Q-learning. The best action the data show, without asking about actions they do not show.

Offline Reinforcement Learning with Implicit Q-Learning (Kostrikov et al., 2022); a baseline of TD InfoNCE's offline
table (Table 1). As in `td3_bc.py` nothing is relabelled: the goal is the episode's own, the reward is the data's.

    L(V)  = E[ |tau - 1(u < 0)| u^2 ],    u = min_i Qbar_i(s, a, g) - V(s, g)                       expectile regression
    L(Q)  = sum_i E[ (Q_i(s, a, g) - r - gamma (1 - terminated) V(s', g))^2 ] / 2
    L(pi) = - E[ min(exp(beta (min_i Qbar_i(s, a, g) - V(s, g))), 100) log pi(a | s, g) ]

tau = .9 and beta = 10, the authors' for AntMaze; there they also subtract 1 from every reward (`reward_shift = -1`).
The policy is the Gaussian of `gcbc.py`; the authors' has one spread for all states and a cosine schedule of its rate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from counterpoint.agents.base import (
    Agent,
    AgentConfig,
    Metrics,
    Spaces,
    continuous_only,
    descend,
    follow,
    on_device,
    prepared,
)
from counterpoint.agents.critics import Sight
from counterpoint.agents.ddpg_her import ActionValue
from counterpoint.agents.gcbc import Policy, gaussian_log_likelihood
from counterpoint.agents.networks import EnsembleMLP, flat
from counterpoint.agents.td3_bc import td_target
from counterpoint.data.draws import GoalSpec

__all__ = ["IQL", "IQLConfig", "StateValue", "advantage_weight", "expectile_loss"]


class IQLConfig(AgentConfig):
    """Settings of IQL: its authors' for AntMaze, with TD InfoNCE's hidden layers.

    Attributes:
        expectile: tau; one half is the mean, 1 the largest value in the data.
        temperature: beta; 0 clones every action alike.
        largest_weight: Greatest weight of an action.
        reward_shift: Added to every reward of the data.
        lr: Adam's rate for all networks.
        follow_rate: How far the moving average of Q follows with each update.
        min_scale: Least standard deviation of the policy.
    """

    expectile: float = Field(default=0.9, gt=0, lt=1)
    temperature: float = Field(default=10.0, ge=0)
    largest_weight: float = Field(default=100.0, gt=0)
    reward_shift: float = 0.0
    lr: float = Field(default=3e-4, gt=0)
    follow_rate: float = Field(default=0.005, gt=0, le=1)
    min_scale: float = Field(default=1e-2, gt=0)


def expectile_loss(gap: Float[Tensor, " B"], expectile: float) -> Float[Tensor, ""]:
    """Mean of |tau - 1(u < 0)| u^2 over gaps u."""
    return ((expectile - (gap < 0).to(gap.dtype)).abs() * gap.square()).mean()


def advantage_weight(advantage: Float[Tensor, " B"], temperature: float, largest: float) -> Float[Tensor, " B"]:
    """min(exp(beta advantage), largest), detached."""
    return (temperature * advantage).exp().clamp_max(largest).detach()


class StateValue(nn.Module):
    """V(s, g).

    Args:
        spaces: What the agent sees.
        hidden: Widths of the hidden layers.
        generator: Of the initial weights.
    """

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sight = Sight(spaces, generator=generator)
        width = self.sight.observation_width + self.sight.goal_width
        self.body = EnsembleMLP(1, [width, *hidden, 1], generator=generator)

    def forward(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Values, in float32."""
        values: Tensor = self.body(flat(self.sight(observation), self.sight(goal)))
        return values[0, :, 0].float()


class IQL(Agent):
    """Implicit Q-learning.

    Args:
        config: Its settings.
        spaces: What it sees and does; actions must be continuous.
        seed: Of initial weights and every draw.
        device: Where it lives.

    Raises:
        BadInputError: When actions are discrete.
    """

    name: ClassVar[str] = "iql"
    needs_reward: ClassVar[bool] = True

    def __init__(self, config: IQLConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        continuous_only(self.name, spaces)
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        weights = torch.Generator().manual_seed(seed)
        self.actor = Policy(spaces, config.hidden, weights).to(self.device)
        self.critic = ActionValue(2, spaces, config.hidden, weights).to(self.device)
        self.value = StateValue(spaces, config.hidden, weights).to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        trained = {"actor": self.actor, "critic": self.critic, "value": self.value}
        self.modules = {**trained, "target_critic": self.target_critic}
        self.optimizers = {
            name: torch.optim.Adam(module.parameters(), lr=config.lr) for name, module in trained.items()
        }
        self._losses = prepared(self.losses, config, self.device)

    def sampling(self) -> GoalSpec:
        """Transitions with the data's goal, reward and end."""
        keys = {"observation", "action", "next_observation", "goal", "reward", "terminated"}
        return GoalSpec(frozenset(keys), discount=self.config.discount)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Losses of V, Q and the policy, all at the present parameters."""
        config, goal, action = self.config, batch["goal"], batch["action"]
        observation = batch["observation"]
        with torch.no_grad():
            best = self.target_critic(observation, goal, action).amin(dim=0)
            next_value = self.value(batch["next_observation"], goal)
        value = self.value(observation, goal)
        value_loss = expectile_loss(best - value, config.expectile)
        reward = batch["reward"] + config.reward_shift
        target = td_target(reward, batch["terminated"], next_value, config.discount)
        values = self.critic(observation, goal, action)
        critic = (values - target).square().mean(dim=1).sum() / 2
        weight = advantage_weight(best - value, config.temperature, config.largest_weight)
        loc, scale = self.actor.gaussian(observation, goal)
        likelihood = gaussian_log_likelihood(loc, scale + config.min_scale, action)
        return {
            "loss": critic,
            "actor/loss": -(weight * likelihood).mean(),
            "actor/weight": weight.mean(),
            "actor/log_likelihood": likelihood.mean(),
            "critic/loss": critic,
            "critic/value": values.mean(),
            "value/loss": value_loss,
            "value/value": value.mean(),
        }

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """One step each of V, Q, the policy and the moving average."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device))
        losses = {"critic": metrics["loss"], "value": metrics["value/loss"], "actor": metrics["actor/loss"]}
        self._watch(losses)
        descend(losses, self.optimizers)
        follow(self.target_critic, self.critic, self.config.follow_rate)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device))
        return {name: float(value) for name, value in metrics.items()}

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        loc, scale = self.actor.gaussian(observation, goal)
        action = torch.tanh(loc)
        if explore:
            noise = torch.randn(action.shape, generator=self.generator, device=self.device)
            action = (action + (scale + self.config.min_scale) * noise).clamp(-1, 1)
        return action
