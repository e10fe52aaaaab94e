"""DecisionNCE: contrast of segments and instructions by implicit preference (Li et al., ICML 2024; arXiv 2402.18137).

    -P (Eq. 3, 4)    r(i, j) = S(phi(o_{n+m}^i), psi(l^j)) - S(phi(o_n^i), psi(l^j)),  S the cosine
    -T (Eq. 6)       r(i, j) = S(phi(o_{n+m}^i) - phi(o_n^i), psi(l^j))
    loss (Eq. 5, 7)  InfoNCE of r / temperature, the mean of both directions: each instruction among the
                     batch's segments, each segment among the batch's instructions

Symbols: phi(o_n^i), ..., phi(o_{n+m}^i) -> `frames[i]`; psi(l^j) -> `text[j]`; r -> `potential_rewards`,
`transition_rewards`; m depends on how frames are sampled (`draw`).

Where the sources differ:
  - The denominators of Algorithm 1 as printed pair each segment only with its own instruction; we follow Eq. 5 and 7.
  - Eq. 5 and 7 have no temperature; the authors fix 0.01 (a logit scale of 100). Algorithm 1 sums the two
    directions, the authors take their mean. We follow the authors.
  - More than two frames: -T sums the cosines of consecutive differences (Eq. 24 and 25, Appendix E.2). -P telescopes to
    last minus first: frames in between have no effect. The authors' -P subtracts the earlier half of the frames from
    the later half (`decisionnce_p_loss_halves`). With three frames their code broadcasts; here that is an error.
  - S(0, psi) is undefined. The authors divide by ||difference|| + 1e-6, so that equal frames get millions of times the
    gradient of others. Here that form is used if the difference is at least `STILL` times the frames' norm. Below this
    threshold, reward and gradient go smoothly to 0, since equal frames have no direction.
  - For a clip of h frames, the probabilities of Eq. 8 as printed sum to (h-1)/h; `draws.StartGoal` corrects this. The
    authors sample `draws.SortedUniform`.
  - If an instruction occurs twice in a batch, it is a false negative (Appendix F, limitation 1); `labels` avoids this.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from counterpoint.data.draws import SortedUniform, StartGoal
from counterpoint.data.spec import Spec
from counterpoint.encoders.calibration import RewardForm
from counterpoint.errors import require
from counterpoint.objectives.base import (
    Batch,
    ClipConfig,
    ClipObjective,
    Features,
    LossOutput,
    check_clips,
    contrast_metrics,
    in_full_precision,
    symmetric_infonce,
    unit,
)
from counterpoint.objectives.clip_goal import clip_goal_logits

STILL = 1e-3
"""Differences below this share of the two frames' root mean square norm count as no change.

This share is about the difference between two equal frames after rounding to half precision.
"""

EPSILON = 1e-6  # the authors' addition to the norm of a difference


class DecisionNCEConfig(ClipConfig):
    """Settings of both variants. The paper's recipes switch `augment` on.

    Attributes:
        temperature: Divisor of the rewards; the authors use 0.01. For random initial weights 0.1 works better.
        frames: Number of frames per segment (F): 2 in the paper's method; 5 and 9 give
            Appendix E.2's variants of -T with 4 and 8 steps.
        draw: How frames are sampled: `start_goal` as in section 3.2, `sorted_uniform` as in the authors' code.
        multi_positive: If true, clips that share an instruction are not negatives of each other.
        unique_instructions: Draw one clip of each distinct instruction in each epoch, as the authors' loader does.
        clip_weight: Weight of CLIP's loss on each of the F frames. The paper does not have this term. It
            trains every frame to match the instruction of its own clip.
    """

    temperature: float = Field(default=0.01, gt=0)
    frames: int = Field(default=2, ge=2)
    draw: Literal["start_goal", "sorted_uniform"] = "start_goal"
    multi_positive: bool = False
    unique_instructions: bool = False
    clip_weight: float = Field(default=0.0, ge=0)


@in_full_precision
def potential_rewards(frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"]) -> Float[Tensor, "B L"]:
    """Return DecisionNCE-P's reward of segment i under instruction j (Eq. 4), in [-2, 2].

    Frames between the ends do not matter.

    Args:
        frames: Raw embeddings, F >= 2.
        text: Raw embeddings.
    """
    check_clips(frames, text, least=2, paired=False)
    return (unit(frames[:, -1]) - unit(frames[:, 0])) @ unit(text).T


@in_full_precision
def transition_rewards(frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"]) -> Float[Tensor, "B L"]:
    """Return DecisionNCE-T's reward of segment i under instruction j (Eq. 6, 24, 25), in [-(F-1), F-1].

    Equal frames add 0.

    Args:
        frames: Raw embeddings, F >= 2.
        text: Raw embeddings.
    """
    check_clips(frames, text, least=2, paired=False)
    return _directions(frames).sum(1) @ unit(text).T


def decisionnce_p_loss(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return DecisionNCE-P's loss (Eq. 5).

    Args:
        frames: Raw embeddings of each segment's frames in order, F >= 2.
        text: Raw embeddings of the segments' instructions.
        temperature: Divisor of the rewards.
        labels: Equal numbers for equal instructions; clips with equal numbers are not each other's negatives.
    """
    check_clips(frames, text, least=2)
    return symmetric_infonce(potential_rewards(frames, text) / temperature, labels=labels)


def decisionnce_t_loss(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return DecisionNCE-T's loss (Eq. 7; with more than two frames Eq. 24 and 25).

    Takes the arguments of `decisionnce_p_loss`.
    """
    check_clips(frames, text, least=2)
    return symmetric_infonce(transition_rewards(frames, text) / temperature, labels=labels)


@in_full_precision
def decisionnce_p_loss_halves(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return the authors' -P loss for even F: similarities of the later half of the frames minus the earlier half's.

    Not in the paper. Takes the arguments of `decisionnce_p_loss`, which it equals for two frames.

    Raises:
        BadInputError: If F is odd.
    """
    check_clips(frames, text, least=2)
    F = frames.shape[1]
    require(F % 2 == 0, "frames", f"{F} frames a clip", "an even number", "drop a frame, or use decisionnce_p_loss")
    directions = unit(frames)
    later_less_earlier = directions[:, F // 2 :].sum(1) - directions[:, : F // 2].sum(1)
    return symmetric_infonce(later_less_earlier @ unit(text).T / temperature, labels=labels)


def _directions(frames: Float[Tensor, "B F D"]) -> Float[Tensor, "B F-1 D"]:
    """Return unit vectors from each frame to the next; they are shorter, down to 0, if the frames are almost equal.

    With x = length / still, a vector's length is x^2 (2 - x^2) for x < 1, and 1 for x >= 1. This is differentiable, and
    its slope is at most 1.54 / still, whereas 1 / length grows without bound. `still` is treated as a constant.
    """
    steps = frames.diff(dim=1)
    length: Tensor = torch.linalg.vector_norm(steps, dim=-1, keepdim=True)
    square: Tensor = torch.linalg.vector_norm(frames.detach(), dim=-1, keepdim=True).square()
    still = STILL * ((square[:, 1:] + square[:, :-1]) / 2).sqrt()
    x = (length / still.clamp(min=EPSILON)).clamp(max=1)
    return steps * (x.square() * (2 - x.square()) / (length + EPSILON))


class _DecisionNCE(ClipObjective):
    """Base class of both variants, which differ only in the reward. Arguments are those of `ClipObjective`."""

    config_type = DecisionNCEConfig
    config: DecisionNCEConfig
    takes_extra = True

    def sampling(self) -> Spec:
        """Return the sampling spec: F frames of each clip, sampled by `config.draw`."""
        config = self.config
        pick = (StartGoal if config.draw == "start_goal" else SortedUniform)(config.frames)
        return self.clips(pick, per_instruction=config.unique_instructions)

    def rewards(self, frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"]) -> Float[Tensor, "B L"]:
        """Return the reward of segment i under instruction j."""
        raise NotImplementedError

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the loss, and the metrics of its logits, which are rewards divided by the temperature."""
        config, frames, text = self.config, features.rows["frames"], features.rows["text"]
        labels, own = batch["instruction_id"] if config.multi_positive else None, len(text)
        texts = torch.cat([text, features.shared.get("extra", text[:0])])

        def contrast(scores: Float[Tensor, "B L"]) -> Float[Tensor, ""]:
            extra = scores[:, own:] if len(texts) > own else None
            return symmetric_infonce(scores[:, :own], labels=labels, extra=extra)

        scores = self.rewards(frames, texts) / config.temperature
        loss = contrast(scores)
        if config.clip_weight:
            each = [contrast(clip_goal_logits(one, texts, temperature=config.temperature)) for one in frames.unbind(1)]
            loss = loss + config.clip_weight * torch.stack(each).mean()
        return LossOutput(loss, contrast_metrics(scores[:, :own], labels=labels))


class DecisionNCEP(_DecisionNCE):
    """DecisionNCE-P: the reward is the gain in similarity to the instruction over the segment."""

    @property
    def trained_form(self) -> RewardForm:
        """`potential`; with CLIP's loss, which also trains the level of the similarity, it is `similarity`."""
        return "similarity" if self.config.clip_weight else "potential"

    def rewards(self, frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"]) -> Float[Tensor, "B L"]:
        """Return `potential_rewards`."""
        return potential_rewards(frames, text)


class DecisionNCET(_DecisionNCE):
    """DecisionNCE-T: the reward is the similarity of the segment's change to the instruction."""

    reward_form = "transition"

    def rewards(self, frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"]) -> Float[Tensor, "B L"]:
        """Return `transition_rewards`."""
        return transition_rewards(frames, text)
