"""Base classes of objectives, InfoNCE and its metrics, input checks that losses share, and target networks.

InfoNCE of logits F[i, j] with positives on the diagonal has three forms:

rows       L_r = mean_i -log exp(F[i, i]) / sum_j exp(F[i, j])
columns    L_c = mean_j -log exp(F[j, j]) / sum_i exp(F[i, j])
symmetric  (L_r + L_c) / 2
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, cast

import torch
from jaxtyping import Float, Int, Shaped
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import Jitter, Noise, ResizedCrop, Transform, images
from counterpoint.data.draws import Pick
from counterpoint.data.spec import Read, Spec
from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import BadInputError

Batch = Mapping[str, Any]
"""A batch of B samples: names mapped to tensors whose first axis is B, or to lists of B strings."""


ORDER = "order", Noise((), "uniform")
"""Batch key and sampler of the random numbers that `other_rows` sorts a batch by; pass it to `Spec.with_transform`."""


WEIGHT = "weight"
"""Batch key of the weight of each sample's steps, float32 [B, H], of which the newest counts; absent if all weigh 1."""


class NonFiniteError(ArithmeticError):
    """An error for a loss or gradient that is not finite; the parameters keep their values from before the step."""


class Learner(Protocol):
    """The interface of trainable objects: an update per batch, a state to save, and modules to export."""

    def update(self, batch: Batch, step: int) -> Mapping[str, float | Tensor]:
        """Take optimiser step number `step` (0-based) and return metrics to log: numbers, or scalars on a device."""

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return metrics of a batch without training on it."""

    def state(self) -> dict[str, Any]:
        """Return the state needed to resume training: all that the next update depends on."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""

    def exports(self) -> dict[str, nn.Module]:
        """Return the modules that a user keeps after training, by name."""


@dataclass(frozen=True)
class Features:
    """The outputs of an objective's encoders.

    Attributes:
        rows: Tensors [B, ...] by name, with one row per sample of the batch; they are gathered across ranks.
        shared: Tensors by name that are not per sample.
    """

    rows: dict[str, Tensor]
    shared: dict[str, Tensor] = field(default_factory=dict)

    def float(self) -> Features:
        """Return the features with half-precision tensors widened to float32."""
        return Features(*({k: _widen(v) for k, v in part.items()} for part in (self.rows, self.shared)))


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return value


@dataclass(frozen=True)
class LossOutput:
    """A scalar loss to minimise, and metrics to log.

    Attributes:
        loss: Scalar tensor with its autograd graph.
        metrics: Detached scalars by name.
    """

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss.ndim != 0:
            raise ValueError(f"loss must be a scalar, found shape {tuple(self.loss.shape)}")
        object.__setattr__(self, "metrics", {name: value.detach() for name, value in self.metrics.items()})


Score = Callable[[Features, Batch], LossOutput]
"""A function that is called instead of `Objective.loss`."""


class Objective(nn.Module):
    """Base class of objectives: a paper's training criterion, with the networks that it trains.

    `encode` and `loss` are separate methods, so that rows can be concatenated between them: rows of other ranks, or
    rows of a batch whose parts are encoded one after another.

    Attributes:
        config_type: Class of the objective's configuration.
        across_ranks: True if samples of other ranks serve as negatives, so that rows must be gathered.
        language: True if the objective uses instructions; False if it trains only on images.
    """

    config_type: ClassVar[type[FrozenConfig]]
    across_ranks: ClassVar[bool] = True
    language: ClassVar[bool] = False

    def sampling(self) -> Spec:
        """Return a description, as plain data, of the frames, actions and goals that a batch must hold."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Features:
        """Run the encoders; no other method runs them."""
        raise NotImplementedError

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the loss of features; a pure function of its inputs."""
        raise NotImplementedError

    def forward(self, batch: Batch, score: Score | None = None, features: Features | None = None) -> LossOutput:
        """Return `loss(encode(batch), batch)`.

        Args:
            batch: The batch.
            score: A function to call instead of `loss`.
            features: Features to use instead of `encode(batch)`.
        """
        features = self.encode(batch) if features is None else features
        device = next(iter(features.rows.values())).device.type
        # Logits divided by a small temperature lose their order in half precision.
        with torch.autocast(device, enabled=False):
            return (score or self.loss)(features.float(), batch)

    def param_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return named groups of trainable parameters; gradients are clipped separately for each group."""
        return {"model": [p for p in self.parameters() if p.requires_grad]}

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Return the encoder's parameters that `optimizer.encoder_lr` applies to. Default: none."""
        return []

    def weight_decays(self) -> dict[str, float]:
        """Return, by group name, weight decays that differ from the optimiser's. Default: none."""
        return {}

    def after_step(self) -> None:
        """Update target networks and other moving averages; called after each optimiser step. Default: nothing."""

    def exports(self) -> dict[str, nn.Module]:
        """Return the modules that a user keeps after training, by name."""
        raise NotImplementedError


class ClipConfig(FrozenConfig):
    """Settings of every objective on clips: frames picked from an episode, with its instruction.

    Attributes:
        augment: Crop frames at random and resize the crop; all frames of a clip have the same crop.
        augment_scale: Smallest and largest share of the image's area that a crop keeps.
        augment_jitter: Maximum change of the brightness factor, which is sampled for each frame.
    """

    augment: bool = False
    augment_scale: tuple[float, float] = (0.2, 1.0)
    augment_jitter: float = Field(default=0.0, ge=0)

    @property
    def augmentation(self) -> dict[str, Transform]:
        """The transforms of the sampling spec."""
        crop: dict[str, Transform] = {"frames.crop": ResizedCrop(self.augment_scale)} if self.augment else {}
        return crop | ({"frames.jitter": Jitter(self.augment_jitter)} if crop and self.augment_jitter else {})


class ClipObjective(Objective):
    """Base of objectives on clips: one dual encoder embeds the F frames and the instruction.

    Batches hold `frames` (uint8 [B, F, H, W, 3]), `clip.indices` (int64 [B, F], frame numbers in the episode),
    `clip.valid` (bool [B, F]), `instruction` (B strings) and `instruction_id` (int64 [B]; equal instructions have equal
    numbers). If the encoder reads proprioception, batches also hold `state` (float32 [B, F, S]).

    Args:
        encoder: Image and text towers that map to one space of D dimensions. If `language` is False, the text tower is
            frozen.
        config: Settings; by default the defaults of `config_type`.

    Attributes:
        reward_form: The reward that the objective trains for, written into the encoder's configuration.
        needs_instructions: True if an objective with `language` can learn only from clips with an instruction.
        contrasts: True if instructions are contrasted with each other, so that data with a single instruction give no
            signal.
        extra_texts: Instructions that no clip carries out, used as negatives of every clip if `takes_extra` is True.
    """

    config_type: ClassVar[type[ClipConfig]]
    language: ClassVar[bool] = True
    needs_instructions: ClassVar[bool] = True
    contrasts: ClassVar[bool] = True
    takes_extra: ClassVar[bool] = False
    extra_texts: tuple[str, ...] = ()
    reward_form: ClassVar[RewardForm] = "potential"
    config: ClipConfig

    def __init__(self, encoder: DualEncoder, config: ClipConfig | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config or self.config_type()
        if not self.language:
            encoder.text.requires_grad_(False)

    def clips(self, pick: Pick, *, per_instruction: bool = False) -> Spec:
        """Return the sampling spec of clips: `frames` with the configuration's augmentation, and the encoder's `state`.

        Args:
            pick: The rule that picks F steps of an episode.
            per_instruction: Draw one clip of each distinct instruction in each epoch.
        """
        spec = Spec.clips(pick, per_instruction=per_instruction, transforms=self.config.augmentation)
        return spec.with_read("state", Read("state", "clip") if getattr(self.encoder, "reads_state", False) else None)

    def encode(self, batch: Batch) -> Features:
        """Return raw embeddings: `frames` [B, F, D], and `text` [B, D] if `language` is True."""
        rows = {"frames": self.embed(batch)}
        rows |= {"text": self.encoder.encode_text(batch["instruction"])} if self.language else {}
        return Features(rows, {"extra": self.encoder.encode_text(self.extra_texts)} if self.extra_texts else {})

    def embed(self, batch: Batch, count: int | None = None) -> Float[Tensor, "B F D"]:
        """Return raw embeddings of each clip's first `count` frames, from the batch's images or cached features."""
        state = (batch["state"][:, :count],) if "state" in batch else ()
        if "features" not in batch:
            size = getattr(self.encoder, "image_size", None)
            return self.encoder.encode_image(images(batch, "frames", size)[:, :count], *state)
        features: Tensor = batch["features"][:, :count]
        sample = torch.arange(len(features), device=features.device)
        row = batch.get("features.row", torch.zeros_like(sample))
        row = row.clamp_max(features.shape[2] - 1)  # validation data have only the row without augmentation
        return self.encoder.embed_features(features[sample, :, row], *state)

    @property
    def trained_form(self) -> RewardForm:
        """The reward that these settings train for: `reward_form`, unless a subclass overrides it."""
        return self.reward_form

    def exports(self) -> dict[str, nn.Module]:
        """Return the dual encoder, whose configuration names the reward that it was trained for."""
        if isinstance(self.encoder, DualEncoder):  # False for a user-defined encoder
            self.encoder.config = self.encoder.config.model_copy(update={"reward_form": self.trained_form})
        return {"encoder": self.encoder}


P = ParamSpec("P")
R = TypeVar("R")
Similarity = Callable[[Tensor, Tensor], Tensor]
"""A function that maps two raw embeddings [..., D], broadcast against each other, to their similarity [...]."""


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of tensors outside autocast, in float32 or wider.

    Half precision keeps three digits, which is too few for similarities divided by temperatures near 0.01.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        # The device `meta` has no autocast.
        with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
            wide = cast("Callable[..., R]", function)
            return wide(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})

    return wrapped


@in_full_precision
def infonce(logits: Float[Tensor, "B B"]) -> Float[Tensor, ""]:
    """Return InfoNCE: the mean cross entropy of each row i with column i as the right class; log B at chance.

    Args:
        logits: The scores F; row i is a query, column j a key.

    Raises:
        BadInputError: If the matrix is not square.
    """
    good = logits.ndim == 2 and logits.shape[0] == logits.shape[1]
    require_shapes(good, "logits", (logits,), "[B, B]", "score every row's query with every row's key")
    return logits.logsumexp(1).mean() - logits.diagonal().mean()


def symmetric_infonce(
    logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None, extra: Float[Tensor, "B N"] | None = None
) -> Float[Tensor, ""]:
    """Return symmetric InfoNCE; row i and column i are a pair.

    With `labels`, entries whose row and column have the same label are positives too. Each positive is contrasted only
    with the negatives of its row (column), and a row's (column's) loss is the mean over its positives. Positives are
    thus never each other's negatives. If all labels are distinct, the loss is the same as without labels.

    Args:
        logits: Scores of every row with every column.
        labels: Equal numbers for interchangeable samples.
        extra: Scores of every row with N further columns, which are negatives of all rows.

    Returns:
        The loss; 0 for a batch without negatives.
    """
    if labels is None and extra is not None:
        labels = torch.arange(len(logits), device=logits.device)
    if labels is None:
        both = logits.logsumexp(1) + logits.logsumexp(0)
        return both.mean() / 2 - logits.diagonal().mean()
    same = labels[:, None] == labels
    share = same / same.sum(1, keepdim=True)  # the same for rows and columns: `same` is symmetric
    negatives = logits.masked_fill(same, torch.finfo(logits.dtype).min)
    of_row = negatives if extra is None else torch.cat([negatives, extra], 1)
    rows = torch.logaddexp(of_row.logsumexp(1, keepdim=True), logits)
    columns = torch.logaddexp(negatives.logsumexp(0, keepdim=True), logits)
    return ((rows + columns - 2 * logits) * share).sum() / (2 * len(logits))


def contrast_metrics(
    logits: Float[Tensor, "B B"], *, labels: Int[Tensor, " B"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """Return the three metrics of every InfoNCE objective, from logits whose positives are on the diagonal.

    Returns:
        `categorical_accuracy`: share of rows whose largest logit is a positive. `logits_pos`, `logits_neg`: mean logit
        of positives and of negatives (0 if there are none).
    """
    logits = logits.detach()
    if labels is None:
        labels = torch.arange(len(logits), device=logits.device)
    same = labels[:, None] == labels
    positives, positive_sum = same.sum(), logits.where(same, 0).sum()
    return {
        "categorical_accuracy": (labels[logits.argmax(1)] == labels).to(logits.dtype).mean(),
        "logits_pos": positive_sum / positives,
        "logits_neg": (logits.sum() - positive_sum) / (logits.numel() - positives).clamp(min=1),
    }


def candidate_metrics(candidates: Float[Tensor, "*batch C"]) -> dict[str, Float[Tensor, ""]]:
    """Return the metrics of `contrast_metrics` for sets of candidates, each with the positive in the first place."""
    candidates = candidates.detach()
    positive, negatives = candidates[..., 0], candidates[..., 1:]
    return {
        "categorical_accuracy": (positive > negatives.amax(-1)).to(candidates.dtype).mean(),
        "logits_pos": positive.mean(),
        "logits_neg": negatives.mean(),
    }


def unit(raw: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Scale embeddings to length 1; a zero vector stays zero."""
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    return raw / length.where(length > 0, 1)


def negative_distance(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """Return -||a - b||_2; its gradient at a = b is 0."""
    distance: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return -distance


def cosine(a: Float[Tensor, "*batch D"], b: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """Return the cosine of the angle between a and b; 0 where a or b is 0."""
    return functional.cosine_similarity(a, b, dim=-1)


def norm_penalty(frames: Float[Tensor, "B F D"], l1_weight: float, l2_weight: float) -> Float[Tensor, ""]:
    """Return the weighted sum of the mean L1 and mean L2 norm of all B F embeddings: the penalty of R3M and VIP."""
    l1, l2 = (torch.linalg.vector_norm(frames, ord=order, dim=-1).mean() for order in (1, 2))
    penalty: Tensor = l1_weight * l1 + l2_weight * l2
    return penalty


def other_rows(order: Shaped[Tensor, " B"], count: int, labels: Int[Tensor, " B"] | None = None) -> Int[Tensor, "N B"]:
    """Return N other rows of the batch for each row, as its negatives.

    The rows form a circle in the order of their random numbers, and negative n of a row is its (n+1)-th neighbour.
    So every `result[n]` is a permutation without fixed points, and up to N = B - 1 a row's negatives are distinct. The
    circle depends only on the samples and their random numbers, not on the ranks that hold them.

    Args:
        order: A random number for each row, drawn with the batch (`ORDER`).
        count: N, the number of negatives of each row; beyond B - 1 the neighbours repeat.
        labels: Equal numbers for interchangeable samples, which are not each other's negatives. A row's negatives are
            then its next neighbours with other labels. If there are none, the row itself is returned, which has no
            effect on the contrast.

    Raises:
        BadInputError: If the batch has one row and `count` > 0.
    """
    B, device = len(order), order.device
    if not count:
        return torch.empty((0, B), dtype=torch.int64, device=device)
    if B < 2:
        hint = "raise batch_size or set num_negatives to 0"
        raise BadInputError("batch", f"{B} sample", "at least 2, since negatives are other rows", hint)
    circle = torch.argsort(order, stable=True)
    position = torch.argsort(circle)
    neighbour = 1 + torch.arange(count, device=device) % (B - 1)
    if labels is None:
        return circle[(position + neighbour[:, None]) % B]
    around = circle[(position + torch.arange(1, B, device=device)[:, None]) % B]  # [B - 1, B], the nearest first
    same = labels[around] == labels
    free = (~same).sum(0)
    others = around.gather(0, same.int().argsort(dim=0, stable=True))
    chosen = others.gather(0, torch.arange(count, device=device)[:, None] % free.clamp(min=1))
    return chosen.where(free > 0, torch.arange(B, device=device))


def shapes(*tensors: Tensor) -> str:
    """Return the tensors' shapes as text, for an error message."""
    return f"shape{'s' if len(tensors) > 1 else ''} {', '.join(str(tuple(x.shape)) for x in tensors)}"


def require_shapes(good: object, where: str, tensors: tuple[Tensor, ...], expected: str, hint: str) -> None:
    """Raise `BadInputError` with the tensors' shapes unless `good` is true."""
    if not good:
        raise BadInputError(where, shapes(*tensors), expected, hint)


def check_clips(
    frames: Float[Tensor, "B F D"], text: Float[Tensor, "L D"], *, least: int = 1, paired: bool = True
) -> None:
    """Raise `BadInputError` unless shapes are [B, F, D], F >= `least`, and [L, D]; if `paired`, L must equal B."""
    ok = frames.ndim == 3 and frames.shape[1] >= least and text.ndim == 2 and text.shape[1] == frames.shape[2]
    if not ok or (paired and len(text) != len(frames)):
        expected = f"[B, F, D] with F >= {least}, and [B, D]"
        hint = "pass the embeddings of F frames of each clip, and one embedding of its instruction"
        raise BadInputError("frames, text", shapes(frames, text), expected, hint)


def check_frames(frames: Float[Tensor, "B F D"], order: str) -> None:
    """Raise `BadInputError` if `frames` has fewer frames than `order` lists, such as "o_0, o_g, o_t, o_{t+1}"."""
    least = order.count(",") + 1
    if frames.ndim != 3 or frames.shape[1] < least:
        hint = f"pass the embeddings of ({order}) of each clip, in this order"
        raise BadInputError("frames", shapes(frames), f"[B, F, D] with F >= {least}", hint)


def weighted_mean(losses: Float[Tensor, "B ..."], batch: Batch) -> Float[Tensor, ""]:
    """Return the mean of losses; samples are weighted by `WEIGHT` if the batch has it, and all weights of 0 give 0."""
    if WEIGHT not in batch:
        return losses.mean()
    weights: Tensor = batch[WEIGHT][:, -1]
    return (losses.reshape(len(losses), -1).mean(1) * weights).sum() / (weights.sum() + 1e-6)


Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(module: Module) -> Module:
    """Copy a module as a target network: the copy is in the state dict, has no gradients and is in no optimiser."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Set `target` to (1 - rate) target + rate online; buffers (running statistics) are copied."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
