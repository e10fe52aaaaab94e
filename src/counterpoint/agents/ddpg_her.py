"""DDPG + HER: a deterministic actor-critic whose failures are read as successes at other goals.

Hindsight Experience Replay (Andrychowicz et al., 2017) on DDPG (Lillicrap et al., 2016); a baseline of TD InfoNCE
(section 4.1). A share of the batch's commanded goals is replaced by futures of the same episode, and the reward is
computed anew:

    r(s', g) = 0 where ||m(s') - g|| <= success distance, else -1        m(s') the goal coordinates of s'
    y        = clip(r + gamma Qbar(s', pibar(s', g), g), -1 / (1 - gamma), 0)
    L(Q)     = E[ (Q(s, a, g) - y)^2 ]
    L(pi)    = - E[ Q(s, pi(s, g), g) ] + c E[ ||u(s, g)||^2 / A ],      pi = tanh(u)

Qbar, pibar are moving averages; the clip is the range of returns that the reward allows. Success does not end an
episode, so `terminated` is not read. The last term keeps u, the action before its tanh, where tanh still has a slope
(OpenAI baselines penalise the squashed action instead, which this bounds too). While collecting: Gaussian noise of
0.2, and with probability 0.3 a uniform action. HER draws futures uniformly from the rest of the episode;
`future_discount` near 1 comes close. HER normalises inputs by their running moments, which is left to the data here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
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
from counterpoint.agents.critics import Sight
from counterpoint.agents.networks import EnsembleMLP, flat
from counterpoint.data.draws import GoalSpec

__all__ = [
    "DDPGHER",
    "ActionValue",
    "DDPGHERConfig",
    "DeterministicPolicy",
    "clipped_target",
    "hindsight_goals",
    "hindsight_reward",
]


class DDPGHERConfig(AgentConfig):
    """Settings of DDPG + HER: the HER paper's, with TD InfoNCE's hidden layers.

    Attributes:
        relabel: Share of goals replaced by futures; k = 4 futures per commanded goal is 0.8.
        future_discount: gamma of the futures' distribution.
        actor_lr: Adam's rate for the policy.
        critic_lr: Adam's rate for Q.
        tau: How far the moving averages follow with each update.
        action_penalty: c.
        exploration_noise: Standard deviation of the noise, in units of the action box's half-width.
        exploration_random: Probability of a uniform action instead.
    """

    relabel: float = Field(default=0.8, ge=0, le=1)
    future_discount: float = Field(default=0.999, gt=0, lt=1)
    actor_lr: float = Field(default=1e-3, gt=0)
    critic_lr: float = Field(default=1e-3, gt=0)
    tau: float = Field(default=0.005, gt=0, le=1)
    action_penalty: float = Field(default=1.0, ge=0)
    exploration_noise: float = Field(default=0.2, ge=0)
    exploration_random: float = Field(default=0.3, ge=0, le=1)


def hindsight_goals(goal: Tensor, future_goal: Tensor, relabelled: Bool[Tensor, " B"]) -> Tensor:
    """Futures where `relabelled`, commanded goals elsewhere; [B, G] or pictures [B, H, W, C]."""
    return torch.where(relabelled.reshape(-1, *[1] * (goal.dim() - 1)), future_goal, goal)


def hindsight_reward(next_goal: Tensor, goal: Tensor, success_distance: float) -> Float[Tensor, " B"]:
    """0 where the next state is within `success_distance` of the goal, else -1; pictures are compared by pixels."""
    apart: Tensor = torch.linalg.vector_norm((next_goal.float() - goal.float()).flatten(1), dim=1)
    return (apart <= success_distance).float() - 1


def clipped_target(
    reward: Float[Tensor, " B"], next_value: Float[Tensor, " B"], discount: float
) -> Float[Tensor, " B"]:
    """clip(r + gamma Qbar', -1 / (1 - gamma), 0), detached."""
    return (reward + discount * next_value).clamp(-1 / (1 - discount), 0).detach()


class DeterministicPolicy(nn.Module):
    """pi(s, g) = tanh(u(s, g)).

    Args:
        spaces: What the agent sees and does.
        hidden: Widths of the hidden layers.
        generator: Of the initial weights.
    """

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sight = Sight(spaces, generator=generator)
        width = self.sight.observation_width + self.sight.goal_width
        self.body = EnsembleMLP(1, [width, *hidden, spaces.action], generator=generator)

    def forward(self, observation: Tensor, goal: Tensor) -> Float[Tensor, "B A"]:
        """u, the action before its tanh, in float32."""
        before: Tensor = self.body(flat(self.sight(observation), self.sight(goal)))[0]
        return before.float()


class ActionValue(nn.Module):
    """Q(s, a, g) of E critics; convolutions for pictures are shared among them.

    Args:
        members: E.
        spaces: What the agent sees and does.
        hidden: Widths of the hidden layers.
        generator: Of the initial weights.
    """

    def __init__(
        self, members: int, spaces: Spaces, hidden: tuple[int, ...], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.sight = Sight(spaces, generator=generator)
        width = self.sight.observation_width + self.sight.goal_width + spaces.action
        self.body = EnsembleMLP(members, [width, *hidden, 1], generator=generator)

    def forward(
        self, observation: Tensor, goal: Tensor, action: Float[Tensor, "B A"], *, frozen: bool = False
    ) -> Float[Tensor, "E B"]:
        """Values, in float32; `frozen` lets gradients flow to the action and not to the parameters."""
        seen = flat(self.sight(observation), self.sight(goal))
        values: Tensor = self.body(flat(seen.detach() if frozen else seen, action), frozen=frozen)
        return values[..., 0].float()


class DDPGHER(Agent):
    """DDPG with hindsight experience replay.

    Args:
        config: Its settings.
        spaces: What it sees and does; actions must be continuous.
        seed: Of initial weights and every draw.
        device: Where it lives.

    Raises:
        BadInputError: When actions are discrete.
    """

    name: ClassVar[str] = "ddpg_her"

    def __init__(
        self, config: DDPGHERConfig, spaces: Spaces, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        continuous_only(self.name, spaces)
        super().__init__(config, spaces, seed=seed, device=device)
        self.config = config
        weights = torch.Generator().manual_seed(seed)
        self.actor = DeterministicPolicy(spaces, config.hidden, weights).to(self.device)
        self.critic = ActionValue(1, spaces, config.hidden, weights).to(self.device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.modules = {
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=config.actor_lr),
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.critic_lr),
        }
        self._losses = prepared(self.losses, config, self.device)

    def sampling(self) -> GoalSpec:
        """Transitions, the commanded goal and a future one."""
        keys = {"observation", "action", "next_observation", "next_goal", "goal", "future_goal"}
        return GoalSpec(frozenset(keys), discount=self.config.future_discount)

    def losses(self, batch: Mapping[str, Tensor], relabelled: Bool[Tensor, " B"]) -> Metrics:
        """Losses of Q and the policy, both at the present parameters."""
        observation, following = batch["observation"], batch["next_observation"]
        goal = hindsight_goals(batch["goal"], batch["future_goal"], relabelled)
        reward = hindsight_reward(batch["next_goal"], goal, self.spaces.success_distance)
        with torch.no_grad():
            next_action = torch.tanh(self.target_actor(following, goal))
            next_value = self.target_critic(following, goal, next_action)[0]
        target = clipped_target(reward, next_value, self.config.discount)
        value = self.critic(observation, goal, batch["action"])[0]
        critic = functional.mse_loss(value, target)
        before = self.actor(observation, goal)
        reached = -self.critic(observation, goal, torch.tanh(before), frozen=True)[0].mean()
        penalty = before.square().mean()
        return {
            "loss": critic,
            "actor/loss": reached + self.config.action_penalty * penalty,
            "actor/penalty": penalty,
            "critic/loss": critic,
            "critic/value": value.mean(),
            "critic/target": target.mean(),
            "critic/reached": (reward == 0).float().mean(),
        }

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """One step each of Q, the policy and the moving averages."""
        metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._draw(batch))
        losses = {"critic": metrics["loss"], "actor": metrics["actor/loss"]}
        self._watch(losses)
        descend(losses, self.optimizers)
        follow(self.target_actor, self.actor, self.config.tau)
        follow(self.target_critic, self.critic, self.config.tau)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The losses on a batch."""
        with kept(self.generator):
            metrics = self._losses(on_device(batch, self.sampling().keys, self.device), self._draw(batch))
        return {name: float(value) for name, value in metrics.items()}

    def _draw(self, batch: Mapping[str, Tensor]) -> Bool[Tensor, " B"]:
        drawn = torch.rand(len(batch["action"]), generator=self.generator, device=self.device)
        return drawn < self.config.relabel

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: bool) -> Tensor:
        """See `Agent.choose`."""
        action = torch.tanh(self.actor(observation, goal))
        if explore:
            generator, device = self.generator, self.device
            noise = torch.randn(action.shape, generator=generator, device=device)
            uniform = 2 * torch.rand(action.shape, generator=generator, device=device) - 1
            at_random = torch.rand(len(action), 1, generator=generator, device=device)
            noisy = (action + self.config.exploration_noise * noise).clamp(-1, 1)
            action = torch.where(at_random < self.config.exploration_random, uniform, noisy)
        return action
