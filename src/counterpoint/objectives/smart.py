"""SMART: forward, inverse and masked hindsight prediction by a control transformer (Sun et al., ICLR 2023, section 4).

    tokens       o_0 a_0 o_1 a_1 ... o_{L-1} a_{L-1}
    forward      mean || g(o_0 ... a_t) - sg phibar(o_{t+1}) ||^2, a token sees itself and earlier ones
    inverse      mean || h(o_0 ... o_t; o_{t+1} without a_t) - a_t ||^2
    hindsight    mean over masked a_t of || k(all tokens not masked) - a_t ||^2, masked tokens replaced by a learned one
    loss         their sum, equal weights (section 4.2)

SMART is a baseline of Premier-TACO (section 4, "Control Transformer"). After training, phi is kept and the transformer
is dropped; phibar is a moving average of phi. Symbols: g, h, k -> `ControlTransformer`.

Where the sources differ:
  - SMART masks one action and one observation at first, and more as training proceeds: in the end all L actions and L/2
    of the observations. All samples of a batch have the same masks. Here each sample has its own masks: k is sampled
    uniformly from 1 ... L, and k actions and k observations (at most L/2) are masked, as at stage k of that schedule.
    The first and the last observation are never masked.
  - The last action comes after the last observation, so that hindsight does not determine it. If it is masked, it is
    predicted nevertheless, as in the authors' code.
  - The authors' code takes the mean of the three losses; we follow the paper, which writes the sum.
  - The prediction of masked action t is read from the output at that action's token, number 2 t + 1; their code reads
    it at token number t.
  - Masked tokens are replaced by a learned one; in their code they are filled with -1. Positions in the context are
    embedded, positions in the episode are not.
  - SMART has its own ConvNet and frames; here a linear layer maps the embeddings of the pretrained encoder to tokens.
  - The defaults here are smaller than SMART's, which are a context of 30, 8 layers, 8 heads and width 256.
  - Weights of the transformer, the heads and the actions' linear map start from N(0, 0.02), their biases (except the
    actions') and the positions from zero, as in the authors' code. Their code trains by AdamW (rate 6e-4, betas .9 and
    .95, decay .1 of all linear and convolution weights); the recipe uses Premier-TACO's Adam at 1e-4, as for every
    baseline.
"""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from counterpoint.data.augment import Noise
from counterpoint.data.spec import Spec
from counterpoint.objectives.action_prediction import action_error, constant_action_error
from counterpoint.objectives.base import Batch, Features, LossOutput, in_full_precision, require_shapes
from counterpoint.objectives.steps import TargetConfig, TargetObjective, check_actions
from counterpoint.policies.networks import gpt_weights


class SMARTConfig(TargetConfig):
    """Settings of SMART.

    Attributes:
        context: Number of steps of a sequence (L).
        layers: Number of layers of the transformer (pre-norm).
        heads: Number of attention heads of the transformer.
        width: Width of the transformer's tokens.
        dropout: Share of activations dropped in training.
        mask_actions: Maximum share of the actions that is masked.
        mask_observations: Maximum share of the observations that is masked.
        ema: Rate of the target encoder's soft update at each step.
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


def causal_mask(length: int) -> Bool[Tensor, "T T"]:
    """Return the causal mask of T = `length` tokens: True if the row's token must not see the column's later token."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def inverse_mask(length: int) -> Bool[Tensor, "T T"]:
    """Return `causal_mask` with a_t also hidden from o_{t+1}, whose output then does not depend on a_t."""
    hidden = causal_mask(length)
    observation = torch.arange(2, length, 2)
    hidden[observation, observation - 1] = True
    return hidden


class ControlTransformer(nn.Module):
    """The tokens, the transformer and the three prediction heads.

    Args:
        embed_dim: Dimensions of the observations' embeddings (D).
        action_dim: Number of action dimensions (A).
        config: Sizes of the transformer.
    """

    hidden_causal: Tensor
    hidden_inverse: Tensor

    def __init__(self, embed_dim: int, action_dim: int, config: SMARTConfig) -> None:
        super().__init__()
        width, context, dropout = config.width, config.context, config.dropout
        self.position = nn.Parameter(torch.zeros(2 * context, width))
        self.masked = nn.Parameter(0.02 * torch.randn(width))
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.forward_head = nn.Linear(2 * width, embed_dim)
        self.inverse_head = nn.Linear(2 * width, action_dim)
        self.hindsight_head = nn.Linear(width, action_dim)
        self.apply(gpt_weights)
        self.observation = nn.Linear(embed_dim, width)
        action = nn.Linear(action_dim, width)
        nn.init.normal_(action.weight, std=0.02)
        self.action = nn.Sequential(action, nn.Tanh())
        self.register_buffer("hidden_causal", causal_mask(2 * context), persistent=False)
        self.register_buffer("hidden_inverse", inverse_mask(2 * context), persistent=False)

    def dynamics(
        self, observations: Float[Tensor, "B L D"], actions: Float[Tensor, "B L A"]
    ) -> tuple[Float[Tensor, "B L-1 D"], Float[Tensor, "B L-1 A"]]:
        """Predict next embeddings and the actions between neighbouring steps.

        Args:
            observations: Embeddings; gradients flow into them.
            actions: Actions, with zeros in a row's padded dimensions.

        Returns:
            Next embeddings, predicted from the outputs at o_t and a_t under `causal_mask`. Actions, predicted from the
            output at o_t under `causal_mask` and the output at o_{t+1} under `inverse_mask`.
        """
        tokens = self._tokens(self.observation(observations), self.action(actions))
        causal = self._read(tokens, self.hidden_causal)  # [B, L, 2, width]: outputs at o_t and at a_t
        inverse = self._read(tokens, self.hidden_inverse)
        between = torch.cat([causal[:, :-1, 0], inverse[:, 1:, 0]], -1)
        return self.forward_head(causal[:, :-1].flatten(2)), self.inverse_head(between)

    def hindsight(
        self,
        observations: Float[Tensor, "B L D"],
        actions: Float[Tensor, "B L A"],
        *,
        masked_observations: Bool[Tensor, "B L"],
        masked_actions: Bool[Tensor, "B L"],
    ) -> Float[Tensor, "B L A"]:
        """Predict all actions of the context from the tokens that are not masked.

        Args:
            observations: Embeddings; gradients flow into those that are not masked.
            actions: Actions, with zeros in a row's padded dimensions.
            masked_observations: True for observations that are hidden from all tokens.
            masked_actions: True for actions that are hidden from all tokens.
        """
        observed = torch.where(masked_observations[..., None], self.masked, self.observation(observations))
        acted = torch.where(masked_actions[..., None], self.masked, self.action(actions))
        predicted: Tensor = self.hindsight_head(self._read(self._tokens(observed, acted), None)[:, :, 1])
        return predicted

    def _tokens(self, observed: Tensor, acted: Tensor) -> Tensor:
        """Interleave the tokens of observations and actions, [B, L, width] each, to [B, 2 L, width]."""
        tokens: Tensor = self.dropout(torch.stack([observed, acted], 2).flatten(1, 2) + self.position)
        return tokens

    def _read(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Return outputs by step and kind (observation, action): [B, L, 2, width]."""
        read: Tensor = self.body(tokens, mask=hidden).unflatten(1, (-1, 2))
        return read


@in_full_precision
def forward_prediction_loss(predicted: Float[Tensor, "B T D"], following: Float[Tensor, "B T D"]) -> Float[Tensor, ""]:
    """Return the squared error of predicted embeddings, mean over samples, steps and dimensions.

    Args:
        predicted: Predictions from the tokens up to (o_t, a_t).
        following: phibar(o_{t+1}); gets no gradient.
    """
    hint = "leave out the first observation of the context, which nothing predicts"
    ok = predicted.shape == following.shape
    require_shapes(ok, "predicted, following", (predicted, following), "one shape, [B, T, D]", hint)
    return (predicted - following.detach()).square().mean()


def sample_masks(
    noise: Float[Tensor, "B 2L-1"], *, actions: float = 1.0, observations: float = 0.5
) -> tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Sample each row's masked actions and observations, at a uniformly sampled stage of SMART's schedule.

    Args:
        noise: Random numbers, uniform in [0, 1).
        actions: Maximum share of the actions; at least one is masked.
        observations: Maximum share of the observations; the first and the last are never masked.

    Returns:
        Masked actions and masked observations.
    """
    L = (noise.shape[1] + 1) // 2
    most = max(1, int(actions * L))
    number = 1 + (noise[:, :1] * most).long().clamp_max(most - 1)  # rounding could reach `most`
    masked_actions = _ranks(noise[:, 1 : 1 + L]) < number
    inner = _ranks(noise[:, 1 + L :]) < number.clamp_max(int(observations * L))
    ends = inner.new_zeros(len(noise), 1)
    return masked_actions, torch.cat([ends, inner, ends], 1)


def _ranks(scores: Float[Tensor, "B n"]) -> Tensor:
    """Return the rank of each entry in its row."""
    return scores.argsort(1).argsort(1)


class SMART(TargetObjective):
    """SMART on sequences of L observations and L actions; arguments are those of `TargetObjective`."""

    config_type = SMARTConfig
    config: SMARTConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        self.track()
        self.transformer = ControlTransformer(D, self.action_dim, self.config)

    def sampling(self) -> Spec:
        """Return the sampling spec: L observations, L actions, and the random numbers that choose masks."""
        L = self.config.context
        return self.steps(tuple(range(L)), L).with_transform("noise", Noise((2 * L - 1,), "uniform"))

    def encode(self, batch: Batch) -> Features:
        """Return the three predictions, and what the loss needs besides them and the batch.

        The predictions are `next` [B, L-1, D] (embeddings of the next observations), `inverse` [B, L-1, A] (actions
        between neighbouring observations) and `hindsight` [B, L, A] (all actions). The target of `next` is `following`
        [B, L-1, D]; the targets of the other two are the batch's actions. `masked`, bool [B, L], is True for the
        actions at which `hindsight` is scored.
        """
        check_actions(batch["actions"], self.config.context, self.action_dim)
        views = self.views(batch)
        observations = self.embed(views, batch)
        actions = batch["actions"] * batch["action_mask"][:, None]
        following = self.embed_target(views[:, 1:], batch)
        masked_actions, masked_observations = sample_masks(
            batch["noise"], actions=self.config.mask_actions, observations=self.config.mask_observations
        )
        predicted, inverse = self.transformer.dynamics(observations, actions)
        hindsight = self.transformer.hindsight(
            observations, actions, masked_observations=masked_observations, masked_actions=masked_actions
        )
        rows = {"next": predicted, "following": following, "inverse": inverse}
        return Features(rows | {"hindsight": hindsight, "masked": masked_actions})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the sum of the three losses; metrics also give the error of a prediction that ignores its input."""
        rows, mask, actions = features.rows, batch["action_mask"], batch["actions"]
        between = actions[:, :-1]
        forward = forward_prediction_loss(rows["next"], rows["following"])
        inverse = action_error(rows["inverse"], between, mask=mask)
        hindsight = action_error(rows["hindsight"], actions, mask=mask, scored=rows["masked"])
        metrics = {
            "forward_error": forward,
            "forward_error_constant": rows["following"].flatten(0, 1).var(0, correction=0).mean(),
            "action_error": inverse,
            "action_error_constant": constant_action_error(between, mask=mask),
            "hindsight_error": hindsight,
            "hindsight_error_constant": constant_action_error(actions, mask=mask, scored=rows["masked"]),
        }
        return LossOutput(forward + inverse + hindsight, metrics)
