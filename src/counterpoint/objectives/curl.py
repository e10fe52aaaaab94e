"""CURL: contrast of two random shifts of one observation with other observations.

Laskin, Srinivas and Abbeel, "CURL: Contrastive Unsupervised Representations for Reinforcement Learning", ICML 2020
(arXiv 2004.04136). The contrastive term alone, as a baseline of pretraining.

    q = phi(aug(o)), k = sg phibar(aug'(o)), F = q^T W k, loss = -mean_i log softmax_row(F)[i, i]
    phibar <- (1 - tau) phibar + tau phi after each step

Symbols: phi is the encoder, phibar the `target`, tau `ema`.

The authors crop 84 from 100 pixels at random; here both views are randomly shifted, as all baselines of Premier-TACO
are. They subtract each row's maximum from F, which does not change the loss. W is initialised uniformly in [0, 1).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.base import Batch, Features, LossOutput, contrast_metrics, infonce
from counterpoint.objectives.steps import StepConfig, StepObjective, embed_views, frozen_copy, soft_update


class CURLConfig(StepConfig):
    """Settings of `CURL`.

    Attributes:
        ema: tau, rate of the key encoder's soft update.
    """

    ema: float = Field(default=0.05, gt=0, le=1)


class CURL(StepObjective):
    """CURL on single observations.

    Args:
        encoder: Observations into D dimensions.
        config: Settings.
    """

    config_type = CURLConfig
    actions = False

    def __init__(self, encoder: ObservationEncoder, config: CURLConfig | None = None) -> None:
        config = config or CURLConfig()
        # One step twice: each gets a shift of its own.
        super().__init__(encoder, Spec.steps(offsets=(0, 0), actions=0, stack=encoder.config.stack, shift=config.shift))
        self.config = config
        self.target = frozen_copy(encoder)
        self.W = nn.Parameter(torch.rand(encoder.embed_dim, encoder.embed_dim))

    def encode(self, batch: Batch) -> Features:
        """Return `query` (q W) and `key` (k) [B, D]."""
        views = self.views(batch)
        with torch.no_grad():
            key = embed_views(self.target, views[:, 1:], batch)[:, 0]
        return Features(rows={"query": self.embed(views[:, :1], batch)[:, 0] @ self.W, "key": key})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return InfoNCE of F and its metrics."""
        logits = features.rows["query"] @ features.rows["key"].T
        return LossOutput(infonce(logits), contrast_metrics(logits))

    def after_step(self) -> None:
        """Update the key encoder."""
        soft_update(self.target, self.encoder, self.config.ema)
