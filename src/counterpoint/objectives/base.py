"""The classes that objectives share: `Objective`, its base for clips and its base for transitions.

An objective states what to sample, encodes a batch and scores it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import Jitter, ResizedCrop, Transform, cropped_views, images, shifted_views
from counterpoint.data.draws import Pick
from counterpoint.data.spec import Spec
from counterpoint.encoders.base import DualEncoder
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.encoders.towers import RewardForm
from counterpoint.errors import require

Batch = Mapping[str, Any]
"""A batch of samples by name: tensors with a leading B, and lists of B strings."""


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
        """Return the features with half-precision tensors widened to float32."""
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

    `encode` and `loss` are separate because the rows of other ranks are gathered between them.

    Attributes:
        config_type: Class of its configuration.
        across_ranks: Samples of other ranks are negatives, so that rows are gathered.
        language: Instructions are scored: False where only images are trained.
    """

    config_type: ClassVar[type[FrozenConfig]]
    across_ranks: ClassVar[bool] = True
    language: ClassVar[bool] = False

    def sampling(self) -> Spec:
        """Return the frames, actions and goals that a batch must hold, as plain data."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Features:
        """Run the encoders; nothing else runs them."""
        raise NotImplementedError

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Score features: a pure function of its inputs."""
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
        """Return named groups of trainable parameters; each is clipped by itself."""
        return {"model": [p for p in self.parameters() if p.requires_grad]}

    def weight_decays(self) -> dict[str, float]:
        """Return the weight decay of parameter groups whose decay is not the optimiser's. Default: none."""
        return {}

    def after_step(self) -> None:
        """Run after each optimiser step: target networks, moving averages. Default: nothing."""

    def exports(self) -> dict[str, nn.Module]:
        """Return the modules that a user keeps after training, by name."""
        raise NotImplementedError


class ClipConfig(FrozenConfig):
    """Settings of every objective on instructed clips.

    Attributes:
        augment: Random crop-and-resize, one crop a clip.
        augment_scale: Smallest and largest share of the image that a crop keeps.
        augment_jitter: Strength of colour jitter, sampled for each frame.
    """

    augment: bool = False
    augment_scale: tuple[float, float] = (0.2, 1.0)
    augment_jitter: float = Field(default=0.0, ge=0)

    @property
    def augmentation(self) -> dict[str, Transform]:
        """The transforms of the sampling spec."""
        crop: dict[str, Transform] = {"frames.crop": ResizedCrop(self.augment_scale)} if self.augment else {}
        return crop | ({"frames.jitter": Jitter(self.augment_jitter)} if crop and self.augment_jitter else {})


class ClipObjective(Objective):
    """Base of objectives on instructed clips: F frames and their instruction through one dual encoder.

    Batches hold `frames` (uint8 [B, F, H, W, 3]), `clip.indices` (int64 [B, F], frame numbers in the episode),
    `clip.valid` (bool [B, F]), `instruction` (B strings) and `instruction_id` (int64 [B]: equal text, equal number).

    Args:
        encoder: Image and text towers into one space of D dimensions.
        pick: The rule that picks F steps of an episode.
        unique_instructions: One clip of each distinct instruction an epoch.
        augment: Transforms of `frames`, by batch key.

    Attributes:
        reward_form: The reward that the objective trains for, written into the encoder's configuration.
    """

    language: ClassVar[bool] = True
    reward_form: ClassVar[RewardForm] = "potential"

    def __init__(
        self,
        encoder: DualEncoder,
        pick: Pick,
        *,
        unique_instructions: bool = False,
        augment: Mapping[str, Transform] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = Spec.clips(pick, per_instruction=unique_instructions, transforms=augment)

    def sampling(self) -> Spec:
        """Return a spec of clips, read as `frames`."""
        return self._spec

    def encode(self, batch: Batch) -> Features:
        """Return raw embeddings: `frames` [B, F, D] and `text` [B, D]."""
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


class StepConfig(FrozenConfig):
    """Settings of every objective on transitions.

    Attributes:
        shift: Random shift of every observation, in pixels either way (DrQ-v2's is 4); 0 for none.
    """

    shift: int = Field(default=4, ge=0)


class StepObjective(Objective):
    """Base of objectives on transitions: an observation encoder, and batches of steps with their actions.

    Batches hold `frames` uint8 [B, V, S, H, W, 3], `shift` int64 [B, V, 2], `actions` float32 [B, K, A] with zeros
    beyond a task's own dimensions, `action_mask` bool [B, A], `near_valid` bool [B, N], `task` int64 [B], and `rewards`
    float32 [B, K] where the spec has them.

    Args:
        encoder: Observations into D dimensions; kept after training.
        spec: The content of a sample.

    Attributes:
        actions: Whether it uses actions and takes their number A; one that does not also learns from videos alone.
    """

    actions: ClassVar[bool] = True

    def __init__(self, encoder: ObservationEncoder, spec: Spec) -> None:
        super().__init__()
        self.encoder = encoder
        self._spec = spec

    def sampling(self) -> Spec:
        """Return the spec given at construction."""
        return self._spec

    def crop_to(self, size: int) -> None:
        """Take random windows of this side from larger images; 0 takes images as they are."""
        self._spec = self._spec.with_crop(size)

    def views(self, batch: Batch) -> Tensor:
        """Return the batch's observations, cropped and randomly shifted by the spec: uint8 [B, V, S, H, W, 3]."""
        windows = cropped_views(batch["frames"], batch.get("crop"), size=self._spec.crop)
        return shifted_views(windows, batch.get("shift"), pad=self._spec.shift)

    def embed(self, views: Tensor, batch: Batch) -> Tensor:
        """Encode observations [B, v, S, H, W, 3] of the batch in one pass: [B, v, D]."""
        return embed_views(self.encoder, views, batch)

    def exports(self) -> dict[str, nn.Module]:
        """Return the encoder."""
        return {"encoder": self.encoder}


def embed_views(encoder: ObservationEncoder, views: Tensor, batch: Batch) -> Tensor:
    """Encode observations [B, v, S, H, W, 3] in one pass, with instructions if the encoder takes them: [B, v, D]."""
    instructions = batch["instruction"] if encoder.takes_instruction else None
    embedded: Tensor = encoder(views.flatten(0, 1), instructions).unflatten(0, views.shape[:2])
    return embedded


def check_actions(actions: Tensor, steps: int, action_dim: int) -> None:
    """Refuse action sequences of another shape than [B, `steps`, `action_dim`]."""
    ok = actions.ndim == 3 and actions.shape[1:] == (steps, action_dim)
    hint = "give the objective the data's number of action dimensions, the widest task's where they differ"
    require(ok, "actions", f"shape {tuple(actions.shape)}", f"[B, {steps}, {action_dim}]", hint)


def two_layer(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Make a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(module: Module) -> Module:
    """Copy a module as a target network: it is in the state dict, without gradients, and belongs to no optimiser."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Set target to (1 - rate) target + rate online; buffers (running statistics) are copied."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
