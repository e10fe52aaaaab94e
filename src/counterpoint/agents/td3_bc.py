"""TD3 + BC: twin delayed deterministic policy gradients, held near the data.

A Minimalist Approach to Offline Reinforcement Learning (Fujimoto & Gu, 2021) on TD3 (Fujimoto et al., 2018); a baseline
of TD InfoNCE's offline table (Table 1). It relabels nothing: the goal is the one the episode was commanded to reach,
the reward is the data's, and observation and goal enter side by side:

    y     = r + gamma (1 - terminated) min_i Qbar_i(s', a', g),   a' = clip(pibar(s', g) + clip(.2 noise, +-.5), +-1)
    L(Q)  = sum_i E[ (Q_i(s, a, g) - y)^2 ]
    L(pi) = - lambda E[ Q_1(s, pi(s, g), g) ] + E[ ||pi(s, g) - a||^2 / A ],    lambda = 2.5 / E|Q_1|

Policy and moving averages take every second step. The authors normalise states by the data set's moments; that is left
to the data here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.base import (
    Agent,
    AgentConfig,
    Metrics,
    Spaces,
    continuous_only,
    descend,
    follow,
    kept,
    on_device,
    prepared,
)
from counterpoint.agents.ddpg_her import ActionValue, DeterministicPolicy
from counterpoint.data.draws import GoalSpec

__all__ = ["TD3BC", "TD3BCConfig", "smoothed_action", "td3_bc_actor_loss", "td_target"]


class TD3BCConfig(AgentConfig):
    """Settings of TD3 + BC: its authors', with TD InfoNCE's hidden layers.

    Attributes:
        alpha: Weight of the value against cloning.
        lr: Adam's rate for Q and the policy.
        tau: How far the moving averages follow with each of their steps.
        policy_delay: Steps of Q for each one of the policy.
        target_noise: Standard deviation of the noise on target actions.
        target_noise_clip: Its greatest size.
        exploration_noise: Standard deviation of the noise while collecting.
    """

    alpha: float = Field(default=2.5, gt=0)
    lr: float = Field(default=3e-4, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    policy_delay: int = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0)
    target_noise_clip: float = Field(default=0.5, ge=0)
    exploration_noise: float = Field(default=0.1, ge=0)


def smoothed_action(
    action: Float[Tensor, "B A"], noise: Float[Tensor, "B A"], scale: float, limit: float
) -> Float[Tensor, "B A"]:
    """An action in the neighbourhood: clipped noise added, the sum clipped to the box."""
    return (action + (scale * noise).clamp(-limit, limit)).clamp(-1, 1)


def td_target(
    reward: Float[Tensor, " B"], terminated: Bool[Tensor, " B"], next_value: Float[Tensor, " B"], discount: float
) -> Float[Tensor, " B"]:
    """r + gamma (1 - terminated) V', detached."""
    return (reward + discount * (~terminated).float() * next_value).detach()


def td3_bc_actor_loss(
    value: Float[Tensor, " B"], action: Float[Tensor, "B A"], data_action: Float[Tensor, "B A"], alpha: float
) -> Float[Tensor, ""]:
    """-lambda mean Q + mean squared error, lambda = alpha / mean |Q| without gradient."""
    weight = alpha / value.detach().abs().mean().clamp_min(1e-8)
    return -weight * value.mean() + functional.mse_loss(action, data_action)


class TD3BC(Agent):
    """TD3 + BC.

    Args:
        config: Its settings.
        spaces: What it sees and does; actions must be continuous.
        seed: Of initial weights and every draw.
        device: Where it lives.

    Raises:
        BadInputError: When actions are discrete.
    """

    name: ClassVar[str] = "td3_bc"
    needs_reward: ClassVar[bool] = True

    def __init__(
        self, config: TD3BCConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        continuous_only(self.name, spaces)
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        weights = torch.Generator().manual_seed(seed)
        self.actor = DeterministicPolicy(spaces, config.hidden, weights).to(self.device)
        self.critic = ActionValue(2, spaces, config.hidden, weights).to(self.device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.modules = {
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=config.lr),
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.lr),
        }
        self._losses = prepared(self.losses, config, self.device)

    def sampling(self) -> GoalSpec:
        """Transitions with the data's goal, reward and end."""
        keys = {"observation", "action", "next_observation", "goal", "reward", "terminated"}
        return GoalSpec(frozenset(keys), discount=self.config.discount)

    def losses(self, batch: Mapping[str, Tensor], noise: Float[Tensor, "B A"]) -> Metrics:
        """Losses of Q and the policy, both at the present parameters; `noise` is standard normal."""
        config, goal = self.config, batch["goal"]
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            mode = torch.tanh(self.target_actor(following, goal))
            next_action = smoothed_action(mode, noise, config.target_noise, config.target_noise_clip)
            next_value = self.target_critic(following, goal, next_action).amin(dim=0)
        target = td_target(batch["reward"], batch["terminated"], next_value, config.discount)
        values = self.critic(observation, goal, batch["action"])
        critic = (values - target).square().mean(dim=1).sum()
        action = torch.tanh(self.actor(observation, goal))
        reached = self.critic(observation, goal, action, frozen=True)[0]
        return {
            "loss": critic,
            "actor/loss": td3_bc_actor_loss(reached, action, batch["action"], config.alpha),
            "actor/cloning": functional.mse_loss(action, batch["action"]),
            "critic/loss": critic,
            "critic/value": values.mean(),
            "critic/target": target.mean(),
        }

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """A step of Q; at every second one also of the policy and the moving averages."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._noise(batch))
        losses = {"critic": metrics["loss"], "actor": metrics["actor/loss"]}
        self._watch(losses)
        whole = (step + 1) % self.config.policy_delay == 0
        descend(losses if whole else {"critic": metrics["loss"]}, self.optimizers)
        if whole:
            follow(self.target_actor, self.actor, self.config.tau)
            follow(self.target_critic, self.critic, self.config.tau)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch."""
        with kept(self.generator):
            metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._noise(batch))
        return {name: float(value) for name, value in metrics.items()}

    def _noise(self, batch: Mapping[str, Tensor]) -> Float[Tensor, "B A"]:
        return torch.randn(batch["action"].shape, generator=self.generator, device=self.device)

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        action = torch.tanh(self.actor(observation, goal))
        if explore:
            noise = torch.randn(action.shape, generator=self.generator, device=self.device)
            action = (action + self.config.exploration_noise * noise).clamp(-1, 1)
        return action
