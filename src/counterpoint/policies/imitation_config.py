"""Settings of a diffusion policy's training: the policy, what stands beside its loss, and how long.

The numbers of ICon's experiments (Wang and Lin, 2025, Appendix A) and, where that is silent, of Diffusion Policy's
configurations, which it follows.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.objectives.icon import IConConfig
from counterpoint.policies.crossway import CrosswayConfig
from counterpoint.policies.diffusion import DiffusionConfig
from counterpoint.training.learner import OptimizerConfig
from counterpoint.training.trainer import TrainConfig

__all__ = ["AuxiliaryConfig", "ImitationConfig"]

PAPER_ENCODER = ObservationConfig(kind="vit", size=224, stack=1, cameras=2)


class AuxiliaryConfig(FrozenConfig):
    """An objective on transitions beside the imitation loss.

    Attributes:
        weight: lambda.
        objective: `name`, one of `STEP_OBJECTIVES`, and its settings.
    """

    weight: float = Field(default=1.0, gt=0)
    objective: dict[str, Any]


class ImitationConfig(FrozenConfig):
    """A diffusion policy and how it is trained.

    Attributes:
        encoder: Of one moment's pictures, one network a camera; the paper's ViT-S/16 at 224 x 224.
        frame: Height and width of the demonstrations' pictures, in pixels, out of which windows of the encoder's size
            are cut: at random in training, from the middle when acting.
        use_state: Read proprioception too.
        diffusion: The denoising network and its schedule.
        icon: Inter-token contrast in the encoder; `None` for none.
        crossway: Reconstruction from the U-Net's bottleneck (Crossway Diffusion); `None` for none.
        auxiliary: Another objective of the library; `None` for none.
        optimizer: AdamW at 1e-4 and a moving average, as Diffusion Policy's. The matrices of a transformer decay
            by 1e-3 whatever `weight_decay` says.
        train: How long and in what batches: 600 epochs of 64 in the paper, 300 where a policy is fine-tuned.
    """

    encoder: ObservationConfig = PAPER_ENCODER
    frame: int = Field(default=256, ge=1)
    use_state: bool = True
    diffusion: DiffusionConfig = DiffusionConfig()
    icon: IConConfig | None = None
    crossway: CrosswayConfig | None = None
    auxiliary: AuxiliaryConfig | None = None
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adamw",
        lr=1e-4,
        betas=(0.95, 0.999),
        weight_decay=1e-6,
        schedule="cosine",
        warmup_steps=500,
        ema=0.9999,
        ema_power=0.75,
    )
    train: TrainConfig = TrainConfig(epochs=600, batch_size=64)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.encoder.stack != 1:
            raise ValueError("encoder.stack must be 1: a policy sees obs_steps moments, each by itself")
        if self.frame < self.encoder.size:
            raise ValueError(f"frame = {self.frame} is smaller than the encoder's {self.encoder.size} pixels")
        if self.icon is not None and self.encoder.kind != "vit":
            raise ValueError(f"icon needs an encoder with tokens, of kind 'vit', not {self.encoder.kind!r}")
        if self.crossway is not None and self.diffusion.network != "unet":
            raise ValueError("crossway reads the bottleneck of a U-Net: it needs diffusion.network = 'unet'")
        return self
