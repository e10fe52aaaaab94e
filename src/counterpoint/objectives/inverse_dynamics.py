"""Inverse dynamics: the action between two observations, from their embeddings.

    loss = || f(phi(o_t), phi(o_{t+k})) - a_t ||^2, mean over own action dimensions; k = 1

A baseline of Premier-TACO (section 4, "Inverse Dynamics Model"; batch 1024 and learning rate 1e-4 in Appendix C). The
paper says no more of it: f is a two-layer MLP, like its other heads, without a squashing of its output. With k > 1 it
is the first of the k actions that is predicted.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from counterpoint.data.spec import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.action_error import action_error, constant_action_error
from counterpoint.objectives.base import (
    Batch,
    Features,
    LossOutput,
    StepConfig,
    StepObjective,
    check_actions,
    two_layer,
)

__all__ = ["InverseDynamics", "InverseDynamicsConfig", "inverse_dynamics_loss"]


class InverseDynamicsConfig(StepConfig):
    """Settings of inverse dynamics.

    Attributes:
        horizon: k, steps between the two observations.
        hidden: Width of f's hidden layer.
    """

    horizon: int = Field(default=1, ge=1)
    hidden: int = Field(default=1024, ge=1)


def inverse_dynamics_loss(
    predicted: Float[Tensor, "B A"], actions: Float[Tensor, "B A"], *, mask: Bool[Tensor, "B A"]
) -> Float[Tensor, ""]:
    """Mean squared error over the own dimensions of all tasks' actions.

    Args:
        predicted: f(phi(o_t), phi(o_{t+k})).
        actions: a_t, zeros outside the mask.
        mask: Which dimensions are a row's own.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return action_error(predicted, actions, mask=mask)


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
        spec = NStepSpec((0, config.horizon), 1, stack=encoder.config.stack, shift=config.shift)
        super().__init__(encoder, spec)
        self.config, self.action_dim = config, action_dim
        self.inverse = two_layer(2 * encoder.embed_dim, config.hidden, action_dim)

    def encode(self, batch: Batch) -> Features:
        """Predicted actions: `predicted` [B, A].

        Raises:
            BadInputError: When actions have another size than A.
        """
        check_actions(batch["actions"], 1, self.action_dim)
        both = self.embed(self.views(batch), batch).flatten(1)  # [B, 2 D], the earlier first
        return Features(rows={"predicted": self.inverse(both)})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """`inverse_dynamics_loss`; metrics set the error beside the one of the batch's mean action."""
        actions, mask = batch["actions"][:, 0], batch["action_mask"]
        loss = inverse_dynamics_loss(features.rows["predicted"], actions, mask=mask)
        constant = constant_action_error(actions, mask=mask)
        return LossOutput(loss, {"action_error": loss, "action_error_constant": constant})
