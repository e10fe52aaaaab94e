"""LIV: VIP towards image goals and language goals, plus CLIP on goal frames, which ties them (Ma et al., 2023).

    L = w_image VIP(o_g) + w_text VIP(l) + w_clip CLIP(o_T, l)
    V(o; g) = cos(phi(o), phi(g)) / (1 - gamma),  V(o; l) = cos(phi(o), psi(l)) / (1 - gamma)

VIP(.) is `vip.dual_value_loss`; CLIP is the symmetric InfoNCE of cosines between each clip's last frame and
its instruction, the mean of the two directions.

Symbols: phi(o_0), phi(o_g), phi(o_t), phi(o_{t+1}), phi(o_T) -> `frames[:, 0..4]`; psi(l) -> `text`; gamma ->
`discount`.

Where the sources differ:
  - Eq. 10 of the DecisionNCE paper prints VIP's reward with the other sign, and an InfoNCE of scaled cosines;
    the authors' CLIP term has no temperature and no scale. We follow the authors.
  - The authors use one reward for both goals, which is always -1, since they sample o_t before the image goal. Here
    the reward is 0 where o_t is the image goal, which need not be the clip's last frame.
  - The authors' CLIP term uses a frame of the clip's last 5 %; here it uses the last frame.
  - The authors take negatives from a shuffled batch, in which a clip can be its own negative; `LIV` uses shuffles
    without fixed points. `liv_loss` takes the rows of the negatives as an argument.
  - The authors add 1e-8 inside VIP's logarithms; `epsilon=1e-8` gives their numbers (see `vip`).
"""

from __future__ import annotations

from functools import partial

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
    check_clips,
    check_frames,
    contrast_metrics,
    cosine,
    in_full_precision,
    other_rows,
)
from counterpoint.objectives.clip_goal import clip_goal_logits, clip_goal_loss
from counterpoint.objectives.vip import dual_value_loss, goal_rewards


class LIVConfig(ClipConfig):
    """Settings of LIV, from the authors' pretraining configuration.

    Attributes:
        discount: Discount factor (gamma).
        num_negatives: Number of other clips that each goal is contrasted with (N).
        image_weight: Weight of VIP towards the image goal.
        text_weight: Weight of VIP towards the instruction.
        clip_weight: Weight of the CLIP term.
        multi_positive: In the terms with instructions, do not use clips with the same instruction as negatives.
    """

    discount: float = Field(default=0.98, ge=0, lt=1)
    num_negatives: int = Field(default=3, ge=0)
    image_weight: float = Field(default=1.0, ge=0)
    text_weight: float = Field(default=1.0, ge=0)
    clip_weight: float = Field(default=1.0, ge=0)
    multi_positive: bool = False


@in_full_precision
def liv_loss(
    frames: Float[Tensor, "B 5 D"],
    text: Float[Tensor, "B D"],
    rewards: Float[Tensor, " B"],
    *,
    image_negatives: Int[Tensor, "N B"] | None = None,
    text_negatives: Int[Tensor, "N B"] | None = None,
    discount: float = 0.98,
    image_weight: float = 1.0,
    text_weight: float = 1.0,
    clip_weight: float = 1.0,
    labels: Int[Tensor, " B"] | None = None,
    similarity: Similarity = cosine,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return LIV's loss.

    Args:
        frames: Raw embeddings of (o_0, o_g, o_t, o_{t+1}, o_T); o_T is the clip's last frame.
        text: Raw embedding of each clip's instruction.
        rewards: 0 for rows whose o_t is o_g, -1 for other rows (`vip.goal_rewards`).
        image_negatives: For each row, the N rows that it is contrasted with under its image goal; `None` for no
            contrast.
        text_negatives: For each row, the N rows that it is contrasted with under its instruction.
        discount: Discount factor (gamma).
        image_weight: Weight of VIP towards the image goal.
        text_weight: Weight of VIP towards the instruction.
        clip_weight: Weight of the CLIP term.
        labels: Equal numbers for equal instructions; clips with equal numbers are not negatives in the CLIP term.
        similarity: Similarity of state and goal in the two value terms; the CLIP term always uses cosines.
        epsilon: See `vip.dual_value_loss`.
    """
    check_frames(frames, "o_0, o_g, o_t, o_{t+1}, o_T")
    check_clips(frames, text)

    def value(state: Tensor, goal: Tensor) -> Tensor:
        return similarity(state, goal) / (1 - discount)

    states = frames[:, [0, 2, 3]]
    values = partial(dual_value_loss, states, rewards=rewards, value=value, discount=discount, epsilon=epsilon)
    image = values(frames[:, 1], negatives=image_negatives)
    language = values(text, negatives=text_negatives)
    clip = clip_goal_loss(frames[:, 4], text, temperature=1.0, labels=labels)
    return image_weight * image + text_weight * language + clip_weight * clip


class LIV(ClipObjective):
    """LIV on clips; arguments are those of `ClipObjective`."""

    config_type = LIVConfig
    config: LIVConfig

    def sampling(self) -> Spec:
        """Return the sampling spec: frames (o_0, o_g, o_t, o_{t+1}, o_T) of each clip."""
        return self.clips(GoalTransition()).with_transform(*ORDER)

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `liv_loss`; the three InfoNCE metrics are those of its CLIP term."""
        frames, text = features.rows["frames"], features.rows["text"]
        N = self.config.num_negatives
        labels = batch["instruction_id"] if self.config.multi_positive else None
        rows = torch.cat([other_rows(batch[ORDER[0]], 2 * N)[:N], other_rows(batch[ORDER[0]], 2 * N, labels)[N:]])
        loss = liv_loss(
            frames,
            text,
            goal_rewards(batch["clip.indices"]),
            image_negatives=rows[:N],
            text_negatives=rows[N:],
            labels=labels,
            **self.config.model_dump(include={"discount", "image_weight", "text_weight", "clip_weight"}),
        )
        logits = clip_goal_logits(frames[:, 4], text, temperature=1.0)
        return LossOutput(loss, contrast_metrics(logits, labels=labels))
