"""AcTOL: vision-language representations ordered and continuous in time (Zhang et al., 2025; arXiv 2502.01218).

    R(i, j) = -|S(v_i, l) - S(v_j, l)| / temperature, S the cosine                              (Eq. 1)
    N(i, j) = {k != i : |n(i) - n(k)| >= |n(i) - n(j)|}, which contains j                       (section 4.1)
    L_VLO   = mean over i != j of -log exp R(i, j) / sum_{k in N(i, j)} exp R(i, k)
    L*      = mean over i != j of log |{k != i : |n(i) - n(k)| = |n(i) - n(j)|}|, L_VLO's lower bound (Eq. 3)
    mu_t    = v_i + (t - n(i)) / (n(j) - n(i)) (v_j - v_i)                                      (Eq. 30)
    var_t   = (t - n(i)) (n(j) - t) / (n(j) - n(i))
    L_BB    = mean over the frames t strictly inside [n(i), n(j)] of ||v_t - mu_t||^2 / (2 var_t)  (Eq. 4)
    L_AcTOL = L_VLO + lambda L_BB                                                               (Eq. 5)

Both losses compare frames of one video; instructions are not contrasted with each other.

Symbols: v_i -> `frames[:, i]` (raw; L_BB does not normalise them); l -> `text`; n(i) -> `times`; T frames are sampled
from a clip; lambda -> `bridge_weight`; S -> `frame_similarity`.

Where the sources differ:
  - Temperature: "the default of CLIP" in the paper, 0.01 in the authors' code. We follow the code.
  - N(i, j) has ">" in Appendix A.1, ">=" in section 4.1 and in the proof. We follow ">=", so that N(i, j) contains j.
  - Variance: section 4.2's form holds for t counted from n(i); we follow Eq. 30. Eq. 4's mean includes the ends, where
    it is 0/0; here, as in the authors' code, the mean is over the frames inside.
  - Bridge: the paper uses log(1 + 2 var_t) in place of 2 var_t (Appendix B) with lambda = 100, as does the authors'
    first release; their later code has 0.1 / (2 var). We follow the paper; the setting `bridge` selects other forms.
  - The authors' function documents times of shape (N,) but receives (N, 1), so that it compares every frame with every
    mean: 1 / (M D) sum_t sum_j ||v_j - mu_t||^2 / (2 var_t), with M frames inside. Let mu be the average of the mu_t
    weighted by 1 / (2 var_t). Then the loss is sum_j ||v_j - mu||^2 times a constant, plus a term that depends only on
    the two ends. At the minimum all frames inside coincide. The forms that end in `_as_trained` compute this loss.
  - Interval: "any sampled interval" in the paper, first to last sampled frame in the code. With `interval="random"`
    each clip has a random sub-interval of its frames.
  - The authors drop clips shorter than T, and so does our recipe for the paper (`data.min_length`). If short clips are
    kept, they are padded, and both losses ignore the padding.
  - In the authors' code an epoch has one clip of each distinct sentence (`unique_instructions`); the paper does not
    mention this.
  - L_VLO does not change if the sign of S changes, so it does not depend on the direction of time. In the paper CLIP's
    weights provide the direction; `DirectedAcTOL`, which is not from the paper, is for encoders that are trained from
    scratch.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from counterpoint.data.augment import Noise
from counterpoint.data.draws import SortedFrames
from counterpoint.data.spec import Spec
from counterpoint.objectives.base import (
    Batch,
    ClipConfig,
    ClipObjective,
    Features,
    LossOutput,
    check_clips,
    in_full_precision,
    require_shapes,
)

BridgeForm = Literal["variance", "log_variance", "variance_as_trained", "log_variance_as_trained"]
INTERVAL = Noise((2,), "uniform")  # the random numbers that `random_intervals` takes
LOG_EPSILON = 1e-6  # the authors' addition to log(1 + 2 var)


class AcTOLConfig(ClipConfig):
    """Settings of AcTOL. The paper's recipe switches `augment` on.

    Attributes:
        temperature: Divisor of the differences of similarity in the ordering loss (R in Eq. 1).
        frames: Number of frames sampled from a clip (T).
        bridge_weight: Weight of the Brownian bridge loss (lambda). The paper's 100 is for encoders that start from
            CLIP's weights; small encoders need 0.1 or less.
        bridge: The `form` of `brownian_bridge_loss`; the paper uses `log_variance` (Appendix B).
        interval: Frames that the bridge spans: `clip`, from the first to the last sampled frame, or `random`, one
            random sub-interval per clip.
        unique_instructions: Draw one clip of each distinct instruction in each epoch, as the authors' loader does.
    """

    temperature: float = Field(default=0.01, gt=0)
    frames: int = Field(default=10, ge=3)
    bridge_weight: float = Field(default=100.0, ge=0)
    bridge: BridgeForm = "log_variance"
    interval: Literal["clip", "random"] = "clip"
    unique_instructions: bool = False


def frame_similarity(frames: Float[Tensor, "B T D"], text: Float[Tensor, "B D"]) -> Float[Tensor, "B T"]:
    """Return the cosine of every frame with its video's text; 0, without gradient, if either vector is 0."""
    check_clips(frames, text)
    products = (frames @ text[..., None])[..., 0]
    return products * _inverse_length(frames) * _inverse_length(text)[:, None]


def _inverse_length(raw: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1)
    return (length > 0) / length.where(length > 0, 1)


class Neighbours(NamedTuple):
    """The frames of a video around each anchor i, sorted in time from farthest to nearest along the last axis.

    Frames that do not count (padding, the anchor itself) come last: `counts` is False for them. `pairs` [B] is the
    number of frames that count, at least 1. `later` is the sign of a frame's time minus the anchor's time. Frames at
    positions before `first` are strictly farther from the anchor. `tied` is the number of frames at the same distance,
    given at the last position of that distance, 0 elsewhere.
    """

    order: Int[Tensor, "B T T"]
    later: Shaped[Tensor, "B T T"]
    counts: Bool[Tensor, "B T T"]
    first: Int[Tensor, "B T T"]
    tied: Float[Tensor, "B T T"]
    pairs: Int[Tensor, " B"]


def neighbours(times: Shaped[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None = None) -> Neighbours:
    """Sort the frames around each anchor by |n(i) - n(k)|; `valid` is False at padding."""
    valid = torch.ones_like(times, dtype=torch.bool) if valid is None else valid
    ok, hint = times.ndim == 2 and times.shape == valid.shape, "pass one frame number and one flag a frame"
    require_shapes(ok, "times, valid", (times, valid), "[B, T] each", hint)
    T = times.shape[1]
    apart = ~torch.eye(T, dtype=torch.bool, device=times.device) & valid[:, :, None] & valid[:, None, :]
    gap = times[:, None, :] - times[:, :, None]
    distance, order = gap.abs().masked_fill(~apart, -1).sort(dim=2, descending=True)
    counts = distance >= 0
    changes = distance[..., 1:] != distance[..., :-1]
    position = torch.arange(T, device=times.device)
    first = functional.pad(position[1:].where(changes, 0), (1, 0)).cummax(2).values
    ends = functional.pad(changes, (0, 1), value=True) & counts
    tied = (position + 1 - first).where(ends, 0).double()
    return Neighbours(order, gap.gather(2, order).sign(), counts, first, tied, counts.sum((1, 2)).clamp(min=1))


def pair_scores(
    similarity: Float[Tensor, "B T"], near: Neighbours, *, temperature: float, directed: bool = False
) -> Float[Tensor, "B T T"]:
    """Return R in the neighbours' order, in double precision because exp R spans hundreds of powers of ten.

    Args:
        similarity: S(v_i, l).
        near: The videos' `neighbours`.
        temperature: Divisor in R; 0.01 as in the authors' code.
        directed: Use the R of `directed_vlo_loss`.
    """
    wide = similarity.double()
    gap = wide.gather(1, near.order.flatten(1)).view_as(near.order) - wide[:, :, None]
    size = (gap * near.later).where(near.later != 0, gap.abs()) if directed else gap.abs()
    return (-size / temperature).where(near.counts, 0)


def ordering_losses(scores: Float[Tensor, "B T T"], near: Neighbours) -> Float[Tensor, " B"]:
    """Return L_VLO of each video from its `pair_scores`.

    The farthest frames come first, so that every denominator is a cumulative sum: O(T^2) memory per video, where all
    triples would take O(T^3).
    """
    return (near.tied * scores.logcumsumexp(2) - scores).sum((1, 2)) / near.pairs


def ordering_metrics(scores: Float[Tensor, "B T T"], near: Neighbours) -> dict[str, Float[Tensor, ""]]:
    """Return the three InfoNCE metrics over pairs (i, j) for which some frame is strictly farther from i than j is.

    Returns:
        `categorical_accuracy`: share of pairs whose R is at least the R of every strictly farther frame.
        `logits_pos`: mean R(i, j). `logits_neg`: mean over pairs of the strictly farther frames' mean R.
    """
    pair, farther = near.counts & (near.first > 0), (near.first - 1).clamp(min=0)
    best = scores.cummax(2).values.gather(2, farther)
    mean = scores.cumsum(2).gather(2, farther) / (farther + 1)
    values = {"categorical_accuracy": (scores >= best).double(), "logits_pos": scores, "logits_neg": mean}
    return {name: value.where(pair, 0).sum() / pair.sum().clamp(min=1) for name, value in values.items()}


@in_full_precision
def vlo_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """Return L_VLO, the mean over videos; a video with fewer than two frames adds 0.

    Args:
        frames: Raw embeddings of each video's frames.
        text: Raw embeddings of the videos' instructions.
        times: Frame numbers n(i) (or any times), in any order.
        temperature: Divisor in R; 0.01 as in the authors' code.
        valid: False at padding, which does not change the loss.
    """
    near = neighbours(times, valid)
    scores = pair_scores(frame_similarity(frames, text), near, temperature=temperature)
    return ordering_losses(scores, near).mean().to(frames.dtype)


@in_full_precision
def directed_vlo_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """Return a form of L_VLO that depends on the direction of time; it is not from the paper.

        R(i, j) = -sign(n(j) - n(i)) (S(v_j, l) - S(v_i, l)) / temperature

    If similarity rises with time, the result equals `vlo_loss`; if similarity falls, the result is greater. L* is a
    lower bound of this form too, since the bound holds for any R. R is linear in S, so there is a gradient even if all
    frames look alike. At equal times R is defined as in `vlo_loss`. Arguments and errors are those of `vlo_loss`.
    """
    near = neighbours(times, valid)
    scores = pair_scores(frame_similarity(frames, text), near, temperature=temperature, directed=True)
    return ordering_losses(scores, near).mean().to(frames.dtype)


def vlo_lower_bound(times: Shaped[Tensor, "B T"], *, valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, ""]:
    """Return L* (Eq. 3), the mean over videos: no form of L_VLO can be lower (Theorem 4.2).

    With two frames L_VLO always equals L*. With more frames, L_VLO of a similarity that changes at a steady rate
    approaches L* as the temperature falls.

    Args:
        times: Frame numbers n(i), as given to the loss.
        valid: False at padding.
    """
    return _lower_bounds(neighbours(times, valid)).mean()


def _lower_bounds(near: Neighbours) -> Float[Tensor, " B"]:
    return torch.xlogy(near.tied, near.tied).sum((1, 2)) / near.pairs


@in_full_precision
def brownian_bridge_loss(
    frames: Float[Tensor, "B T D"],
    times: Shaped[Tensor, "B T"],
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    interval: Int[Tensor, "B 2"] | None = None,
    form: BridgeForm = "variance",
) -> Float[Tensor, ""]:
    """Return L_BB (Eq. 4), the mean over videos; a video without a frame strictly inside its interval adds 0.

    Args:
        frames: Raw embeddings.
        times: Frame numbers n(i) (or any times).
        valid: False at padding, which does not change the loss.
        interval: Positions (i, j) of each video's end frames; the first and the last valid frame by default.
        form: `variance` is Eq. 4. `log_variance` replaces 2 var_t by log(1 + 2 var_t); the paper trains this form with
            lambda = 100. `variance_as_trained` is the loss that the authors' code computes (b46fa66, without its factor
            0.1), which collapses frames. `log_variance_as_trained` is the loss that their first release computes
            (1aa2a0c, without its factor 100).
    """
    valid = torch.ones_like(times, dtype=torch.bool) if valid is None else valid
    if interval is None:
        flags = valid.int()
        interval = torch.stack([flags.argmax(-1), flags.shape[-1] - 1 - flags.flip(-1).argmax(-1)], -1)
    B, T, D = frames.shape
    ok = times.shape == valid.shape == (B, T) and interval.shape == (B, 2)
    expected = "times and valid [B, T], interval [B, 2], for frames [B, T, D]"
    require_shapes(ok, "times, valid, interval", (times, valid, interval), expected, "pass one time a frame")
    start, stop = times.gather(1, interval).chunk(2, dim=1)
    # Differences of integer frame numbers are exact; only the differences become floating point.
    since, until, length = ((a - b).to(frames.dtype) for a, b in ((times, start), (stop, times), (stop, start)))
    inside = valid & (since * until > 0)
    share = (since / length).where(inside, 0)
    variance = (since * until / length.abs()).where(inside, 1)
    scale = torch.log1p(2 * variance) + LOG_EPSILON if form.startswith("log") else 2 * variance
    weight = inside / scale
    count = inside.sum(1, keepdim=True).clamp(min=1)
    first, last = frames.gather(1, interval[..., None].expand(-1, -1, D)).chunk(2, dim=1)
    reach = frames.new_zeros(B)
    if form.endswith("as_trained"):
        total = weight.sum(1, keepdim=True)
        centre = (weight * share).sum(1, keepdim=True) / total.where(total > 0, 1)
        reach = (weight * (share - centre).square()).sum(1) / D
        share, weight = centre.expand_as(weight), inside * total / D
    distance = (torch.lerp(first, last, share[..., None]) - frames).square().sum(2)
    return ((weight * distance / count).sum(1) + reach * (last - first)[:, 0].square().sum(1)).mean()


def actol_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    bridge_weight: float = 100.0,
    valid: Bool[Tensor, "B T"] | None = None,
    interval: Int[Tensor, "B 2"] | None = None,
) -> Float[Tensor, ""]:
    """Return `vlo_loss` + `bridge_weight` * `brownian_bridge_loss` in its log form (Eq. 5), with the same arguments."""
    order = vlo_loss(frames, text, times, temperature=temperature, valid=valid)
    return order + bridge_weight * brownian_bridge_loss(
        frames, times, valid=valid, interval=interval, form="log_variance"
    )


def random_intervals(uniform: Float[Tensor, "B 2"], valid: Bool[Tensor, "B T"]) -> Int[Tensor, "B 2"]:
    """Return one random sub-interval per video with a valid frame inside; all of a video of under three valid frames.

    The start is sampled uniformly, then the end uniformly among the possible ends.

    Args:
        uniform: Two random numbers in [0, 1) for each video, drawn with the batch.
        valid: False at padding.
    """
    count = valid.sum(1)
    free = (count - 2).clamp(min=1)
    first, second = uniform.double().unbind(1)  # in single precision a product could round up to the bound
    start = (first * free).long()
    stop = start + 2 + (second * (free - start)).long()
    positions = torch.stack([start, torch.minimum(stop, count - 1)], 1).clamp(min=0)
    return (~valid).sort(dim=1, stable=True).indices.gather(1, positions)


class AcTOL(ClipObjective):
    """AcTOL on clips; arguments are those of `ClipObjective`, the paper's settings by default.

    The paper's encoder starts from CLIP's weights, which determine whether similarity rises or falls with time.
    """

    config_type = AcTOLConfig
    config: AcTOLConfig
    contrasts = False

    directed: ClassVar[bool] = False

    def sampling(self) -> Spec:
        """Return the sampling spec: T sorted frames of each clip."""
        spec = self.clips(SortedFrames(self.config.frames), per_instruction=self.config.unique_instructions)
        return spec.with_transform("interval", INTERVAL) if self.config.interval == "random" else spec

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return Eq. 5.

        Metrics are the two terms (`vlo`; `bridge`, before its weight), the excess of `vlo` over its lower bound
        (`vlo_excess`), and the three metrics of every InfoNCE objective, over pairs of frames.
        """
        frames, text = features.rows["frames"], features.rows["text"]
        times, valid = batch["clip.indices"], batch["clip.valid"]
        interval = random_intervals(batch["interval"], valid) if self.config.interval == "random" else None
        bridge = brownian_bridge_loss(frames, times, valid=valid, interval=interval, form=self.config.bridge)
        near, temperature = neighbours(times, valid), self.config.temperature
        scores = pair_scores(frame_similarity(frames, text), near, temperature=temperature, directed=self.directed)
        vlo = ordering_losses(scores, near)
        metrics = {"bridge": bridge, "vlo_excess": (vlo - _lower_bounds(near)).mean()}
        vlo = vlo.mean().to(frames.dtype)
        metrics |= {"vlo": vlo} | ordering_metrics(scores.detach(), near)
        return LossOutput(vlo + self.config.bridge_weight * bridge, metrics)


class DirectedAcTOL(AcTOL):
    """AcTOL with `directed_vlo_loss`: similarity must rise with time. For encoders that are trained from scratch."""

    directed = True
