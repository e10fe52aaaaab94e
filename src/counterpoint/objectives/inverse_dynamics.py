"""Inverse dynamics: prediction of the action between two observations, from their embeddings.

    loss = || f(phi(o_t), phi(o_{t+k})) - a_t ||^2, mean over own action dimensions; k = 1

A baseline of Premier-TACO (section 4, "Inverse Dynamics Model"; batch 1024 and learning rate 1e-4 in Appendix C). The
paper does not describe f: here it is a two-layer MLP with a linear output, like its other heads. With k > 1 the first
of the k actions is predicted.
"""

from __future__ import annotations

from pydantic import Field

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.action_error import action_error, constant_action_error
from counterpoint.objectives.base import Batch, Features, LossOutput
from counterpoint.objectives.steps import StepConfig, StepObjective, check_actions, two_layer


class InverseDynamicsConfig(StepConfig):
    """Settings of inverse dynamics.

    Attributes:
        horizon: k, steps between the two observations.
        hidden: Width of f's hidden layer.
    """

    horizon: int = Field(default=1, ge=1)
    hidden: int = Field(default=1024, ge=1)


class InverseDynamics(StepObjective):
    """Inverse dynamics on transitions.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the largest action space.
        config: Its settings.
    """

    config_type = InverseDynamicsConfig

    def __init__(
        self, encoder: ObservationEncoder, action_dim: int, config: InverseDynamicsConfig | None = None
    ) -> None:
        config = config or InverseDynamicsConfig()
        spec = Spec.steps((0, config.horizon), 1, stack=encoder.config.stack, shift=config.shift)
        super().__init__(encoder, spec)
        self.config, self.action_dim = config, action_dim
        self.inverse = two_layer(2 * encoder.embed_dim, config.hidden, action_dim)

    def encode(self, batch: Batch) -> Features:
        """Return predicted actions: `predicted` [B, A]."""
        check_actions(batch["actions"], 1, self.action_dim)
        both = self.embed(self.views(batch), batch).flatten(1)  # [B, 2 D], the earlier first
        return Features(rows={"predicted": self.inverse(both)})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `action_error`; the metrics also have the error of the batch's mean action."""
        actions, mask = batch["actions"][:, 0], batch["action_mask"]
        loss = action_error(features.rows["predicted"], actions, mask=mask)
        constant = constant_action_error(actions, mask=mask)
        return LossOutput(loss, {"action_error": loss, "action_error_constant": constant})
