"""CURL: contrast of two random shifts of the same observation against other observations.

Laskin, Srinivas and Abbeel, "CURL: Contrastive Unsupervised Representations for Reinforcement Learning", ICML 2020
(arXiv 2004.04136). Only the contrastive term is used, as a baseline of pretraining.

    q = phi(aug(o)), k = sg phibar(aug'(o)), F = q^T W k, loss = -mean_i log softmax_row(F)[i, i]
    phibar <- (1 - tau) phibar + tau phi after each step

Symbols: phi is the encoder, phibar the `target`, tau `ema`.

The authors take random crops of 84 from 100 pixels; here both views are randomly shifted, as in all baselines of
Premier-TACO. The authors subtract each row's maximum from F, which does not change the loss. W is initialised uniformly
in [0, 1).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from counterpoint.data.spec import Spec
from counterpoint.objectives.base import Batch, Features
from counterpoint.objectives.steps import TargetConfig, TargetObjective


class CURLConfig(TargetConfig):
    """Settings of `CURL`.

    Attributes:
        ema: Rate of the key encoder's soft update (tau).
    """

    ema: float = Field(default=0.05, gt=0, le=1)


class CURL(TargetObjective):
    """CURL on single observations; arguments are those of `TargetObjective`."""

    config_type = CURLConfig
    actions = False

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        self.track()
        self.W = nn.Parameter(torch.rand(D, D))

    def sampling(self) -> Spec:
        """Return the sampling spec: one step, read twice; each of the two views gets a separate shift."""
        return self.steps((0, 0))

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (q W) and `future` (k) [B, D]."""
        views = self.views(batch)
        query = self.embed(views[:, :1], batch)[:, 0] @ self.W
        return Features({"predicted": query, "future": self.embed_target(views[:, 1:], batch)[:, 0]})
