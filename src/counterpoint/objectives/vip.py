"""VIP: value-implicit pre-training by the dual of goal-conditioned reinforcement learning (Ma et al., 2023).

    loss = (1 - gamma) mean[-V(o_0; g)] + log mean exp(-(r + gamma V(o_{t+1}; g) - V(o_t; g)))
    V(o; g) = -||phi(o) - phi(g)||_2,  r = 0 where o_t is the goal, -1 elsewhere

Symbols: phi(o_0), phi(g), phi(o_t), phi(o_{t+1}) -> `frames[:, 0..3]`; r -> `rewards`; gamma -> `discount`.

Where the sources differ:
  - Eq. 10 of the DecisionNCE paper prints r with the opposite sign; the sign here is that of the VIP paper.
  - The authors add the second term once more for o_t and o_{t+1} of other clips, with r = -1, and the mean L1 and L2
    norm of the embeddings; we follow both. They take negatives from a shuffled batch, in which a clip can be its own
    negative; `VIP` uses shuffles without fixed points. `vip_loss` takes the rows of the negatives as an argument.
  - The authors sample o_t before the goal, so that their r is always -1; here o_t can be the goal, as in the paper.
  - The authors add 1e-8 inside the logarithm against underflow. Here the logarithm is computed in a
    stable way without it; `epsilon=1e-8` gives their numbers.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from counterpoint.data.draws import GoalTransition
from counterpoint.data.spec import Spec
from counterpoint.objectives.base import (
    ORDER,
    Batch,
    ClipConfig,
    ClipObjective,
    Features,
    LossOutput,
    Similarity,
    check_frames,
    in_full_precision,
    negative_distance,
    norm_penalty,
    other_rows,
)


class VIPConfig(ClipConfig):
    """Settings of VIP; the defaults of the last three settings are from the authors' Ego4D configuration.

    Attributes:
        discount: Discount factor (gamma).
        num_negatives: Number of other clips that each goal is contrasted with (N).
        l1_weight: Weight of the mean L1 norm of the embeddings.
        l2_weight: Weight of the mean L2 norm of the embeddings.
    """

    discount: float = Field(default=0.98, ge=0, lt=1)
    num_negatives: int = Field(default=3, ge=0)
    l1_weight: float = Field(default=1e-3, ge=0)
    l2_weight: float = Field(default=1e-3, ge=0)


def goal_rewards(indices: Int[Tensor, "B F"]) -> Float[Tensor, " B"]:
    """Return rewards of `GoalTransition`'s steps (o_0, o_g, o_t, ...): 0 if o_t is the goal, otherwise -1."""
    return torch.where(indices[:, 2] == indices[:, 1], 0.0, -1.0)


@in_full_precision
def dual_value_loss(
    states: Float[Tensor, "B 3 D"],
    goal: Float[Tensor, "B D"],
    rewards: Float[Tensor, " B"],
    *,
    value: Similarity = negative_distance,
    discount: float = 0.98,
    negatives: Int[Tensor, "N B"] | None = None,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the loss that the module's docstring defines, for image goals or text goals.

    Args:
        states: Raw embeddings of o_0, o_t and o_{t+1}.
        goal: Raw embedding of each row's goal, an image or a text.
        rewards: r of the transition o_t -> o_{t+1}.
        value: V(o; g) from the two embeddings.
        discount: Discount factor (gamma).
        negatives: For each row, the N rows whose o_t and o_{t+1} are scored against its goal with r = -1.
        epsilon: Constant added to the means inside the logarithms; 1e-8 in the authors' code, 0 by default.
    """
    first, now, after = value(states, goal[:, None]).unbind(1)
    surprise = -(rewards.to(now.dtype) + discount * after - now)
    loss = (1 - discount) * -first.mean() + _log_mean_exp(surprise, epsilon)
    if negatives is not None and len(negatives):
        other_now, other_after = value(states[:, 1:][negatives], goal[:, None]).unbind(2)
        loss = loss + _log_mean_exp(-(-1 + discount * other_after - other_now).flatten(), epsilon)
    return loss


@in_full_precision
def vip_loss(
    frames: Float[Tensor, "B F D"],
    rewards: Float[Tensor, " B"],
    *,
    discount: float = 0.98,
    negatives: Int[Tensor, "N B"] | None = None,
    l1_weight: float = 0.0,
    l2_weight: float = 0.0,
    value: Similarity = negative_distance,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return VIP's loss, plus the authors' norm penalties if `l1_weight` and `l2_weight` are given.

    Args:
        frames: Raw embeddings of (o_0, o_g, o_t, o_{t+1}); further frames are ignored.
        rewards: 0 where o_t is the goal, -1 elsewhere (`goal_rewards`).
        discount: Discount factor (gamma).
        negatives: For each row, the N rows that it is contrasted with (`other_rows`); `None` for no contrast.
        l1_weight: Weight of the mean L1 norm of the four embeddings.
        l2_weight: Weight of the mean L2 norm of the four embeddings.
        value: V(o; g) from the two embeddings.
        epsilon: See `dual_value_loss`.
    """
    check_frames(frames, "o_0, o_g, o_t, o_{t+1}")
    states, goal = frames[:, [0, 2, 3]], frames[:, 1]
    loss = dual_value_loss(states, goal, rewards, value=value, discount=discount, negatives=negatives, epsilon=epsilon)
    return loss + norm_penalty(frames[:, :4], l1_weight, l2_weight)


def _log_mean_exp(x: Float[Tensor, " M"], epsilon: float) -> Float[Tensor, ""]:
    """Return log(epsilon + mean exp x) without overflow or underflow."""
    value = torch.logsumexp(x, 0) - math.log(len(x))
    return torch.logaddexp(value, value.new_tensor(math.log(epsilon))) if epsilon else value


class VIP(ClipObjective):
    """VIP on clips. It trains only the image tower; scores against language are not defined.

    Goals are images. Arguments are those of `ClipObjective`.
    """

    config_type = VIPConfig
    config: VIPConfig
    contrasts = False
    language = False
    reward_form = "goal"

    def sampling(self) -> Spec:
        """Return the sampling spec: the five frames that LIV samples; VIP uses only the first four."""
        return self.clips(GoalTransition()).with_transform(*ORDER)

    def encode(self, batch: Batch) -> Features:
        """Return raw embeddings `frames` [B, 4, D]; the sample's fifth frame, which only LIV uses, is not encoded."""
        return Features(rows={"frames": self.embed(batch, 4)})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `vip_loss`; metrics are the mean value of o_0 and the mean gain in value from o_t to o_{t+1}."""
        frames = features.rows["frames"]
        loss = vip_loss(
            frames,
            goal_rewards(batch["clip.indices"]),
            negatives=other_rows(batch[ORDER[0]], self.config.num_negatives),
            **self.config.model_dump(include={"discount", "l1_weight", "l2_weight"}),
        )
        with torch.no_grad():
            first, now, after = negative_distance(frames[:, [0, 2, 3]], frames[:, 1:2]).unbind(1)
        return LossOutput(loss, {"value_first": first.mean(), "value_gain": (after - now).mean()})
