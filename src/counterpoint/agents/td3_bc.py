"""TD3 + BC: twin delayed deterministic policy gradients, with a policy that stays near the data's actions.

A Minimalist Approach to Offline Reinforcement Learning (Fujimoto & Gu, 2021) on TD3 (Fujimoto et al., 2018); a baseline
of TD InfoNCE's offline table (Table 1). This agent relabels nothing: the goal is the one that the episode was commanded
to reach, and the reward is the data's. Observation and goal are concatenated:

    y     = r + gamma (1 - terminated) min_i Qbar_i(s', a', g),   a' = clip(pibar(s', g) + clip(.2 noise, +-.5), +-1)
    L(Q)  = sum_i E[ (Q_i(s, a, g) - y)^2 ]
    L(pi) = - lambda E[ Q_1(s, pi(s, g), g) ] + E[ ||pi(s, g) - a||^2 / A ],    lambda = 2.5 / E|Q_1|

The policy and the moving averages are updated at every second step. The authors normalise states by the data set's
moments. This agent does not: the data should be normalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from counterpoint.agents.base import AgentConfig, Metrics, RewardAgent
from counterpoint.agents.networks import initialise, noisy
from counterpoint.agents.situations import SituationMLP
from counterpoint.objectives.td3_bc_pretraining import smoothed_action, td3_bc_actor_loss


class TD3BCConfig(AgentConfig):
    """Settings of TD3 + BC: the authors' values, with TD InfoNCE's hidden layers.

    Attributes:
        alpha: Weight of the value relative to cloning.
        lr: Adam's learning rate for Q and the policy.
        tau: Rate of the target networks' soft update.
        policy_delay: Number of critic updates per policy update.
        target_noise: Standard deviation of the noise on target actions.
        target_noise_clip: Maximum absolute value of that noise.
        exploration_noise: Standard deviation of the noise in collection.
    """

    alpha: float = Field(default=2.5, gt=0)
    lr: float = Field(default=3e-4, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    policy_delay: int = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0)
    target_noise_clip: float = Field(default=0.5, ge=0)
    exploration_noise: float = Field(default=0.1, ge=0)


def td_target(
    reward: Float[Tensor, " B"], terminated: Bool[Tensor, " B"], next_value: Float[Tensor, " B"], discount: float
) -> Float[Tensor, " B"]:
    """Return r + gamma (1 - terminated) V', detached."""
    return (reward + discount * (~terminated).float() * next_value).detach()


class TD3BC(RewardAgent):
    """TD3 + BC, for continuous actions; arguments as for `Agent`."""

    name: ClassVar[str] = "td3_bc"
    value_name: ClassVar[str] = "Q(s, a, g) at the policy's action, minimum over twins"
    config: TD3BCConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the policy, the twin Q and their target networks."""
        config, A = self.config, self.spaces.action
        actor = SituationMLP(self.spaces, config.hidden, A, weights)
        critic = SituationMLP(self.spaces, config.hidden, 1, weights, members=2, actions=A)
        for module in (actor, critic):
            initialise(module, "torch", weights)
        self.critic, self.target_critic = self.tracked("critic", critic, config.lr, config.tau)
        self.actor, self.target_actor = self.tracked("actor", actor, config.lr, config.tau)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample the noise of target actions."""
        return {"noise": torch.randn(rows, self.spaces.action, generator=generator, device=self.device)}

    def critic_alone(self, step: int) -> bool:
        """Return False at every `policy_delay`-th step, when the policy and the targets are updated too."""
        return (step + 1) % self.config.policy_delay != 0

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of Q and the policy."""
        config, goal = self.config, batch["goal"]
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            mode = torch.tanh(self.target_actor(following, goal)[0])
            next_action = smoothed_action(
                mode, batch["noise"], scale=config.target_noise, limit=config.target_noise_clip
            )
            next_value = self.target_critic(following, goal, next_action)[..., 0].amin(dim=0)
        target = td_target(batch["reward"], batch["terminated"], next_value, config.discount)
        values = self.critic(observation, goal, batch["action"])[..., 0]
        critic = (values - target).square().mean(dim=1).sum()
        action = torch.tanh(self.actor(observation, goal)[0])
        reached = self.critic(observation, goal, action, frozen=True)[0, :, 0]
        return {
            "loss": critic,
            "actor/loss": td3_bc_actor_loss(reached, action, batch["action"], alpha=config.alpha),
            "actor/cloning": functional.mse_loss(action, batch["action"]),
            "critic/loss": critic,
            "critic/value": values.mean(),
            "critic/target": target.mean(),
        }

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return the minimum over the twin Q at the policy's action."""
        found: Tensor = self.critic(observation, goal, self.choose(observation, goal, (), None))
        return found[..., 0].amin(dim=0)

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Return the policy's action, with noise when exploring."""
        action = torch.tanh(self.actor(observation, goal)[0])
        return noisy(action, self.config.exploration_noise, explore) if explore else action
