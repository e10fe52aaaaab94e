"""ATC: contrast of an observation with the observation a few steps later.

Stooke, Lee, Abbeel and Laskin, "Decoupling Representation Learning from Reinforcement Learning", ICML 2021
(arXiv 2009.08319): augmented temporal contrast.

    c_t = W_c phi(o_t), p_t = c_t + MLP(c_t), cbar = sg Wbar_c phibar(o)
    F[i, j] = p_t^(i)T W cbar_{t+k}^(j), loss = -mean_i log softmax_row(F)[i, i]
    phibar, Wbar_c <- (1 - tau) (phibar, Wbar_c) + tau (phi, W_c) after each step

Symbols: phi, W_c -> `encoder`, `compress` (to 128); phibar, Wbar_c -> `target`; the MLP `predictor`; k `steps`; tau
`ema`. Both observations are randomly shifted.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.objectives.base import Batch, Features
from counterpoint.objectives.steps import TargetConfig, TargetObjective, perceptron


class ATCConfig(TargetConfig):
    """Settings of `ATC`.

    Attributes:
        steps: Number of steps between the two observations (k).
        compressed: Dimensions of the compressed embedding (c).
        hidden: Width of the predictor.
    """

    steps: PositiveInt = 3
    compressed: PositiveInt = 128
    hidden: PositiveInt = 512


class ATC(TargetObjective):
    """ATC on pairs of observations; arguments are those of `TargetObjective`."""

    config_type = ATCConfig
    config: ATCConfig
    actions = False

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        P = self.config.compressed
        self.compress = nn.Linear(D, P).apply(drq_weights)
        self.predictor = perceptron(P, self.config.hidden, P).apply(drq_weights)
        self.W = nn.Linear(P, P, bias=False).apply(drq_weights)
        self.track(self.compress)

    def sampling(self) -> Spec:
        """Return the sampling spec: an observation and the observation k steps later."""
        return self.steps((0, self.config.steps))

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (W^T p) and `future` (cbar), both [B, `compressed`]."""
        views = self.views(batch)
        c = self.compress(self.embed(views[:, :1], batch)[:, 0])
        future = self.embed_target(views[:, 1:], batch)[:, 0]
        return Features({"predicted": self.W(c + self.predictor(c)), "future": future})
