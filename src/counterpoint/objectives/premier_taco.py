"""Premier-TACO: contrast of the state that actions lead to with states near it in time.

Zheng et al., "Premier-TACO is a Few-Shot Policy Learner", ICML 2024 (arXiv 2402.06187).

    z = phi(s), u = psi(a), g = G(z_t, u_t ... u_{t+K-1}), h = H(z_{t+K}), h~ = H(z~), z~ of a state sampled from
    s_{t+K-W} ... s_{t+K+W} without s_{t+K}

    Eq. 2 as printed    -mean_i log [ g.h / (g.h + g.h~) ]                      not defined for negative products
    binary              1/2 [ mean_i softplus(-g.h) + mean_i softplus(g.h~) ]   `premier_taco_loss`
    softmax             -mean_i log [ e^{g.h} / (e^{g.h} + e^{g.h~}) ]          `premier_taco_window_softmax_loss`

Symbols: g^(i) -> `predicted[i]`; h^(i) -> `positive[i]`; h~^(i) -> `negative[i]`, or `negatives[i, n]` if all states of
the window are negatives (Appendix D); phi is the encoder; psi, G and H are `FutureHeads`; K, W -> `steps`, `window`.

Where the sources differ:
  - Eq. 2 prints products without exp. The authors' code classifies each product as positive or negative: the binary
    form, without temperature or normalisation. We follow the code; `loss="softmax"` is the other reading.
  - In the paper's equation gradients flow through h and h~. The authors encode future states without gradients. We
    follow the code (`stop_gradient`). The paper's H is trained nevertheless, although no anchor passes through it (see
    `FutureHeads`).
  - Heads: Appendix C and the code do not agree. We follow the paper; `heads="released"` follows the code.
  - The window: if K <= W, the printed window contains the anchor s_t. We keep s_t; `exclude_anchor` leaves it out.
    In the code early negatives wrap around to the episode's end; here the window is cut off at the episode's ends.

Initial weights are those of the authors' code, which the paper does not mention (`drq_weights`). With torch's initial
weights, an encoder mostly encodes what all images share. States of one window then lie close together, and both losses
stay at log 2. With any weights, the losses also stay at log 2 for small images if each observation is shifted
independently, since the shift moves images further than a window's steps do. Two remedies are not from the paper:
`ObservationConfig(centre=True)` subtracts the mean image, and `premier_taco_mixed_loss` adds the batch's other rows as
easier negatives.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.errors import require
from counterpoint.objectives.base import (
    Batch,
    Features,
    LossOutput,
    contrast_metrics,
    in_full_precision,
    require_shapes,
)
from counterpoint.objectives.steps import StepConfig, StepObjective, check_actions, perceptron


def premier_taco_loss(
    predicted: Float[Tensor, "B D"], positive: Float[Tensor, "B D"], negative: Float[Tensor, "B D"]
) -> Float[Tensor, ""]:
    """Return the authors' form of Eq. 2, which classifies positive and negative separately; log 2 at chance.

    Args:
        predicted: g, from the anchor and its actions.
        positive: h, of the state K steps ahead.
        negative: h~, of a state near the positive.
    """
    return premier_taco_window_loss(predicted, positive, negative[:, None])


@in_full_precision
def premier_taco_window_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, ""]:
    """Return `premier_taco_loss` with several negatives per row (Appendix D), averaged within each row first.

    Args:
        predicted: g.
        positive: h.
        negatives: h~, of N states near the positive (the window).
        valid: False for states that lie outside the episode; by default all are valid. A row without valid negatives
            has only the loss of its positive.
    """
    right, wrong, valid = _scores(predicted, positive, negatives, valid)
    return (functional.softplus(-right).mean() + _row_mean(functional.softplus(wrong), valid)) / 2


@in_full_precision
def premier_taco_window_softmax_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, ""]:
    """Return Eq. 2 as a softmax: the positive against all of a row's negatives; log 2 at chance with one negative.

    Takes the arguments of `premier_taco_window_loss`. The mean is over rows that have a negative; 0 if none has.
    """
    right, wrong, valid = _scores(predicted, positive, negatives, valid)
    candidates = torch.cat([right[:, None], wrong.masked_fill(~valid, -torch.inf)], 1)
    rows = candidates.logsumexp(1) - right  # 0 without negatives
    return rows.sum() / valid.any(1).sum().clamp(min=1)


@in_full_precision
def premier_taco_mixed_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"] | None = None,
    weight: float = 1.0,
) -> Float[Tensor, ""]:
    """Return InfoNCE over each row's window negatives and the other rows' positives together; not from the paper.

        -mean_i log e^{g_i.h_i} / ( sum_j e^{g_i.h_j} + weight sum_n e^{g_i.h~_in} )

    The other rows are easier negatives, from which the encoder starts to learn. Takes the arguments of
    `premier_taco_window_loss`. Each window negative counts as `weight` candidates; with a large weight learning starts
    slowly again.
    """
    require(weight > 0, "weight", weight, "more than 0", "1 counts it as one of the candidates")
    right, wrong, valid = _scores(predicted, positive, negatives, valid)
    near = (wrong + math.log(weight)).masked_fill(~valid, -torch.inf)
    candidates = torch.cat([predicted @ positive.T, near], 1)
    return (candidates.logsumexp(1) - right).mean()


@in_full_precision
def window_accuracy(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, ""]:
    """Return the share of a row's window negatives that score below its positive, mean over rows with negatives.

    Chance is 0.5, since equal scores (in a scene where nothing moves) count half.
    """
    right, wrong, valid = _scores(predicted, positive, negatives, valid)
    return _row_mean(((right[:, None] - wrong).sign() + 1) / 2, valid)


class FutureConfig(StepConfig):
    """Settings that TACO and Premier-TACO share.

    Attributes:
        steps: Number of actions, and of steps from the anchor to the positive state (K).
        shift_together: Shift all observations of a sample by the same amount. With independent shifts (the authors'
            code), two states of a window differ by up to 2 `shift` pixels even if nothing moves. In small images this
            hides the differences between the window's negatives.
        heads: Heads of the paper (`paper`) or of the authors' code (`released`); see `FutureHeads`.
        hidden: Width of the prediction head G, and of the paper's projection head H.
        action_hidden: Width of the paper's action encoder psi.
        stop_gradient: Pass no gradient from future states (positives and negatives) to the encoder, as in the authors'
            code; if False, pass gradients, as in the papers' equations.
    """

    steps: PositiveInt = 3
    shift_together: bool = False
    heads: Literal["paper", "released"] = "paper"
    hidden: PositiveInt = 1024
    action_hidden: PositiveInt = 64
    stop_gradient: bool = True


class FutureHeads(nn.Module):
    """The heads: psi encodes actions, G predicts from a state and encoded actions, H projects future states.

    `paper` is Appendix C of Premier-TACO: psi has widths A -> 64 -> A and is applied to each action; G has widths D + K
    A -> 1024 -> D, and H has D -> 1024 -> D. `released` is the authors' code: psi is a linear layer, layer
    normalisation and tanh on all K A numbers of the sequence. H has the same layers on D numbers, and the input of G is
    H(z) instead of z. Both have the authors' initial weights, `drq_weights`.

    Args:
        embed_dim: Dimensions of an embedding (D).
        action_dim: Number of action dimensions (A).
        config: Kind of heads and their widths.
    """

    def __init__(self, embed_dim: int, action_dim: int, config: FutureConfig) -> None:
        super().__init__()
        self.config, self.action_dim = config, action_dim
        flat = config.steps * action_dim
        if config.heads == "paper":
            self.psi = nn.Sequential(perceptron(action_dim, config.action_hidden, action_dim), nn.Flatten())
            self.H = perceptron(embed_dim, config.hidden, embed_dim)
        else:
            self.psi = nn.Sequential(nn.Flatten(), nn.Linear(flat, flat), nn.LayerNorm(flat), nn.Tanh())
            self.H = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh())
        self.G = perceptron(embed_dim + flat, config.hidden, embed_dim)
        self.apply(drq_weights)

    def join(self, z: Float[Tensor, "B D"], actions: Float[Tensor, "B K A"]) -> Float[Tensor, "B D+K*A"]:
        """Return the input of G: a state and its actions as one vector."""
        check_actions(actions, self.config.steps, self.action_dim)
        return torch.cat([self.H(z) if self.config.heads == "released" else z, self.psi(actions)], 1)

    def project(self, z: Float[Tensor, "*batch D"], *, stop: bool) -> Float[Tensor, "*batch D"]:
        """Return h = H(z) of future states; with `stop`, no gradient passes to the encoder.

        In the paper, H is applied to future states only, and learns from them. In the authors' code (`heads =
        "released"`), H is applied to anchors too; with `stop`, as there, it learns from the anchors only.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (stop and self.config.heads == "released")):
            projected: Tensor = self.H(z.detach() if stop else z)
        return projected


class FutureObjective(StepObjective):
    """Base of TACO and Premier-TACO: a state and K actions, contrasted with states about K steps later.

    Arguments are those of `StepObjective`. The first view of a sample is the anchor.
    """

    config: FutureConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        self.heads = FutureHeads(D, self.action_dim, self.config)

    def anchor_and_rest(self, batch: Batch) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B V-1 D"]]:
        """Return z of the first view and h of all others; with `stop_gradient`, h passes no gradient to the encoder."""
        views = self.views(batch)
        if not self.config.stop_gradient:
            embedded = self.embed(views, batch)
            return embedded[:, 0], self.heads.project(embedded[:, 1:], stop=False)
        anchor = self.embed(views[:, :1], batch)[:, 0]
        with torch.no_grad():
            rest = self.embed(views[:, 1:], batch)
        return anchor, self.heads.project(rest, stop=True)


class PremierTACOConfig(FutureConfig):
    """Settings of Premier-TACO; the paper's by default.

    Attributes:
        window: Number of steps before and after the positive state from which negatives come (W).
        exclude_anchor: Never use the anchor state as a negative.
        every: Use all states of the window as negatives (Appendix D), instead of one random state.
        loss: `binary` is the authors' form, `softmax` is Eq. 2 read as a softmax, `mixed` adds in-batch negatives.
        window_weight: With `mixed`, the weight of a window negative; an in-batch negative has weight 1.
    """

    window: PositiveInt = 5
    exclude_anchor: bool = False
    every: bool = False
    loss: Literal["binary", "softmax", "mixed"] = "binary"
    window_weight: float = Field(default=1.0, gt=0)


class PremierTACO(FutureObjective):
    """Premier-TACO on transitions; arguments are those of `StepObjective`, the paper's settings by default."""

    config_type = PremierTACOConfig
    config: PremierTACOConfig

    def sampling(self) -> Spec:
        """Return the sampling spec: an anchor, the state K steps ahead, negatives near it and the actions between."""
        config = self.config
        near = NearNegatives(config.window, config.exclude_anchor, config.every)
        return self.steps((0, config.steps), config.steps, near=near, shift_together=config.shift_together)

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` and `positive` [B, D], `negatives` [B, N, D]."""
        z, h = self.anchor_and_rest(batch)
        predicted = self.heads.G(self.heads.join(z, batch["actions"]))
        return Features(rows={"predicted": predicted, "positive": h[:, 0], "negatives": h[:, 1:]})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the loss, with metrics of the batch's rows and of the window's negatives.

        Metrics: those of `contrast_metrics` on g_i.h_j; `window_accuracy`; and `chance_gap`, the loss of equal scores
        minus the loss, in nats. For an untrained objective `window_accuracy` is 0.5 and `chance_gap` is 0.
        """
        g, positive, negatives = (features.rows[name] for name in ("predicted", "positive", "negatives"))
        valid = batch["near_valid"]
        loss = self._loss(g, positive, negatives, valid)
        with torch.no_grad():
            chance = self._loss(torch.zeros_like(g), positive, negatives, valid)
            metrics = {  # the terminal shows the first one next to the loss
                "window_accuracy": window_accuracy(g, positive, negatives, valid=valid),
                "chance_gap": chance - loss,
            } | contrast_metrics(g @ positive.T)
        return LossOutput(loss, metrics)

    def _loss(self, g: Tensor, positive: Tensor, negatives: Tensor, valid: Tensor) -> Tensor:
        if self.config.loss == "binary":
            return premier_taco_window_loss(g, positive, negatives, valid=valid)
        if self.config.loss == "softmax":
            return premier_taco_window_softmax_loss(g, positive, negatives, valid=valid)
        return premier_taco_mixed_loss(g, positive, negatives, valid=valid, weight=self.config.window_weight)


def _scores(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    valid: Bool[Tensor, "B N"] | None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Return the scores g.h of positives, the scores g.h~ of negatives, and `valid` (by default all True)."""
    valid = torch.ones(negatives.shape[:2], dtype=torch.bool, device=negatives.device) if valid is None else valid
    ok = negatives.ndim == 3 and predicted.shape == positive.shape == negatives.shape[::2]
    ok = ok and valid.shape == negatives.shape[:2]
    where, expected = "predicted, positive, negatives, valid", "[B, D], [B, D], [B, N, D] and [B, N]"
    hint = "pass one prediction, one future state and N negatives for every row"
    require_shapes(ok, where, (predicted, positive, negatives, valid), expected, hint)
    return (predicted * positive).sum(1), torch.einsum("bd,bnd->bn", predicted, negatives), valid


def _row_mean(values: Float[Tensor, "B N"], valid: Bool[Tensor, "B N"]) -> Float[Tensor, ""]:
    """Return the mean over each row's valid entries, then over rows with valid entries; 0 if there are none."""
    counts = valid.sum(1)
    rows = values.where(valid, 0).sum(1) / counts.clamp(min=1)
    return rows.sum() / (counts > 0).sum().clamp(min=1)
