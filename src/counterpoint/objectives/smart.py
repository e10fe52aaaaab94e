"""SMART: a control transformer's forward, inverse and masked hindsight prediction (Sun et al., ICLR 2023).

    forward      mean || g(o_0 ... a_t) - sg phibar(o_{t+1}) ||^2
    inverse      mean || h(o_0 ... o_t; o_{t+1} without a_t) - a_t ||^2
    hindsight    mean over masked a_t of || k(all tokens not masked) - a_t ||^2
    loss         their sum, equal weights (section 4.2)

A baseline of Premier-TACO (section 4, "Control Transformer"). phi is kept, and the transformer dropped; phibar is a
moving average of phi. Symbols: g, h, k -> `ControlTransformer`.

Where the sources differ:
  - SMART masks one action and one observation at first, and more as training goes on: all L actions and L/2 of the
    observations in the end, the same ones in a whole batch. An objective does not know how long training lasts: here
    each sample draws k uniformly from 1 ... L and is masked as at that stage of the schedule, k actions and as many
    observations up to L/2. First and last observation are never masked.
  - The last action comes after the last observation, so that no hindsight tells it. When it is masked it is predicted
    all the same, as in the authors' code.
  - The authors' code takes the mean of the three losses; the paper writes the sum, which is followed.
  - SMART has its own ConvNet and frames; here it is whatever encoder is pretrained, linearly widened to tokens.
  - The defaults are smaller than SMART's: a context of 30, 8 layers, 8 heads, width 256.
"""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from counterpoint.data.nstep import NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.action_error import action_error, constant_action_error
from counterpoint.objectives.base import Batch, Features, LossOutput
from counterpoint.objectives.control_transformer import ControlTransformer
from counterpoint.objectives.infonce import in_full_precision
from counterpoint.objectives.step import StepConfig, StepObjective, embed_views
from counterpoint.objectives.step_heads import check_actions, follow, frozen_copy

__all__ = [
    "SMART",
    "SMARTConfig",
    "draw_masks",
    "forward_prediction_loss",
    "hindsight_loss",
    "inverse_prediction_loss",
]


class SMARTConfig(StepConfig):
    """Settings of SMART.

    Attributes:
        context: L, steps of a sequence.
        layers: Of the transformer.
        heads: Of its attention.
        width: Of its tokens.
        dropout: Share of activations dropped while training.
        mask_actions: Greatest share of the actions that is masked.
        mask_observations: Greatest share of the observations that is masked.
        ema: How far phibar follows phi with each step.
    """

    context: int = Field(default=8, ge=2)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    width: int = Field(default=128, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    mask_actions: float = Field(default=1.0, gt=0, le=1)
    mask_observations: float = Field(default=0.5, ge=0, le=1)
    ema: float = Field(default=0.005, gt=0, le=1)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"a width that its {self.heads} heads divide, not {self.width}")
        return self


@in_full_precision
def forward_prediction_loss(
    predicted: Float[Tensor, "B T D"], following: Float[Tensor, "B T D"]
) -> Float[Tensor, ""]:
    """Squared error of predicted embeddings, mean over samples, steps and dimensions.

    Args:
        predicted: From the tokens up to (o_t, a_t).
        following: phibar(o_{t+1}); gets no gradient.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    if predicted.shape != following.shape:
        raise BadInputError(
            "predicted, following",
            found=f"shapes {tuple(predicted.shape)} and {tuple(following.shape)}",
            expected="one shape, [B, T, D]",
            mend="leave out the first observation of the context, which nothing predicts",
        )
    return (predicted - following.detach()).square().mean()


def inverse_prediction_loss(
    predicted: Float[Tensor, "B T A"], actions: Float[Tensor, "B T A"], *, mask: Bool[Tensor, "B A"]
) -> Float[Tensor, ""]:
    """Mean squared error over own dimensions of the actions between neighbouring observations.

    Args:
        predicted: From o_t and o_{t+1}.
        actions: a_t, zeros outside the mask.
        mask: Which dimensions are a row's own.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return action_error(predicted, actions, mask=mask)


def hindsight_loss(
    predicted: Float[Tensor, "B L A"],
    actions: Float[Tensor, "B L A"],
    *,
    masked: Bool[Tensor, "B L"],
    mask: Bool[Tensor, "B A"],
) -> Float[Tensor, ""]:
    """Mean squared error over own dimensions of the masked actions alone; 0 when none is masked.

    Args:
        predicted: Of every action of the context.
        actions: a_t, zeros outside the mask.
        masked: Which actions the prediction was made without.
        mask: Which dimensions are a row's own.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return action_error(predicted, actions, mask=mask, scored=masked)


def draw_masks(
    batch: int,
    context: int,
    *,
    actions: float = 1.0,
    observations: float = 0.5,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Each sample's masked actions and observations, at a stage of SMART's schedule drawn uniformly.

    Args:
        batch: B.
        context: L.
        actions: Greatest share of the actions; at least one is masked.
        observations: Greatest share of the observations, the first and the last never among them.
        generator: Of the draws; torch's own by default.
        device: Of the draws and the result.

    Returns:
        Masked actions and masked observations.
    """
    L, within = context, max(context - 2, 0)
    draw = torch.rand(batch, 1 + L + within, generator=generator, device=device)
    most = max(1, int(actions * L))
    number = 1 + (draw[:, :1] * most).long().clamp_max(most - 1)  # rounding could reach `most`
    masked_actions = _ranks(draw[:, 1 : 1 + L]) < number
    inner = _ranks(draw[:, 1 + L :]) < number.clamp_max(int(observations * L))
    ends = inner.new_zeros(batch, 1)
    return masked_actions, torch.cat([ends, inner, ends], 1)


def _ranks(scores: Float[Tensor, "B n"]) -> Tensor:
    """The place of each entry in its row's order."""
    return scores.argsort(1).argsort(1)


class SMART(StepObjective):
    """SMART on sequences of L observations and L actions.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the largest action space.
        config: Its settings.
    """

    def __init__(
        self, encoder: ObservationEncoder, action_dim: int, config: SMARTConfig | None = None
    ) -> None:
        config = config or SMARTConfig()
        L = config.context
        super().__init__(
            encoder, NStepSpec(tuple(range(L)), L, stack=encoder.config.stack, shift=config.shift)
        )
        self.config, self.action_dim = config, action_dim
        self.target_encoder = frozen_copy(encoder)
        self.transformer = ControlTransformer(
            encoder.embed_dim,
            action_dim,
            context=L,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            dropout=config.dropout,
        )

    def encode(self, batch: Batch) -> Features:
        """The three predictions, and what they are compared with beside the batch's actions.

        Rows are `next` and `following` [B, L-1, D], `inverse` [B, L-1, A], `hindsight` [B, L, A] and `masked` bool
        [B, L]. Masks are drawn from torch's generator while training, whose state is saved with a run; in evaluation
        they are the same at every call.

        Raises:
            BadInputError: When actions have another size than A, or the context another length.
        """
        check_actions(batch["actions"], self.config.context, self.action_dim)
        views = self.views(batch)
        observations = self.embed(views, batch)
        actions = batch["actions"] * batch["action_mask"][:, None]
        with torch.no_grad():
            following = embed_views(self.target_encoder, views[:, 1:], batch)
        masked_actions, masked_observations = draw_masks(
            len(views),
            self.config.context,
            actions=self.config.mask_actions,
            observations=self.config.mask_observations,
            generator=None if self.training else torch.Generator(views.device).manual_seed(0),
            device=views.device,
        )
        predicted, inverse = self.transformer.dynamics(observations, actions)
        hindsight = self.transformer.hindsight(
            observations, actions, masked_observations=masked_observations, masked_actions=masked_actions
        )
        return Features(
            rows={
                "next": predicted,
                "following": following,
                "inverse": inverse,
                "hindsight": hindsight,
                "masked": masked_actions,
            }
        )

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """The sum of the three; metrics set each error beside the one of a prediction that ignores its input."""
        rows, mask, actions = features.rows, batch["action_mask"], batch["actions"]
        between = actions[:, :-1]
        forward = forward_prediction_loss(rows["next"], rows["following"])
        inverse = inverse_prediction_loss(rows["inverse"], between, mask=mask)
        hindsight = hindsight_loss(rows["hindsight"], actions, masked=rows["masked"], mask=mask)
        constant = rows["following"].flatten(0, 1).var(0, correction=0).mean()
        metrics = {
            "forward_error": forward,
            "forward_error_constant": constant,
            "action_error": inverse,
            "action_error_constant": constant_action_error(between, mask=mask),
            "hindsight_error": hindsight,
            "hindsight_error_constant": constant_action_error(actions, mask=mask, scored=rows["masked"]),
        }
        return LossOutput(forward + inverse + hindsight, metrics)

    def after_step(self) -> None:
        """Let phibar follow phi."""
        follow(self.target_encoder, self.encoder, self.config.ema)
