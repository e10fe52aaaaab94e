"""Policy pretraining: multi-task TD3 + BC on logged transitions; only the encoder is kept.

Fujimoto & Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021, on embeddings z_t = phi(o_t), as
Premier-TACO pretrains policies (section 4, "Policy Pretraining"; batch 1024 and learning rate 1e-4 in Appendix C).

    a'       = clip(pibar(z_{t+1}) + clip(0.2 noise, -0.5, 0.5), -1, 1)
    y        = r_t + gamma min_i Qbar_i(z_{t+1}, a')
    critic   = sum_i mean (Q_i(z_t, a_t) - y)^2
    actor    = -lambda mean Q_1(z_t, pi(z_t)) + ||pi(z_t) - a_t||^2,  lambda = 2.5 / mean |Q_1|
    loss     = critic + actor; no gradient of the actor's loss reaches Q

pibar and Qbar are moving averages of pi and Q. They and the policy are updated every second step; at the other steps
the actor's loss is reported but not trained.

Where the sources differ, or do not say:
  - Premier-TACO does not say which loss trains phi. DrQ-v2, and DrQ + BC after it, train phi only by the critic's loss:
    `encoder_learns_from = "critic"`. With "both", the actor's loss reaches phi through the policy, but not through Q;
    otherwise phi could raise the value of Q by itself.
  - TD3 keeps a moving average of every network that computes targets; DrQ-v2 has no average of phi. We follow DrQ-v2:
    z_{t+1} is computed by the current phi, without a gradient.
  - Episodes of Meta-World and the control suite end only by a time limit, so y has no term for termination.
  - The cloning term is a mean over unpadded action dimensions; padded dimensions are 0 in all inputs of Q.
  - There is one Q for all tasks. Its input is the observation without the task, and rewards are not scaled.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from counterpoint.data.augment import Noise
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.errors import require
from counterpoint.objectives.action_prediction import action_error, constant_action_error
from counterpoint.objectives.base import (
    Batch,
    Features,
    LossOutput,
    frozen_copy,
    in_full_precision,
    require_shapes,
    soft_update,
)
from counterpoint.objectives.steps import StepConfig, StepObjective, check_actions, perceptron


class TD3BCPretrainingConfig(StepConfig):
    """Settings of TD3 + BC: the authors' values, with heads as wide as Premier-TACO's.

    Attributes:
        alpha: Weight of the value relative to cloning.
        discount: Discount factor (gamma).
        ema: Rate of the soft updates of the target networks.
        actor_every: Number of critic updates per policy update.
        target_noise: Standard deviation of the noise on target actions.
        target_noise_clip: Maximum absolute value of that noise.
        hidden: Width of the two hidden layers of policy and Q.
        encoder_learns_from: Losses whose gradients reach the encoder: only the critic's, or both.
    """

    alpha: float = Field(default=2.5, gt=0)
    discount: float = Field(default=0.99, ge=0, lt=1)
    ema: float = Field(default=0.005, gt=0, le=1)
    actor_every: int = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0)
    target_noise_clip: float = Field(default=0.5, ge=0)
    hidden: int = Field(default=1024, ge=1)
    encoder_learns_from: Literal["critic", "both"] = "critic"


def smoothed_action(
    action: Float[Tensor, "B A"], noise: Float[Tensor, "B A"], *, scale: float, limit: float
) -> Float[Tensor, "B A"]:
    """Add clipped noise to an action, and clip the sum to [-1, 1].

    Args:
        action: Actions in [-1, 1].
        noise: Standard normal numbers.
        scale: Standard deviation of the noise.
        limit: Maximum absolute value of the noise.
    """
    return (action + (scale * noise).clamp(-limit, limit)).clamp(-1, 1)


@torch.no_grad()
@in_full_precision
def td3_target(
    rewards: Float[Tensor, " B"], next_values: Float[Tensor, "B 2"], *, discount: float
) -> Float[Tensor, " B"]:
    """Return the target y of transitions that never terminate: r + gamma times the twins' minimum, without gradient.

    Args:
        rewards: r_t.
        next_values: Values of both target critics Qbar for the next embedding and the smoothed target action.
        discount: Discount factor (gamma).
    """
    return rewards + discount * next_values.amin(1)


@in_full_precision
def td3_critic_loss(values: Float[Tensor, "B 2"], targets: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Return squared errors, mean over rows and summed over twins.

    Args:
        values: Values of both Q for the data's embeddings and actions.
        targets: y (`td3_target`).
    """
    ok = values.ndim == 2 and values.shape[:1] == targets.shape
    hint = "pass both Q of each transition, and its one target"
    require_shapes(ok, "values, targets", (values, targets), "[B, 2] and [B]", hint)
    return (values - targets.detach()[:, None]).square().mean(0).sum()


@in_full_precision
def td3_bc_actor_loss(
    value: Float[Tensor, " B"],
    action: Float[Tensor, "B A"],
    data_action: Float[Tensor, "B A"],
    *,
    alpha: float,
    mask: Bool[Tensor, "B A"] | None = None,
) -> Float[Tensor, ""]:
    """Return -lambda mean Q + mean squared error over unpadded dimensions, lambda = alpha / mean |Q| without gradient.

    Args:
        value: Q_1 of the policy's actions.
        action: The policy's actions.
        data_action: The data's actions a_t, with zeros outside the mask.
        alpha: Weight of the value relative to cloning.
        mask: True at a row's unpadded dimensions; by default all are True.
    """
    mask = torch.ones_like(action, dtype=torch.bool) if mask is None else mask
    weight = alpha / value.detach().abs().mean().clamp_min(1e-8)
    return action_error(action, data_action, mask=mask) - weight * value.mean()


class TwinCritic(nn.Module):
    """Two Q functions of the same embeddings and actions.

    Args:
        embed_dim: Dimensions of an embedding (D).
        action_dim: Number of action dimensions (A).
        hidden: Width of the two hidden layers.
    """

    def __init__(self, embed_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.twins = nn.ModuleList(perceptron(embed_dim + action_dim, hidden, hidden, 1) for _ in range(2))

    def forward(self, state: Float[Tensor, "B D"], action: Float[Tensor, "B A"]) -> Float[Tensor, "B 2"]:
        """Return both values."""
        both = torch.cat([state, action], 1)
        return torch.cat([twin(both) for twin in self.twins], 1)


class TD3BCPretraining(StepObjective):
    """TD3 + BC on transitions, with one loss and one optimiser.

    Arguments are those of `StepObjective`; actions lie in [-1, 1].
    """

    config_type = TD3BCPretrainingConfig
    config: TD3BCPretrainingConfig
    updates: Tensor

    def build(self, D: int) -> None:
        """Create the policy, the twin Q and their target networks."""
        hidden = self.config.hidden
        self.actor = nn.Sequential(perceptron(D, hidden, hidden, self.action_dim), nn.Tanh()).apply(drq_weights)
        self.critic = TwinCritic(D, self.action_dim, hidden).apply(drq_weights)
        self.target_actor = frozen_copy(self.actor)
        self.target_critic = frozen_copy(self.critic)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def sampling(self) -> Spec:
        """Return the sampling spec: an observation, its action and reward, the next observation, and noise."""
        return self.steps((0, 1), 1, rewards=True).with_transform("noise", Noise((self.action_dim,)))

    def encode(self, batch: Batch) -> Features:
        """Return what both losses need besides the batch.

        For the critic's loss: `values` [B, 2], both critics' values of the data's actions, and their `targets` [B]. For
        the policy's loss: `policy` [B, A], the policy's actions, and `policy_value` [B], their value Q_1.

        Raises:
            BadInputError: If actions do not have A dimensions, or there are several ranks and `actor_every` is not 1.
        """
        check_actions(batch["actions"], 1, self.action_dim)
        views = self.views(batch)
        state = self.embed(views[:, :1], batch)[:, 0]
        actions = batch["actions"][:, 0] * batch["action_mask"]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._is_actors_turn()):
            policy, policy_value = self._judged(state, batch["action_mask"])
        rows = {"values": self.critic(state, actions), "targets": self._targets(views, batch)}
        return Features(rows | {"policy": policy, "policy_value": policy_value})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the sum of both losses; metrics compare errors with the error of the batch's mean target or action."""
        rows, mask, actions = features.rows, batch["action_mask"], batch["actions"][:, 0]
        critic = td3_critic_loss(rows["values"], rows["targets"])
        actor = td3_bc_actor_loss(rows["policy_value"], rows["policy"], actions, alpha=self.config.alpha, mask=mask)
        metrics = {
            "critic_loss": critic,
            "critic_loss_constant": 2 * rows["targets"].var(correction=0),
            "actor_loss": actor,
            "value": rows["values"].mean(),
            "action_error": action_error(rows["policy"], actions, mask=mask),
            "action_error_constant": constant_action_error(actions, mask=mask),
        }
        return LossOutput(critic + actor, metrics)

    def after_step(self) -> None:
        """Count the step; after a step of the policy, update the moving averages."""
        if self._is_actors_turn():
            soft_update(self.target_actor, self.actor, self.config.ema)
            soft_update(self.target_critic, self.critic, self.config.ema)
        self.updates += 1

    def _is_actors_turn(self) -> bool:
        """Return True if the current step updates the policy; as in TD3, the first step does not."""
        every = self.config.actor_every
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        expected = "1: ranks wait for every parameter's gradient at every step"
        hint = "set it to 1, or train in one process"
        require(every == 1 or ranks == 1, "objective.actor_every", f"{every} under {ranks} ranks", expected, hint)
        return (int(self.updates) + 1) % every == 0

    def _judged(self, state: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's actions and their values Q_1, with gradients for the policy but not for Q."""
        learning = self.config.encoder_learns_from == "both"
        policy = self.actor(state if learning else state.detach()) * mask
        fixed = {name: value.detach() for name, value in self.critic.named_parameters()}
        value: Tensor = functional_call(self.critic, fixed, (state.detach(), policy))[:, 0]
        return policy, value

    @torch.no_grad()
    def _targets(self, views: Tensor, batch: Batch) -> Tensor:
        after = self.embed(views[:, 1:], batch)[:, 0]
        action = self.target_actor(after)
        action = smoothed_action(
            action, batch["noise"], scale=self.config.target_noise, limit=self.config.target_noise_clip
        )
        values = self.target_critic(after, action * batch["action_mask"])
        return td3_target(batch["rewards"][:, 0], values, discount=self.config.discount)
