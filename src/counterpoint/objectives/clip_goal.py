"""CLIP on goal frames: symmetric InfoNCE of each clip's last frame and its instruction (Radford et al., 2021).

    L = (CE(F, diag) + CE(F^T, diag)) / 2,  F[i, j] = cos(phi(o_T^i), psi(l^j)) / temperature

Symbols: phi(o_T) -> `frames`; psi(l) -> `text`.

This static alignment is the baseline for LIV and for the trajectory methods. CLIP learns its temperature, which
ends at 0.01; here the temperature is fixed at 0.01, as in DecisionNCE.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from counterpoint.data.draws import LastFrame
from counterpoint.data.spec import Spec
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


class CLIPGoalConfig(ClipConfig):
    """Settings of CLIP on goal frames.

    Attributes:
        temperature: Divisor of the cosines.
        multi_positive: If true, clips that share an instruction are not negatives of each other.
    """

    temperature: float = Field(default=0.01, gt=0)
    multi_positive: bool = False


def clip_goal_logits(
    frames: Float[Tensor, "B D"], text: Float[Tensor, "L D"], *, temperature: float = 0.01
) -> Float[Tensor, "B L"]:
    """Return cosines of every frame (rows) with every instruction (columns), divided by the temperature."""
    return unit(frames) @ unit(text).T / temperature


@in_full_precision
def clip_goal_loss(
    frames: Float[Tensor, "B D"],
    text: Float[Tensor, "B D"],
    *,
    temperature: float = 0.01,
    labels: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """Return symmetric InfoNCE between goal frames and instructions.

    Args:
        frames: Raw embedding of each clip's last frame.
        text: Raw embedding of each clip's instruction.
        temperature: Divisor of the cosines.
        labels: Equal numbers for equal instructions; clips with equal numbers are not each other's negatives.
    """
    check_clips(frames[:, None], text)
    return symmetric_infonce(clip_goal_logits(frames, text, temperature=temperature), labels=labels)


class CLIPGoal(ClipObjective):
    """CLIP on the last frame of each clip; arguments are those of `ClipObjective`."""

    config_type = CLIPGoalConfig
    config: CLIPGoalConfig
    takes_extra = True
    reward_form = "similarity"

    def sampling(self) -> Spec:
        """Return the sampling spec: the last frame of each clip."""
        return self.clips(LastFrame())

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `clip_goal_loss` and the metrics of its logits."""
        goals, text = features.rows["frames"][:, 0], features.rows["text"]
        labels = batch["instruction_id"] if self.config.multi_positive else None
        logits = clip_goal_logits(goals, text, temperature=self.config.temperature)
        extra = None
        if "extra" in features.shared:
            extra = clip_goal_logits(goals, features.shared["extra"], temperature=self.config.temperature)
        loss = symmetric_infonce(logits, labels=labels, extra=extra)
        return LossOutput(loss, contrast_metrics(logits, labels=labels))
