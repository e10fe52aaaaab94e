"""The seam between papers and trainer: an `Objective` says what to sample, encodes it, and scores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import images
from counterpoint.data.spec import Augment, Draw, Key, NStepSpec, Spec
from counterpoint.encoders.base import DualEncoder
from counterpoint.encoders.towers import RewardForm

__all__ = [
    "Batch",
    "ClipConfig",
    "ClipObjective",
    "Features",
    "Gather",
    "Learner",
    "LossOutput",
    "NonFiniteError",
    "Objective",
]

Batch = Mapping[str, Any]
"""What the loader makes of a `Spec`: tensors with a leading B, and lists of B strings."""


class NonFiniteError(ArithmeticError):
    """A loss or a gradient stopped being finite; parameters are as they were before the step."""


class Learner(Protocol):
    """A thing that trains: one update a batch, a state to save, and modules to keep."""

    def update(self, batch: Batch, step: int) -> Mapping[str, float | Tensor]:
        """Take optimiser step number `step` (0-based) and return what to log: numbers, or scalars on a device."""

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Score a batch and change nothing."""

    def state(self) -> dict[str, Any]:
        """Return everything the next update depends on."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""

    def exports(self) -> dict[str, nn.Module]:
        """Return the modules a user keeps, by name."""


@dataclass(frozen=True)
class Features:
    """Encoder outputs.

    Attributes:
        rows: Name -> tensor [B, ...]: one row a sample of the batch. These are gathered across ranks.
        shared: Name -> tensor that is not a row of the batch.
    """

    rows: dict[str, Tensor]
    shared: dict[str, Tensor] = field(default_factory=dict)

    def float(self) -> Features:
        """The same with half-precision tensors widened to float32."""
        return Features(*({k: _widen(v) for k, v in part.items()} for part in (self.rows, self.shared)))


def _widen(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


@dataclass(frozen=True)
class LossOutput:
    """A scalar to minimise and what to log beside it.

    Attributes:
        loss: Scalar tensor with its graph.
        metrics: Name -> detached scalar.
    """

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss.ndim != 0:
            raise ValueError(f"loss must be a scalar, found shape {tuple(self.loss.shape)}")
        object.__setattr__(self, "metrics", {name: value.detach() for name, value in self.metrics.items()})


Gather = Callable[[Features, Batch], tuple[Features, Batch]]
"""Joins the rows of all ranks, in rank order."""


class Objective(nn.Module):
    """A paper's training criterion.

    `encode` and `loss` stay apart because rows of other ranks are gathered between them.

    Attributes:
        across_ranks: Whether samples of other ranks are negatives, so that rows are gathered.
    """

    across_ranks: ClassVar[bool] = True

    def sampling(self) -> Spec | NStepSpec:
        """Which frames, actions and goals a batch must hold, as plain data."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Features:
        """Run the encoders: the only place that does."""
        raise NotImplementedError

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Score features; pure given its inputs."""
        raise NotImplementedError

    def forward(self, batch: Batch, gather: Gather | None = None) -> LossOutput:
        """Return `loss(encode(batch), batch)`, between them the rows of all ranks where `gather` is given."""
        features = self.encode(batch)
        device = next(iter(features.rows.values())).device.type
        # Logits over a small temperature lose their order in half precision.
        with torch.autocast(device, enabled=False):
            features = features.float()
            return self.loss(*(gather(features, batch) if gather is not None else (features, batch)))

    def param_groups(self) -> dict[str, list[nn.Parameter]]:
        """Named groups of trainable parameters; each is clipped by itself."""
        return {"model": [p for p in self.parameters() if p.requires_grad]}

    def weight_decays(self) -> dict[str, float]:
        """Weight decay of parameter groups by name, where it is not the optimiser's. Default: none."""
        return {}

    def after_step(self) -> None:
        """Run after each optimiser step: target networks, moving averages. Default: nothing."""

    def exports(self) -> dict[str, nn.Module]:
        """What a user keeps once training is over, by name."""
        raise NotImplementedError


class ClipConfig(FrozenConfig):
    """Settings of every objective on instructed clips.

    Attributes:
        augment: Random crop-and-resize, one crop a clip.
        augment_scale: Least and greatest share of the image a crop keeps.
        augment_jitter: Strength of colour jitter, each frame its own.
    """

    augment: bool = False
    augment_scale: tuple[float, float] = (0.2, 1.0)
    augment_jitter: float = Field(default=0.0, ge=0)

    @property
    def augmentation(self) -> Augment | None:
        """What the sampling spec asks for."""
        return Augment(scale=self.augment_scale, jitter=self.augment_jitter) if self.augment else None


class ClipObjective(Objective):
    """Base of objectives on instructed clips: F frames and their instruction through one dual encoder.

    Batches hold `frames` (uint8 [B, F, H, W, 3]), `clip.indices` (int64 [B, F], frame numbers in the episode),
    `clip.valid` (bool [B, F]), `instruction` (B strings) and `instruction_id` (int64 [B]: equal text, equal number).

    Args:
        encoder: Image and text towers into one space of D dimensions.
        draw: Which F steps of an episode.
        unique_instructions: One clip of each distinct instruction an epoch.
        augment: Image augmentation, or `None`.

    Attributes:
        reward_form: The reward that the objective trains for, written into the encoder's configuration.
    """

    reward_form: ClassVar[RewardForm] = "potential"

    def __init__(
        self, encoder: DualEncoder, draw: Draw, *, unique_instructions: bool = False, augment: Augment | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = Spec({"clip": draw}, {"frames": Key("frames", "clip")}, unique_instructions, augment)

    def sampling(self) -> Spec:
        """One draw, `clip`, read as `frames`."""
        return self._spec

    def encode(self, batch: Batch) -> Features:
        """Raw embeddings: `frames` [B, F, D] and `text` [B, D]."""
        return Features(
            rows={
                "frames": self.encoder.encode_image(images(batch, "frames")),
                "text": self.encoder.encode_text(batch["instruction"]),
            }
        )

    def exports(self) -> dict[str, nn.Module]:
        """Return the dual encoder, whose configuration names the reward that it was trained for."""
        if isinstance(self.encoder, DualEncoder):  # and not an encoder of the user's own
            self.encoder.config = self.encoder.config.model_copy(update={"reward_form": self.reward_form})
        return {"encoder": self.encoder}
