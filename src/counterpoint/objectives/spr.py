"""SPR: a latent model that predicts the embeddings of future observations from the actions.

Schwarzer et al., "Data-Efficient Reinforcement Learning with Self-Predictive Representations", ICLR 2021
(arXiv 2007.05929); "Pretraining Representations for Data-Efficient Reinforcement Learning", NeurIPS 2021
(arXiv 2106.04799). Only the self-predictive term is used, as a baseline of pretraining.

    z_t = phi(o_t), zhat_t = z_t, zhat_{t+j} = h(zhat_{t+j-1}, a_{t+j-1}), j = 1 ... J
    yhat_{t+j} = q(g(zhat_{t+j})), y_{t+j} = sg gbar(phibar(o_{t+j}))
    loss = -mean_i sum_j cos(yhat_{t+j}, y_{t+j})                     `spr_loss`, in [-J, J]
    phibar, gbar <- (1 - tau) (phibar, gbar) + tau (phi, g) after each step

Symbols: phi, h, g, q -> `encoder`, `transition`, `project`, `predict`; phibar, gbar -> `target`; J `steps`; tau `ema`.

This differs from the papers in three points. Their latents are feature maps and h is convolutional; here encoders end
in a vector, and h is a two-layer perceptron. Here the output of h is layer-normalised and squashed like the encoder's
output; in the papers it is scaled to [0, 1]. The first paper's tau is 1 with augmentation and 0.01 without; the second
paper, which pretrains, has 0.01. There are no negatives, so embeddings can collapse to one point.
`categorical_accuracy` near 1 / B and cosines near 1 indicate a collapse.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.objectives.base import (
    Batch,
    Features,
    LossOutput,
    contrast_metrics,
    in_full_precision,
    require_shapes,
    unit,
)
from counterpoint.objectives.steps import TargetConfig, TargetObjective, check_actions, perceptron


@in_full_precision
def spr_loss(predicted: Float[Tensor, "B J P"], target: Float[Tensor, "B J P"]) -> Float[Tensor, ""]:
    """Return negative cosines, summed over the J steps ahead, mean over rows: from -J (perfect predictions) to J.

    Args:
        predicted: Predicted embeddings of the J future observations (yhat in the module's docstring).
        target: The target encoder's embeddings of these observations (y).
    """
    ok = predicted.ndim == 3 and predicted.shape == target.shape
    hint = "pass one prediction and one target for every step ahead"
    require_shapes(ok, "predicted, target", (predicted, target), "one shape [B, J, P]", hint)
    return -(unit(predicted) * unit(target)).sum((1, 2)).mean()


class SPRConfig(TargetConfig):
    """Settings of `SPR`.

    Attributes:
        steps: Number of future steps that are predicted (J).
        hidden: Width of the transition model.
        projected: Dimensions of predictions and targets (P).
    """

    steps: PositiveInt = 5
    hidden: PositiveInt = 512
    projected: PositiveInt = 128


class SPR(TargetObjective):
    """SPR on transitions; arguments are those of `TargetObjective`."""

    config_type = SPRConfig
    config: SPRConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        P = self.config.projected
        transition = perceptron(D + self.action_dim, self.config.hidden, D)
        self.transition = nn.Sequential(transition, nn.LayerNorm(D), nn.Tanh()).apply(drq_weights)
        self.project = nn.Linear(D, P).apply(drq_weights)
        self.predict = nn.Linear(P, P).apply(drq_weights)
        self.track(self.project)

    def sampling(self) -> Spec:
        """Return the sampling spec: J + 1 observations and the J actions between them."""
        return self.steps(tuple(range(self.config.steps + 1)), self.config.steps)

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (yhat) and `future` (y) [B, J, P], from one pass of each encoder."""
        check_actions(batch["actions"], self.config.steps, self.action_dim)
        views = self.views(batch)
        future = self.embed_target(views[:, 1:], batch)
        z = self.embed(views[:, :1], batch)[:, 0]
        rolled = []
        for action in batch["actions"].unbind(1):
            z = self.transition(torch.cat([z, action], 1))
            rolled.append(z)
        return Features({"predicted": self.predict(self.project(torch.stack(rolled, 1))), "future": future})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the loss, and contrast metrics of the batch's cosines J steps ahead, which detect collapse."""
        predicted, future = features.rows["predicted"], features.rows["future"]
        cosines = unit(predicted[:, -1]) @ unit(future[:, -1]).T
        return LossOutput(spr_loss(predicted, future), contrast_metrics(cosines))
