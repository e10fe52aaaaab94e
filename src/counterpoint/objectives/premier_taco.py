"""Premier-TACO: a state and its actions against near misses of where they lead.

Zheng et al., "Premier-TACO is a Few-Shot Policy Learner", ICML 2024 (arXiv 2402.06187).

    z = phi(s), u = psi(a), g = G(z_t, u_t ... u_{t+K-1}), h = H(z_{t+K}), h~ = H(z~), z~ of a state drawn from
    s_{t+K-W} ... s_{t+K+W} without s_{t+K}

    Eq. 2 as printed    -mean_i log [ g.h / (g.h + g.h~) ]                      not defined for negative products
    binary              1/2 [ mean_i softplus(-g.h) + mean_i softplus(g.h~) ]   `premier_taco_loss`
    softmax             -mean_i log [ e^{g.h} / (e^{g.h} + e^{g.h~}) ]          `premier_taco_softmax_loss`

Symbols: g^(i) -> `predicted[i]`; h^(i) -> `positive[i]`; h~^(i) -> `negative[i]`, or `negatives[i, n]` where
Appendix D takes all of the window; phi is the encoder; psi, G and H are `FutureHeads`; K, W -> `steps`, `window`.

Where the sources differ:
  - Eq. 2 prints products without exp. The authors' code classifies each product as positive or negative: the binary
    form, without temperature or normalisation. Followed: the code; the softmax reading stands beside it.
  - The paper's equation lets gradients through h and h~. The authors encode future states without any. Followed: the
    code (`stop_gradient`). The paper's H, which no anchor passes through, learns all the same: see `FutureHeads`.
  - Heads: Appendix C and the code do not agree. Followed: the paper; `heads="released"` is the code.
  - The window: with K <= W the printed one contains the anchor s_t. Kept as printed; `exclude_anchor` leaves it out.
    In the code early negatives wrap around to the episode's end; here the window ends where the episode does.

At small scale both losses stay at log 2 for hundreds of steps. Under x / 255 - 0.5 a fresh encoder mostly says what all
pictures share: embeddings of a square's places within one window lay 3% of their length apart, 26% on centred pictures.
The sum of g's gradients from h and h~ is as small, while both pull g to what makes their common part score 0. Two
mends, neither of them the paper's: `ObservationConfig(centre=True)` takes the common picture away, and
`premier_taco_mixed_loss` adds the batch's other rows as easier negatives.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional

from counterpoint.data.spec import NearNegatives, NStepSpec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch, Features, LossOutput
from counterpoint.objectives.infonce import contrast_metrics, in_full_precision
from counterpoint.objectives.steps import FutureConfig, FutureObjective

__all__ = [
    "PremierTACO",
    "PremierTACOConfig",
    "premier_taco_loss",
    "premier_taco_mixed_loss",
    "premier_taco_softmax_loss",
    "premier_taco_window_loss",
    "premier_taco_window_softmax_loss",
    "window_accuracy",
]


@in_full_precision
def premier_taco_loss(
    predicted: Float[Tensor, "B D"], positive: Float[Tensor, "B D"], negative: Float[Tensor, "B D"]
) -> Float[Tensor, ""]:
    """The authors' form of Eq. 2: positive and negative each classified by itself. log 2 at chance.

    Args:
        predicted: g, from the anchor and its actions.
        positive: h, of the state K steps ahead.
        negative: h~, of a state near it.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    _check(predicted, positive, negative)
    right, wrong = (predicted * positive).sum(1), (predicted * negative).sum(1)
    return (functional.softplus(-right).mean() + functional.softplus(wrong).mean()) / 2


@in_full_precision
def premier_taco_softmax_loss(
    predicted: Float[Tensor, "B D"], positive: Float[Tensor, "B D"], negative: Float[Tensor, "B D"]
) -> Float[Tensor, ""]:
    """Eq. 2 read as a softmax over two: the positive against the negative. log 2 at chance.

    Takes the arguments of `premier_taco_loss`.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    _check(predicted, positive, negative)
    return functional.softplus((predicted * (negative - positive)).sum(1)).mean()


@in_full_precision
def premier_taco_window_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"],
) -> Float[Tensor, ""]:
    """`premier_taco_loss` with several negatives a row (Appendix D): each row's own are averaged first.

    Args:
        predicted: g.
        positive: h.
        negatives: h~, of N states of the window.
        valid: False where the episode had no such state. A row without any counts for its positive alone.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    right, wrong = _scores(predicted, positive, negatives, valid)
    return (functional.softplus(-right).mean() + _row_mean(functional.softplus(wrong), valid)) / 2


@in_full_precision
def premier_taco_window_softmax_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"],
) -> Float[Tensor, ""]:
    """`premier_taco_softmax_loss` with several negatives a row: the positive against all of them at once.

    Takes the arguments of `premier_taco_window_loss`. Mean over rows that have a negative; 0 without any.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    right, wrong = _scores(predicted, positive, negatives, valid)
    candidates = torch.cat([right[:, None], wrong.masked_fill(~valid, -torch.inf)], 1)
    rows = candidates.logsumexp(1) - right
    # A row without negatives is 0 already.
    return rows.sum() / valid.any(1).sum().clamp(min=1)


@in_full_precision
def premier_taco_mixed_loss(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"],
    weight: float = 1.0,
) -> Float[Tensor, ""]:
    """InfoNCE over each row's window negatives and the other rows' positives together. Not the paper's.

        -mean_i log e^{g_i.h_i} / ( sum_j e^{g_i.h_j} + weight sum_n e^{g_i.h~_in} )

    The other rows are easier to tell apart and start the encoder off; what is left to gain is then the window's
    negatives. A large `weight` brings the slow start back.

    Args:
        predicted: g.
        positive: h.
        negatives: h~, of N states of the window.
        valid: False where the episode had no such state. A row without any has the others' positives alone.
        weight: As how many candidates each window negative counts.

    Raises:
        BadInputError: When the shapes do not pair up, or `weight` is not positive.
    """
    if weight <= 0:
        raise BadInputError("weight", f"{weight}", "more than 0", "1 counts it as one of the candidates")
    right, wrong = _scores(predicted, positive, negatives, valid)
    near = (wrong + math.log(weight)).masked_fill(~valid, -torch.inf)
    candidates = torch.cat([predicted @ positive.T, near], 1)
    return (candidates.logsumexp(1) - right).mean()


@in_full_precision
def window_accuracy(
    predicted: Float[Tensor, "B D"],
    positive: Float[Tensor, "B D"],
    negatives: Float[Tensor, "B N D"],
    *,
    valid: Bool[Tensor, "B N"],
) -> Float[Tensor, ""]:
    """Share of a row's window negatives that score below its positive, mean over rows that have any.

    0.5 is chance: equal scores, as of a scene where nothing moves, count half.
    """
    right, wrong = _scores(predicted, positive, negatives, valid)
    below = ((right[:, None] - wrong).sign() + 1) / 2
    return _row_mean(below, valid)


class PremierTACOConfig(FutureConfig):
    """Settings of `PremierTACO`; the paper's by default.

    Attributes:
        window: W.
        exclude_anchor: Never take s_t as a negative.
        every: Take all states of the window as negatives (Appendix D), instead of one at random.
        loss: `binary` is the authors' form, `softmax` the other reading of Eq. 2, `mixed` takes in-batch negatives in.
        window_weight: As how many candidates a window negative counts in `mixed`.
    """

    window: PositiveInt = 5
    exclude_anchor: bool = False
    every: bool = False
    loss: Literal["binary", "softmax", "mixed"] = "binary"
    window_weight: float = Field(default=1.0, gt=0)


class PremierTACO(FutureObjective):
    """Premier-TACO.

    Args:
        encoder: Observations into D dimensions.
        action_dim: A, of the batches.
        config: Settings; the paper's by default.
    """

    def __init__(self, encoder: ObservationEncoder, action_dim: int, config: PremierTACOConfig | None = None) -> None:
        config = config or PremierTACOConfig()
        spec = NStepSpec(
            offsets=(0, config.steps),
            actions=config.steps,
            near=NearNegatives(config.window, config.exclude_anchor, config.every),
            stack=encoder.config.stack,
            shift=config.shift,
            shift_together=config.shift_together,
        )
        super().__init__(encoder, action_dim, config, spec)
        self.config = config

    def encode(self, batch: Batch) -> Features:
        """`predicted` and `positive` [B, D], `negatives` [B, N, D]."""
        z, h = self.anchor_and_rest(batch)
        predicted = self.heads.G(self.heads.join(z, batch["actions"]))
        return Features(rows={"predicted": predicted, "positive": h[:, 0], "negatives": h[:, 1:]})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """The loss, the contrast of the batch's rows, and how the window's negatives fare.

        Metrics: the three of `contrast_metrics` on g_i.h_j; `window_accuracy`, 0.5 at chance; `chance_gap`: how far
        the loss lies below that of equal scores, in nats. An objective that learns nothing stays at 0.5 and 0.
        """
        g, positive, negatives = (features.rows[name] for name in ("predicted", "positive", "negatives"))
        valid = batch["near_valid"]
        loss = self._loss(g, positive, negatives, valid)
        with torch.no_grad():
            chance = self._loss(torch.zeros_like(g), positive, negatives, valid)
            metrics = contrast_metrics(g @ positive.T) | {
                "window_accuracy": window_accuracy(g, positive, negatives, valid=valid),
                "chance_gap": chance - loss,
            }
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
    valid: Bool[Tensor, "B N"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B N"]]:
    """g.h and g.h~, once the shapes are known to pair up."""
    if negatives.ndim != 3 or valid.shape != negatives.shape[:2]:
        raise BadInputError(
            "negatives, valid",
            f"shapes {tuple(negatives.shape)} and {tuple(valid.shape)}",
            "[B, N, D] and [B, N]",
            "pass N negatives of each row, and which of them the episode had",
        )
    _check(predicted, positive, negatives[:, 0])
    return (predicted * positive).sum(1), torch.einsum("bd,bnd->bn", predicted, negatives)


def _row_mean(values: Float[Tensor, "B N"], valid: Bool[Tensor, "B N"]) -> Float[Tensor, ""]:
    """Mean over each row's valid entries, then over rows that have any; 0 where none has."""
    counts = valid.sum(1)
    rows = values.where(valid, 0).sum(1) / counts.clamp(min=1)
    return rows.sum() / (counts > 0).sum().clamp(min=1)


def _check(predicted: Tensor, positive: Tensor, negative: Tensor) -> None:
    if predicted.ndim != 2 or not predicted.shape == positive.shape == negative.shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (predicted, positive, negative))
        raise BadInputError(
            "predicted, positive, negative",
            f"shapes {shapes}",
            "one shape [B, D] for all",
            "pass one prediction, one embedding of its future state and of each near miss, for every row",
        )
