"""Few-shot behaviour cloning (Premier-TACO, section 4 and Appendix C): trains a head, and optionally the encoder.

    L = mean over batch and action dimensions of (pi(Phi(s_t)) - a_t)^2

The paper does not state a loss; the authors' code has this squared error. As in their code, the policy ends in a linear
layer, and executed actions are clamped to [-1, 1]. Actions that lie in [-1, 1] are learned as they are; other actions
are normalised by their range in the data. ConvNets are fine-tuned with DrQ-v2's random shift, and large pretrained
encoders stay frozen. Training uses batches of 128 (64 for LIBERO) and Adam at 1e-4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import nn

from counterpoint.data.augment import Jitter, brightened_views
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives.action_prediction import absolute_action_error, action_error
from counterpoint.objectives.base import WEIGHT, Batch, Features, LossOutput, weighted_mean
from counterpoint.objectives.steps import StepConfig, StepObjective
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.heads import ActionHead, HeadConfig

FEATURES = "features"
"""Batch key of embedded observations: float32 [B, H, D]."""


class CloningConfig(HeadConfig, StepConfig):
    """Settings of behaviour cloning, for the head and for the encoder.

    Attributes:
        freeze: Do not train the encoder or update its buffers.
        shift: Maximum random shift in pixels; by default 4 (as in DrQ-v2) if the encoder trains and 0 if it is frozen.
        brightness: Maximum relative change of brightness: DecisionNCE's augmentation on a real robot (Table 7, right;
            the paper gives no number).
    """

    freeze: bool = False
    shift: int = Field(default=4, ge=0)
    brightness: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _shift_what_trains(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("freeze") and "shift" not in given:
            return {**given, "shift": 0}
        return given


class Cloning(StepObjective):
    """Behaviour cloning on transitions, or on features if the encoder is frozen (`training.cloning.embedded`).

    Metrics: `action_error`, the mean absolute error, and `action_error_constant`, the mean absolute error of the
    batch's mean action. For an untrained policy the two are equal.

    Args:
        encoder: The encoder of observations into D dimensions. Training changes this module, not a copy, unless
            `freeze` is set.
        action_dim: Number of action dimensions (A).
        state_dim: Number of proprioception dimensions (P).
        config: Settings of head and encoder.
        demonstrations: Statistics of the training data, which normalise actions and proprioception and are stored in
            the exported policy.
    """

    config: CloningConfig

    def __init__(
        self,
        encoder: ObservationEncoder,
        action_dim: int,
        state_dim: int,
        config: CloningConfig,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        super().__init__(encoder, action_dim, config)
        self._demonstrations = demonstrations
        self.head = ActionHead(encoder.embed_dim, action_dim, state_dim, config, cameras=encoder.config.cameras)
        if demonstrations is not None:
            self.head.normalizer.normalise_by(demonstrations.actions, keep_unit=True)
            if config.use_state and demonstrations.state is not None:
                self.head.state_normalizer.standardise_by(demonstrations.state)
        if config.freeze:
            encoder.requires_grad_(False).eval()

    def sampling(self) -> Spec:
        """Return the sampling spec: the newest H observations (`history`) and the action at the newest observation."""
        spec = self.steps(tuple(range(1 - self.config.history, 1)), 1, state=self.config.use_state)
        if not self.config.brightness:
            return spec
        return replace(spec, transforms={**spec.transforms, "jitter": Jitter(self.config.brightness)})

    def train(self, mode: bool = True) -> Cloning:
        """Set training mode for the head, and for the encoder unless it is frozen."""
        if not self.config.freeze:
            super().train(mode)
            return self
        self.training = mode
        self.head.train(mode)
        if self.encoder.training:  # visiting all modules of a large frozen encoder takes a quarter of a step's time
            self.encoder.eval()
        return self

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` [B, A]."""
        if FEATURES in batch:
            embedded = batch[FEATURES]
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze):
                embedded = self.embed(brightened_views(self.views(batch), batch.get("jitter")), batch)
        valid = batch["frames_valid"]
        predicted = self.head(embedded, valid, batch.get("state"), batch.get("instruction"))
        return Features({"predicted": predicted})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the mean squared error of a_t over unpadded action dimensions, weighted by the steps' weights."""
        hint = "use demonstrations with logged actions"
        require(batch.get("actions") is not None, "batch", "no actions", "`actions` [B, 1, A]", hint)
        predicted, mask = features.rows["predicted"], batch["action_mask"]
        actions = self.head.normalizer(batch["actions"][:, 0])
        error, constant = absolute_action_error(predicted, actions, mask=mask)
        loss = action_error(predicted, actions, mask=mask)
        if WEIGHT in batch:
            rows = (predicted - actions).square().where(mask, 0).sum(1) / mask.sum(1).clamp_min(1)
            loss = weighted_mean(rows, batch)
        return LossOutput(loss, {"action_error": error, "action_error_constant": constant})

    def exports(self) -> dict[str, nn.Module]:
        """Return the policy; it shares its parameters with this objective."""
        return {"policy": ClonedPolicy(self.encoder, self.head, self._demonstrations)}
