"""DecisionNCE: implicit preferences of video segments for their instructions (Li et al., ICML 2024).

    -P (Eq. 3, 4)    r(i, j) = S(phi(o_{n+m}^i), psi(l^j)) - S(phi(o_n^i), psi(l^j))
    -T (Eq. 6)       r(i, j) = S(phi(o_{n+m}^i) - phi(o_n^i), psi(l^j)),  S the cosine
    loss (Eq. 5, 7)  mean over both directions of the InfoNCE of r / temperature: each instruction among the batch's
                     segments, each segment among the batch's instructions

Symbols: phi(o_n^i), ..., phi(o_{n+m}^i) -> `frames[i]`; psi(l^j) -> `text[j]`; r -> `potential_rewards`,
`transition_rewards`; B -> the batch; m is what the draw gives.

Where the sources differ:
  - Algorithm 1 as printed lost the cross indices of its denominators; Eq. 5 and 7 stand.
  - Eq. 5 and 7 have no temperature; the authors fix 0.01 (a logit scale of 100). Algorithm 1 sums the two
    directions, the authors take their mean. Followed: the authors'.
  - More than two frames: -T sums the cosines of consecutive differences (Eq. 24 and 25, Appendix E.2). -P telescopes
    to last minus first, whatever lies between. The authors' -P subtracts one half of the frames from the other
    instead, which is `decisionnce_p_loss_halves`; for three frames theirs broadcasts to something else, and is refused.
  - S(0, psi) is undefined. The authors divide by ||difference|| + 1e-6, whose gradient at equal frames is about 1e6
    times an ordinary one. Here that form holds down to `STILL` of the frames' own size, and below it reward and
    gradient go to 0 smoothly: equal frames have no direction.
  - Eq. 8 as printed sums to (h-1)/h; `clips.StartGoal` has the mend. The authors draw a sorted pair: `SortedUniform`.
  - One instruction twice in a batch is a false negative (Appendix F, limitation 1): `labels` lifts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from counterpoint.config import FrozenConfig
from counterpoint.data.clips import SortedUniform, StartGoal
from counterpoint.data.sampling import Augment
from counterpoint.encoders.base import DualEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch, ClipObjective, Features, LossOutput
from counterpoint.objectives.infonce import (
    check_clips,
    contrast_metrics,
    in_full_precision,
    symmetric_infonce,
    unit,
)

__all__ = [
    "DecisionNCEConfig",
    "DecisionNCEP",
    "DecisionNCET",
    "decisionnce_p_loss",
    "decisionnce_p_loss_halves",
    "decisionnce_t_loss",
    "potential_rewards",
    "transition_rewards",
]

STILL = 1e-3
"""Length, as a share of the two frames' root mean square norm, under which a transition counts as standing still.

A difference that small is what rounding a half-precision encoder leaves between two equal frames.
"""

EPSILON = 1e-6  # the authors' addition to the norm of a difference


class DecisionNCEConfig(FrozenConfig):
    """Settings of both variants.

    Attributes:
        temperature: What rewards are divided by; the authors' 0.01. From random weights 0.1 learns faster.
        frames: F; 2 is the method, 5 and 9 are the 4 and 8 steps of Appendix E.2 (-T).
        draw: `start_goal` as section 3.2 says, `sorted_uniform` as the authors' code does.
        multi_positive: Clips of one instruction are not each other's negatives.
        unique_instructions: One clip of each distinct instruction an epoch, as the authors' loader has it.
        augment: Random crop-and-resize, one crop a clip; on in the paper's recipes.
        augment_scale: Least and greatest share of the image a crop keeps.
        augment_jitter: Strength of colour jitter, each frame its own; the authors' 0.5, absent from the paper.
    """

    temperature: float = Field(0.01, gt=0)
    frames: int = Field(2, ge=2)
    draw: Literal["start_goal", "sorted_uniform"] = "start_goal"
    multi_positive: bool = False
    unique_instructions: bool = False
    augment: bool = False
    augment_scale: tuple[float, float] = (0.2, 1.0)
    augment_jitter: float = Field(0.0, ge=0)


@in_full_precision
def potential_rewards(frames: Float[Tensor, "B F D"], text: Float[Tensor, "B D"]) -> Float[Tensor, "B B"]:
    """-P's reward of segment i under instruction j (Eq. 4), in [-2, 2]; only the first and the last frame matter.

    Args:
        frames: Raw embeddings, F >= 2.
        text: Raw embeddings.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    check_clips(frames, text, least=2)
    return (unit(frames[:, -1]) - unit(frames[:, 0])) @ unit(text).T


@in_full_precision
def transition_rewards(frames: Float[Tensor, "B F D"], text: Float[Tensor, "B D"]) -> Float[Tensor, "B B"]:
    """-T's reward of segment i under instruction j (Eq. 6, 24 and 25), in [-(F-1), F-1]; equal frames add 0.

    Args:
        frames: Raw embeddings, F >= 2.
        text: Raw embeddings.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    check_clips(frames, text, least=2)
    return _directions(frames).sum(1) @ unit(text).T


def decisionnce_p_loss(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """DecisionNCE-P (Eq. 5).

    Args:
        frames: Raw embeddings of each segment's frames in order, F >= 2.
        text: Raw embeddings of their instructions.
        temperature: What rewards are divided by.
        labels: Equal numbers for equal instructions; those clips are not each other's negatives.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return symmetric_infonce(potential_rewards(frames, text) / temperature, labels=labels)


def decisionnce_t_loss(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """DecisionNCE-T (Eq. 7; with more than two frames Eq. 24 and 25).

    Args:
        frames: Raw embeddings of each segment's frames in order, F >= 2.
        text: Raw embeddings of their instructions.
        temperature: What rewards are divided by.
        labels: Equal numbers for equal instructions; those clips are not each other's negatives.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return symmetric_infonce(transition_rewards(frames, text) / temperature, labels=labels)


@in_full_precision
def decisionnce_p_loss_halves(
    frames: Float[Tensor, "B F D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """The authors' -P for an even F: similarities of the second half of the frames minus those of the first half.

    Not in the paper. With two frames it is `decisionnce_p_loss`.

    Raises:
        BadInputError: For an odd F, or when the shapes do not pair up.
    """
    check_clips(frames, text, least=2)
    F = frames.shape[1]
    if F % 2:
        raise BadInputError(
            "frames",
            found=f"{F} frames a clip",
            expected="an even number",
            mend="drop one, or use decisionnce_p_loss",
        )
    earlier, later = unit(frames).split(F // 2, dim=1)
    return symmetric_infonce((later - earlier).sum(1) @ unit(text).T / temperature, labels=labels)


def _directions(frames: Float[Tensor, "B F D"]) -> Float[Tensor, "B F-1 D"]:
    """Unit vectors from each frame to the next; shorter than 1, down to 0, where the two are all but equal.

    With x = length / still, a vector has length x^2 (2 - x^2) under x = 1 and 1 above: once differentiable, exact
    above, and its slope never exceeds 1.54 / still, where 1 / length grows without bound. `still` counts as a constant.
    """
    steps = frames.diff(dim=1)
    length = torch.linalg.vector_norm(steps, dim=-1, keepdim=True)
    square = torch.linalg.vector_norm(frames.detach(), dim=-1, keepdim=True).square()
    still = STILL * ((square[:, 1:] + square[:, :-1]) / 2).sqrt()
    x = (length / still.clamp(min=EPSILON)).clamp(max=1)
    return steps * (x.square() * (2 - x.square()) / (length + EPSILON))


class _DecisionNCE(ClipObjective):
    """What the two variants share: everything but the reward.

    Args:
        encoder: Image and text towers.
        config: Settings; the paper's by default.
    """

    rewards: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    def __init__(self, encoder: DualEncoder, config: DecisionNCEConfig | None = None) -> None:
        config = config or DecisionNCEConfig()
        draw = StartGoal if config.draw == "start_goal" else SortedUniform
        augment = (
            Augment(scale=config.augment_scale, jitter=config.augment_jitter) if config.augment else None
        )
        super().__init__(
            encoder, draw(config.frames), unique_instructions=config.unique_instructions, augment=augment
        )
        self.config = config

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """The loss, and the metrics of its logits: rewards over temperature."""
        labels = batch["instruction_id"] if self.config.multi_positive else None
        frames, text = features.rows["frames"], features.rows["text"]
        logits = type(self).rewards(frames, text) / self.config.temperature
        return LossOutput(symmetric_infonce(logits, labels=labels), contrast_metrics(logits, labels=labels))


class DecisionNCEP(_DecisionNCE):
    """DecisionNCE-P: an instruction is close to the frame that fulfils it, and the reward is the gain in closeness."""

    rewards = staticmethod(potential_rewards)


class DecisionNCET(_DecisionNCE):
    """DecisionNCE-T: an instruction is a direction in which frames move."""

    rewards = staticmethod(transition_rewards)
