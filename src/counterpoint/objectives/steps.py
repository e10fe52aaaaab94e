"""Base classes of objectives on transitions, and the action checks and small networks that they share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import cropped_views, shifted_views
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import (
    Batch,
    Features,
    LossOutput,
    Objective,
    contrast_metrics,
    frozen_copy,
    infonce,
    soft_update,
)


class StepConfig(FrozenConfig):
    """Settings of every objective on transitions.

    Attributes:
        shift: Maximum random shift of every observation in each direction, in pixels (4 in DrQ-v2); 0 for no shift.
    """

    shift: int = Field(default=4, ge=0)


class StepObjective(Objective):
    """Base of objectives on transitions: an observation encoder, and batches of steps with their actions.

    Batches hold `frames` uint8 [B, V, S, H, W, 3] (V observations of S stacked frames) and `shift` int64 [B, V, 2].
    They also hold `actions` float32 [B, K, A] with zeros in a task's padded dimensions, `action_mask` bool [B, A]
    (False at padding), `near_valid` bool [B, N] (False for negatives outside the episode), and `task` int64 [B]. If the
    spec asks for rewards, they hold `rewards` float32 [B, K].

    Args:
        encoder: The encoder of observations into D dimensions; kept after training.
        action_dim: Number of dimensions of the largest action space (A); 0 without actions.
        config: Settings; by default the defaults of `config_type`.

    Attributes:
        actions: True if actions are used; if False, the objective can learn from videos without actions.
    """

    config_type: ClassVar[type[StepConfig]]
    actions: ClassVar[bool] = True
    config: StepConfig

    def __init__(self, encoder: ObservationEncoder, action_dim: int = 0, config: StepConfig | None = None) -> None:
        super().__init__()
        self.encoder, self.action_dim = encoder, action_dim
        self.config = config or self.config_type()
        self.build(encoder.embed_dim)

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder of D dimensions. Default: none."""

    def steps(self, offsets: tuple[int, ...], actions: int = 0, **more: Any) -> Spec:
        """Return `Spec.steps` with the encoder's frame stack and the configuration's shift."""
        return Spec.steps(offsets, actions, stack=self.encoder.config.stack, shift=self.config.shift, **more)

    def views(self, batch: Batch) -> Tensor:
        """Return the batch's observations, cropped and randomly shifted by the spec: uint8 [B, V, S, H, W, 3]."""
        windows = cropped_views(batch["frames"], batch.get("crop"), size=self.encoder.config.size)
        return shifted_views(windows, batch.get("shift"), pad=self.config.shift)

    def embed(self, views: Tensor, batch: Batch) -> Tensor:
        """Encode observations [B, v, S, H, W, 3] of the batch in one pass: [B, v, D]."""
        return _embed(self.encoder, views, batch)

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Return the encoder's trainable parameters."""
        return [p for p in self.encoder.parameters() if p.requires_grad]

    def exports(self) -> dict[str, nn.Module]:
        """Return the encoder."""
        return {"encoder": self.encoder}


def _embed(encoder: ObservationEncoder, views: Tensor, batch: Batch) -> Tensor:
    instructions = batch["instruction"] if encoder.takes_instruction else None
    embedded: Tensor = encoder(views.flatten(0, 1), instructions).unflatten(0, views.shape[:2])
    return embedded


class TargetConfig(StepConfig):
    """Settings of every objective with a target network.

    Attributes:
        ema: Rate of the target network's soft update (tau).
    """

    ema: float = Field(default=0.01, gt=0, le=1)


class TargetObjective(StepObjective):
    """Base of objectives whose targets come from a moving average of the encoder and of the layers after it.

    Arguments are those of `StepObjective`. By default the loss is InfoNCE of the features `predicted` with `future`,
    both [B, P].

    Attributes:
        target: The moving averages, created by `track`. They are saved in the state dict, but have no gradients and are
            in no optimiser.
    """

    config: TargetConfig

    def track(self, *behind: nn.Module) -> None:
        """Set `target` to a copy of the encoder and of the layers `behind` it."""
        self._online = [self.encoder, *behind]
        self.target = frozen_copy(nn.Sequential(*self._online))

    @torch.no_grad()
    def embed_target(self, views: Tensor, batch: Batch) -> Tensor:
        """Pass observations [B, v, S, H, W, 3] through the target network: [B, v, P]."""
        encoder, *behind = self.target
        assert isinstance(encoder, ObservationEncoder)
        embedded: Tensor = nn.Sequential(*behind)(_embed(encoder, views, batch))
        return embedded

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return InfoNCE of every prediction with the batch's targets, and its metrics."""
        logits = features.rows["predicted"] @ features.rows["future"].T
        return LossOutput(infonce(logits), contrast_metrics(logits))

    def after_step(self) -> None:
        """Update the target network, a moving average of the trained layers."""
        soft_update(self.target, nn.Sequential(*self._online), self.config.ema)


def check_actions(actions: Tensor, steps: int, action_dim: int) -> None:
    """Raise `BadInputError` if the shape of `actions` is not [B, `steps`, `action_dim`]."""
    if actions.ndim != 3 or actions.shape[1:] != (steps, action_dim):
        hint = "give the objective the data's number of action dimensions, the widest task's where they differ"
        raise BadInputError("actions", f"shape {tuple(actions.shape)}", f"[B, {steps}, {action_dim}]", hint)


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Create a perceptron with these widths, from input to output, and an activation between its linear layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
