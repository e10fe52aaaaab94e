"""DDPG + HER: a deterministic actor-critic that treats failures as successes at other goals.

Hindsight Experience Replay (Andrychowicz et al., 2017) on DDPG (Lillicrap et al., 2016); a baseline of TD InfoNCE
(section 4.1). A share of the batch's commanded goals is replaced by future states of the same episode, and the reward
is recomputed:

    r(s', g) = 0 if ||m(s') - g|| <= success distance, else -1           m(s') the goal coordinates of s'
    y        = clip(r + gamma Qbar(s', pibar(s', g), g), -1 / (1 - gamma), 0)
    L(Q)     = E[ (Q(s, a, g) - y)^2 ]
    L(pi)    = - E[ Q(s, pi(s, g), g) ] + c E[ ||u(s, g)||^2 / A ],      pi = tanh(u)

Qbar and pibar are moving averages; y is clipped to the range of possible returns. Success does not end an episode, so
`terminated` is not read. The last term keeps u, the action before its tanh, in the range where tanh has a slope. (The
OpenAI baselines penalise the squashed action instead; this term bounds the squashed action too.) When collecting data,
the agent adds Gaussian noise of 0.2, and with probability 0.3 takes a uniform action. HER samples futures uniformly
from the rest of the episode, which `future_discount` near 1 approximates. States and goals are standardised by the
moments of all batches so far and clipped to [-5, 5], as in the OpenAI baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.agents.base import Agent, AgentConfig, Metrics
from counterpoint.agents.networks import initialise, noisy
from counterpoint.agents.situations import SituationMLP
from counterpoint.data.spec import Spec


class DDPGHERConfig(AgentConfig):
    """Settings of DDPG + HER: the HER paper's, with TD InfoNCE's hidden layers.

    Attributes:
        relabel: Share of goals replaced by future states; HER's 4 futures per commanded goal (k = 4) give 0.8.
        future_discount: Discount of the geometric distribution that futures are sampled from.
        actor_lr: Adam's learning rate for the policy.
        critic_lr: Adam's learning rate for Q.
        tau: Rate of the target networks' soft update.
        action_penalty: Weight of the penalty on the action before its tanh (c).
        exploration_noise: Standard deviation of the noise in collection, in units of the action box's half-width.
        exploration_random: Probability of a uniform action instead of the policy's action in collection.
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
    """Return `future_goal` in rows with `relabelled`, `goal` in other rows; [B, G] or images [B, H, W, C]."""
    return torch.where(relabelled.reshape(-1, *[1] * (goal.dim() - 1)), future_goal, goal)


def hindsight_reward(next_goal: Tensor, goal: Tensor, success_distance: float) -> Float[Tensor, " B"]:
    """Return 0 if the next state is within `success_distance` of the goal, else -1; images are compared by pixels."""
    apart: Tensor = torch.linalg.vector_norm((next_goal.float() - goal.float()).flatten(1), dim=1)
    return (apart <= success_distance).float() - 1


def clipped_target(
    reward: Float[Tensor, " B"], next_value: Float[Tensor, " B"], discount: float
) -> Float[Tensor, " B"]:
    """Return clip(r + gamma Qbar', -1 / (1 - gamma), 0), detached."""
    return (reward + discount * next_value).clamp(-1 / (1 - discount), 0).detach()


class RunningMoments(nn.Module):
    """Standardises vectors by the mean and the standard deviation of all rows seen so far; the first are 0 and 1.

    Args:
        width: Number of dimensions.
    """

    least_deviation: ClassVar[float] = 0.01
    largest: ClassVar[float] = 5.0
    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def add(self, rows: Float[Tensor, "B D"]) -> None:
        """Count these rows too (Chan et al., 1979)."""
        total = self.count + len(rows)
        share = len(rows) / total
        apart = rows.mean(0) - self.mean
        within = rows.var(0, correction=0) - self.variance
        self.mean += share * apart
        self.variance += share * within + share * (1 - share) * apart.square()
        self.count.copy_(total)

    def forward(self, rows: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return the rows standardised and clipped to [-5, 5]."""
        deviation = self.variance.sqrt().clamp(min=self.least_deviation)
        return ((rows - self.mean) / deviation).clamp(-self.largest, self.largest)


class DDPGHER(Agent):
    """DDPG with hindsight experience replay, for continuous actions; arguments as for `Agent`."""

    name: ClassVar[str] = "ddpg_her"
    value_name: ClassVar[str] = "Q(s, a, g) at the policy's action"
    continuous_only: ClassVar[bool] = True
    reads = frozenset({"observation", "action", "next_observation", "next_goal", "goal", "future_goal"})
    config: DDPGHERConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the policy, Q and their target networks."""
        config, A = self.config, self.spaces.action
        actor = SituationMLP(self.spaces, config.hidden, A, weights)
        critic = SituationMLP(self.spaces, config.hidden, 1, weights, actions=A)
        for module in (actor, critic):
            initialise(module, "glorot", weights)
        self.critic, self.target_critic = self.tracked("critic", critic, config.critic_lr, config.tau)
        self.actor, self.target_actor = self.tracked("actor", actor, config.actor_lr, config.tau)
        shapes = {"observation": self.spaces.observation, "goal": self.spaces.goal}
        self.moments = {name: RunningMoments(shape[0]) for name, shape in shapes.items() if len(shape) == 1}
        if self.moments:
            self.modules["moments"] = nn.ModuleDict(self.moments).to(self.device)

    def sampling(self) -> Spec:
        """Return the spec of a batch, with futures sampled at `future_discount`."""
        return Spec.transitions(self.reads, discount=self.config.future_discount)

    def noise(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Choose the rows whose goals are replaced."""
        relabelled = torch.rand(rows, generator=generator, device=self.device) < self.config.relabel
        return {"relabelled": relabelled}

    def learned_from(self, inputs: Mapping[str, Tensor]) -> None:
        """Count the states, and the goals, commanded or replaced."""
        goal = hindsight_goals(inputs["goal"], inputs["future_goal"], inputs["relabelled"])
        for name, rows in (("observation", inputs["observation"]), ("goal", goal)):
            if name in self.moments:
                self.moments[name].add(rows)

    def standardised(self, name: str, values: Tensor) -> Tensor:
        """Return observations or goals (`name`) as the networks read them; images stay unchanged."""
        return self.moments[name](values) if name in self.moments else values

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the losses of Q and the policy."""
        goal = hindsight_goals(batch["goal"], batch["future_goal"], batch["relabelled"])
        reward = hindsight_reward(batch["next_goal"], goal, self.spaces.success_distance)
        goal = self.standardised("goal", goal)
        observation, following = (
            self.standardised("observation", batch[key]) for key in ("observation", "next_observation")
        )
        with torch.no_grad():
            next_action = torch.tanh(self.target_actor(following, goal)[0])
            next_value = self.target_critic(following, goal, next_action)[0, :, 0]
        target = clipped_target(reward, next_value, self.config.discount)
        value = self.critic(observation, goal, batch["action"])[0, :, 0]
        critic = functional.mse_loss(value, target)
        before = self.actor(observation, goal)[0]
        reached = -self.critic(observation, goal, torch.tanh(before), frozen=True).mean()
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

    def value(self, observation: Tensor, goal: Tensor) -> Float[Tensor, " B"]:
        """Return Q at the policy's action."""
        inputs = self.standardised("observation", observation), self.standardised("goal", goal)
        found: Tensor = self.critic(*inputs, torch.tanh(self.actor(*inputs)[0]))
        return found[0, :, 0]

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Return the policy's action; with exploration, noise is added or the action is replaced by a uniform one."""
        inputs = self.standardised("observation", observation), self.standardised("goal", goal)
        action = torch.tanh(self.actor(*inputs)[0])
        if explore is None:
            return action
        near = noisy(action, self.config.exploration_noise, explore)
        uniform = 2 * torch.rand(action.shape, generator=explore, device=self.device) - 1
        at_random = torch.rand(len(action), 1, generator=explore, device=self.device)
        return torch.where(at_random < self.config.exploration_random, uniform, near)
