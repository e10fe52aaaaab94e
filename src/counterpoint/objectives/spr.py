"""SPR: a latent model that predicts the embeddings of future observations from the actions.

Schwarzer et al., "Data-Efficient Reinforcement Learning with Self-Predictive Representations", ICLR 2021
(arXiv 2007.05929); "Pretraining Representations for Data-Efficient Reinforcement Learning", NeurIPS 2021
(arXiv 2106.04799). The self-predictive term alone, as a baseline of pretraining.

    z_t = phi(o_t), zhat_t = z_t, zhat_{t+j} = h(zhat_{t+j-1}, a_{t+j-1}), j = 1 ... J
    yhat_{t+j} = q(g(zhat_{t+j})), y_{t+j} = sg gbar(phibar(o_{t+j}))
    loss = -mean_i sum_j cos(yhat_{t+j}, y_{t+j})                     `spr_loss`, in [-J, J]
    phibar, gbar <- (1 - tau) (phibar, gbar) + tau (phi, g) after each step

Symbols: phi, h, g, q -> `encoder`, `transition`, `project`, `predict`; phibar, gbar -> `target`; J `steps`; tau `ema`.

Where it differs from the papers: their latents are feature maps and h is convolutional; with encoders that end in a
vector h is a two-layer perceptron. Its output is layer-normalised and squashed as the encoder's is, where theirs is
scaled to [0, 1]. The first paper's tau is 1 with augmentation and 0.01 without, the second's, which pretrains, 0.01.
There are no negatives: `categorical_accuracy` near 1 / B with cosines near 1 means collapse.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives.base import Batch, Features, LossOutput, contrast_metrics, in_full_precision, shapes, unit
from counterpoint.objectives.steps import (
    StepConfig,
    StepObjective,
    check_actions,
    embed_views,
    frozen_copy,
    soft_update,
    two_layer,
)


@in_full_precision
def spr_loss(predicted: Float[Tensor, "B J P"], target: Float[Tensor, "B J P"]) -> Float[Tensor, ""]:
    """Return negative cosines, summed over the J steps ahead, mean over rows: from -J (all predicted) to J.

    Args:
        predicted: yhat.
        target: y.
    """
    ok = predicted.ndim == 3 and predicted.shape == target.shape
    hint = "pass one prediction and one target for every step ahead"
    require(ok, "predicted, target", shapes(predicted, target), "one shape [B, J, P]", hint)
    return -(unit(predicted) * unit(target)).sum((1, 2)).mean()


class SPRConfig(StepConfig):
    """Settings of `SPR`.

    Attributes:
        steps: J.
        hidden: Width of the transition model.
        projected: P, dimensions of y.
        ema: tau, rate of the target's soft update.
    """

    steps: PositiveInt = 5
    hidden: PositiveInt = 512
    projected: PositiveInt = 128
    ema: float = Field(default=0.01, gt=0, le=1)


class SPR(StepObjective):
    """SPR on transitions.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the batches.
        config: Settings.
    """

    config_type = SPRConfig

    def __init__(self, encoder: ObservationEncoder, action_dim: int, config: SPRConfig | None = None) -> None:
        config = config or SPRConfig()
        spec = Spec.steps(
            offsets=tuple(range(config.steps + 1)), actions=config.steps, stack=encoder.config.stack, shift=config.shift
        )
        super().__init__(encoder, spec)
        self.config, self.action_dim = config, action_dim
        D = encoder.embed_dim
        self.transition = nn.Sequential(two_layer(D + action_dim, config.hidden, D), nn.LayerNorm(D), nn.Tanh())
        self.project = nn.Linear(D, config.projected)
        self.predict = nn.Linear(config.projected, config.projected)
        self.target = frozen_copy(nn.Sequential(encoder, self.project))

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (yhat) and `target` (y) [B, J, P], from one pass of each encoder."""
        actions = batch["actions"]
        check_actions(actions, self.config.steps, self.action_dim)
        views = self.views(batch)
        with torch.no_grad():
            target = self.target[1](embed_views(cast(ObservationEncoder, self.target[0]), views[:, 1:], batch))
        z = self.embed(views[:, :1], batch)[:, 0]
        rolled = []
        for action in actions.unbind(1):
            z = self.transition(torch.cat([z, action], 1))
            rolled.append(z)
        predicted = self.predict(self.project(torch.stack(rolled, 1)))
        return Features(rows={"predicted": predicted, "target": target})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the loss, and the contrast of cosines among the batch J steps ahead, which detects collapse."""
        predicted, target = features.rows["predicted"], features.rows["target"]
        cosines = unit(predicted[:, -1]) @ unit(target[:, -1]).T
        return LossOutput(spr_loss(predicted, target), contrast_metrics(cosines))

    def after_step(self) -> None:
        """Update the target."""
        soft_update(self.target, nn.Sequential(self.encoder, self.project), self.config.ema)
