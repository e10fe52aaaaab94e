"""ATC: contrast of an observation with the one a few steps later.

Stooke, Lee, Abbeel and Laskin, "Decoupling Representation Learning from Reinforcement Learning", ICML 2021
(arXiv 2009.08319): augmented temporal contrast.

    c_t = W_c phi(o_t), p_t = c_t + MLP(c_t), cbar = sg Wbar_c phibar(o)
    F[i, j] = p_t^(i)T W cbar_{t+k}^(j), loss = -mean_i log softmax_row(F)[i, i]
    phibar, Wbar_c <- (1 - tau) (phibar, Wbar_c) + tau (phi, W_c) after each step

Symbols: phi, W_c -> `encoder`, `compress` (to 128); phibar, Wbar_c -> `target`; the MLP `predictor`; k `steps`; tau
`ema`. Both observations are randomly shifted.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field, PositiveInt
from torch import nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.base import Batch, Features, LossOutput, contrast_metrics, infonce
from counterpoint.objectives.steps import StepConfig, StepObjective, embed_views, frozen_copy, soft_update, two_layer


class ATCConfig(StepConfig):
    """Settings of `ATC`.

    Attributes:
        steps: k.
        compressed: Dimensions of c.
        hidden: Width of the predictor.
        ema: tau, rate of the target's soft update.
    """

    steps: PositiveInt = 3
    compressed: PositiveInt = 128
    hidden: PositiveInt = 512
    ema: float = Field(default=0.01, gt=0, le=1)


class ATC(StepObjective):
    """ATC on pairs of observations.

    Args:
        encoder: Observations into D dimensions.
        config: Settings.
    """

    config_type = ATCConfig
    actions = False

    def __init__(self, encoder: ObservationEncoder, config: ATCConfig | None = None) -> None:
        config = config or ATCConfig()
        spec = Spec.steps(offsets=(0, config.steps), actions=0, stack=encoder.config.stack, shift=config.shift)
        super().__init__(encoder, spec)
        self.config = config
        self.compress = nn.Linear(encoder.embed_dim, config.compressed)
        self.predictor = two_layer(config.compressed, config.hidden, config.compressed)
        self.W = nn.Linear(config.compressed, config.compressed, bias=False)
        self.target = frozen_copy(nn.Sequential(encoder, self.compress))

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (W^T p) and `future` (cbar), both [B, `compressed`]."""
        views = self.views(batch)
        with torch.no_grad():
            future = self.target[1](embed_views(cast(ObservationEncoder, self.target[0]), views[:, 1:], batch)[:, 0])
        c = self.compress(self.embed(views[:, :1], batch)[:, 0])
        return Features(rows={"predicted": self.W(c + self.predictor(c)), "future": future})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return InfoNCE of F and its metrics."""
        logits = features.rows["predicted"] @ features.rows["future"].T
        return LossOutput(infonce(logits), contrast_metrics(logits))

    def after_step(self) -> None:
        """Update the target."""
        soft_update(self.target, nn.Sequential(self.encoder, self.compress), self.config.ema)
