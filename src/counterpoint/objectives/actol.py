"""What AcTOL measures on frames: similarity to an instruction, and distance from a line between two of them.

The gradient is written by hand. Frames [B, T, D] are by far the largest thing in either loss, and to make a
tensor of their size costs more than to fill it: here there is one, which holds the gaps between line and frames
on the way forward and the frames' gradient on the way back.

Vision-language ordering: AcTOL's first loss, its lower bound, and a form that learns which way time runs.

    R(i, j) = -|S(v_i, l) - S(v_j, l)| / temperature, S the cosine                  (Eq. 1)
    N(i, j) = {k != i : |n(i) - n(k)| >= |n(i) - n(j)|}, which holds j itself       (section 4.1)
    L_VLO   = mean over i != j of -log exp R(i, j) / sum_{k in N(i, j)} exp R(i, k)
    L*      = mean over i != j of log |{k != i : |n(i) - n(k)| = |n(i) - n(j)|}|    (Eq. 3)

A frame is one number here, its similarity to the instruction. For each anchor i the other frames are put in
order of their distance, farthest first; every denominator is then a running sum along that order. That takes
O(T^2) memory a video, not the O(T^3) of all triples. The gradient is written by hand: so the T^2 numbers of a
video live only as long as the forward pass.

Brownian bridge: AcTOL's second loss, which holds frames near the line between two of them.

    mu_t  = v_i + (t - n(i)) / (n(j) - n(i)) (v_j - v_i)                                        (Eq. 30)
    var_t = (t - n(i)) (n(j) - t) / (n(j) - n(i))
    L_BB  = mean over the frames t strictly inside [n(i), n(j)] of ||v_t - mu_t||^2 / (2 var_t) (Eq. 4)

The log form puts log(1 + 2 var_t) in the place of 2 var_t (Appendix B). Embeddings are raw, not normalised.

What the authors train is something else. Their function documents times (N,) and is given (N, 1), so that
every frame is compared with every mean:

    1 / (M D) sum_t sum_j ||v_j - mu_t||^2 / (2 var_t),  M frames inside

With mu the average of the mu_t weighted by 1 / (2 var_t), that is sum_j ||v_j - mu||^2 times a weight, plus a
term of the two ends alone: least where all frames inside fall onto the one point mu. It stands here under
names of its own.

AcTOL: vision-language representations ordered and continuous in time (Zhang et al., 2025; arXiv 2502.01218).

    L_AcTOL = L_VLO + lambda L_BB                                                                (Eq. 5)

L_VLO is in `vlo`, L_BB in `brownian_bridge`. Both look inside one video; no instruction is contrasted with
another.

Symbols: v_i -> `frames[:, i]`; l -> `text`; n(i) -> `times`; T -> the frames drawn of a clip; lambda ->
`bridge_weight`; sim -> `frame_geometry.frame_similarity`.

Where the sources differ:
  - Temperature: "the default of CLIP" in the paper, 0.01 in the authors' code. Followed: 0.01.
  - N(i, j) is strict in Appendix A.1, ">=" in section 4.1 and in the proof itself. Followed: ">=", with j in it.
  - Variance: section 4.2's form holds for t counted from n(i); Eq. 30 stands. Eq. 4's mean includes the ends,
    where it is 0/0; here, as in the authors' code, it is over the frames inside.
  - Bridge: the paper takes the variance's logarithm (Appendix B) and lambda = 100, as the authors' first
    release does; their later code has 0.1 / (2 var). Followed: the paper; `bridge` names the others.
  - What the authors' training computes for L_BB is another loss, which collapses frames (`brownian_bridge`).
  - Interval: "any sampled interval" in the paper, the first to the last sampled frame in the code. With
    `interval="random"` each clip draws a sub-interval of its frames.
  - The authors drop clips shorter than T. Here they come with padding, which both losses leave out.
  - L_VLO does not know which way time runs. In the paper CLIP's weights do; for encoders that start from
    nothing there is `DirectedAcTOL`, which is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from counterpoint.data.draws import SortedFrames
from counterpoint.encoders.base import DualEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch, ClipConfig, ClipObjective, Features, LossOutput
from counterpoint.objectives.infonce import check_clips, in_full_precision

__all__ = [
    "AcTOL",
    "AcTOLConfig",
    "Bridge",
    "DirectedAcTOL",
    "Direction",
    "Neighbours",
    "Pull",
    "actol_loss",
    "brownian_bridge_log_loss",
    "brownian_bridge_log_loss_as_trained",
    "brownian_bridge_loss",
    "brownian_bridge_loss_as_trained",
    "directed_vlo_loss",
    "either_way",
    "frame_geometry",
    "frame_similarity",
    "line_distance",
    "log_pull_to_line",
    "log_pull_to_point",
    "lower_bound",
    "ordering_loss",
    "ordering_metrics",
    "pull_to_line",
    "pull_to_point",
    "random_intervals",
    "time_forward",
    "vlo_loss",
    "vlo_lower_bound",
]


def frame_similarity(frames: Float[Tensor, "B T D"], text: Float[Tensor, "B D"]) -> Float[Tensor, "B T"]:
    """Cosine of every frame and its video's text; 0, without a gradient, where one of them is 0.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    check_clips(frames, text)
    similarity: Tensor = _Geometry.apply(frames, text, None, None)[0]
    return similarity


def line_distance(
    frames: Float[Tensor, "B T D"], ends: Int[Tensor, "B 2"], share: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """||v_t - (v_i + share_t (v_j - v_i))||^2.

    Args:
        frames: Raw embeddings.
        ends: Positions (i, j) of each video's end frames.
        share: How far along the line each frame should stand.
    """
    distance: Tensor = _Geometry.apply(frames, None, ends, share)[1]
    return distance


@in_full_precision
def frame_geometry(
    frames: Float[Tensor, "B T D"], text: Float[Tensor, "B D"], ends: Int[Tensor, "B 2"], share: Float[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """`frame_similarity` and `line_distance` at once, with one gradient for both.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    check_clips(frames, text)
    both: tuple[Tensor, Tensor] = _Geometry.apply(frames, text, ends, share)
    return both


class _Geometry(torch.autograd.Function):
    """Similarity where there is a text, distance where there is a line; the other is `None`."""

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, text: Tensor | None, ends: Tensor | None, share: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        similarity = inverse = text_inverse = distance = gap = None
        if text is not None:
            inverse, text_inverse = _inverse_length(frames), _inverse_length(text)
            similarity = torch.bmm(text[:, None], frames.transpose(1, 2))[:, 0]
            similarity.mul_(inverse).mul_(text_inverse[:, None])
        if ends is not None and share is not None:
            gap = _gap(frames, ends, share)
            distance = torch.linalg.vector_norm(gap, dim=2).square()
        ctx.save_for_backward(frames, text, ends, share, inverse, text_inverse, similarity)
        ctx.gap = gap if ctx.needs_input_grad[0] else None
        return similarity, distance

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_similarity: Tensor | None, to_distance: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        frames, text, ends, share, inverse, text_inverse, similarity = ctx.saved_tensors
        to_frames = to_text = None
        if to_distance is not None and ctx.needs_input_grad[0]:
            gap = _gap(frames, ends, share) if ctx.gap is None else ctx.gap
            ctx.gap = None  # spent; a second pass through the same graph makes its own
            to_frames = gap.mul_(-2 * to_distance[..., None])
            to_ends = torch.bmm(torch.stack([share - 1, -share], 1), to_frames)
            to_frames.flatten(0, 1).index_add_(0, _rows(frames, ends), to_ends.flatten(0, 1))
        if to_similarity is not None:
            across = to_similarity * inverse * text_inverse[:, None]
            along = to_similarity * similarity
            if ctx.needs_input_grad[0]:
                shrink = (-along * inverse.square())[..., None]
                to_frames = frames * shrink if to_frames is None else to_frames.addcmul_(frames, shrink)
                to_frames.addcmul_(across[..., None], text[:, None])
            if ctx.needs_input_grad[1]:
                to_text = torch.bmm(across[:, None], frames)[:, 0]
                to_text.addcmul_(text, (-along.sum(1) * text_inverse.square())[:, None])
        return to_frames, to_text, None, None


def _inverse_length(raw: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """1 / ||raw||; 0 for a zero vector."""
    length: Tensor = torch.linalg.vector_norm(raw, dim=-1)
    return length.reciprocal().where(length > 0, 0)


def _gap(frames: Tensor, ends: Tensor, share: Tensor) -> Float[Tensor, "B T D"]:
    """The point on the line less the frame."""
    first, last = frames.flatten(0, 1)[_rows(frames, ends)].view(len(ends), 2, -1).chunk(2, dim=1)
    return torch.lerp(first, last, share[..., None]).sub_(frames)


def _rows(frames: Tensor, ends: Tensor) -> Int[Tensor, " 2B"]:
    """Where the end frames stand among all B T frames."""
    return (ends + frames.shape[1] * torch.arange(len(ends), device=ends.device)[:, None]).flatten()


@dataclass(frozen=True)
class Neighbours:
    """For each anchor frame, the other frames from farthest to nearest in time.

    `x[b, i, p]` below belongs to the frame in place p of anchor i; frames that do not count come last.

    Attributes:
        times: [B, T], n(i).
        order: int64 [B, T, T], which frame stands there.
        counts: bool [B, T, T], False where anchor or frame is padding, and for the anchor itself.
        first: int [B, T, T], the first place at the same distance: all places before it are strictly farther.
        tied: double [B, T, T], at the last place of each distance how many frames stand at it, elsewhere 0.
    """

    times: Shaped[Tensor, "B T"]
    order: Int[Tensor, "B T T"]
    counts: Bool[Tensor, "B T T"]
    first: Int[Tensor, "B T T"]
    tied: Float[Tensor, "B T T"]

    @classmethod
    def of(cls, times: Shaped[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None = None) -> Neighbours:
        """Sort by |n(i) - n(k)|; `valid` is False at padding.

        Raises:
            BadInputError: When the shapes differ.
        """
        if times.ndim != 2 or (valid is not None and valid.shape != times.shape):
            raise BadInputError(
                "times, valid",
                f"shapes {tuple(times.shape)} and {None if valid is None else tuple(valid.shape)}",
                "[B, T] each",
                "pass one frame number and one flag a frame",
            )
        T = times.shape[1]
        apart = ~torch.eye(T, dtype=torch.bool, device=times.device)
        if valid is not None:
            apart = apart & valid[:, :, None] & valid[:, None, :]
        distance = (times[:, None, :] - times[:, :, None]).abs_().masked_fill_(~apart, -1)
        distance, order = distance.sort(dim=2, descending=True)
        counts = distance >= 0
        changes = distance[..., 1:] != distance[..., :-1]
        place = torch.arange(T, dtype=torch.int32, device=times.device)
        first = functional.pad(place[1:].where(changes, 0), (1, 0)).cummax(2).values
        ends = functional.pad(changes, (0, 1), value=True) & counts
        return cls(times, order, counts, first, (place + 1 - first).where(ends, 0).double())

    @property
    def pairs(self) -> Int[Tensor, " B"]:
        """Ordered pairs (i, j) that count, at least 1."""
        return self.counts.sum((1, 2)).clamp(min=1)


Direction = Callable[[Tensor, Neighbours], Tensor]
"""From S(v_k, l) - S(v_i, l), in place order, and the neighbours: the sign a gap should have, +1 or -1."""


def either_way(gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
    """The paper's: similarity may rise or fall with time, and sign * gap = |gap|."""
    return gap.sign()


def time_forward(gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
    """Similarity should rise: +1 for later frames, -1 for earlier ones, as `either_way` at equal times."""
    times, order = neighbours.times, neighbours.order
    later = (times.gather(1, order.flatten(1)).view_as(order) - times[:, :, None]).sign()
    return later.to(gap.dtype).where(later != 0, gap.sign())


@in_full_precision
def vlo_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """AcTOL's L_VLO, the mean over videos.

    It is even in S: with -S in the place of S it is the same, so it does not know which way time runs.

    Args:
        frames: Raw embeddings of each video's frames.
        text: Raw embeddings of their instructions.
        times: n(i), frame numbers (or any times), in any order.
        temperature: What R is divided by; the authors' 0.01.
        valid: False at padding, which then changes nothing.

    Returns:
        A video with fewer than two frames adds 0.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    similarity, neighbours = frame_similarity(frames, text), Neighbours.of(times, valid)
    return ordering_loss(similarity, neighbours, temperature, either_way).mean()


@in_full_precision
def directed_vlo_loss(
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    times: Shaped[Tensor, "B T"],
    *,
    temperature: float = 0.01,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """L_VLO with a direction: ours, not the paper's.

        R(i, j) = -sign(n(j) - n(i)) (S(v_j, l) - S(v_i, l)) / temperature

    Where similarity rises with time this is `vlo_loss` exactly; where it falls, it is greater. L* bounds it too,
    since that bound holds for any R. Being linear in S, it has a gradient even where all frames look alike.

    Args, result and errors are those of `vlo_loss`.
    """
    similarity, neighbours = frame_similarity(frames, text), Neighbours.of(times, valid)
    return ordering_loss(similarity, neighbours, temperature, time_forward).mean()


def vlo_lower_bound(times: Shaped[Tensor, "B T"], *, valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, ""]:
    """L* (Eq. 3), the mean over videos: neither form of the loss can be lower (Theorem 4.2).

    With two frames both are always at the bound. Otherwise a similarity that changes at a steady rate approaches
    it as the temperature falls.

    Args:
        times: n(i), as given to the loss.
        valid: False at padding.

    Raises:
        BadInputError: When the shapes differ.
    """
    return lower_bound(Neighbours.of(times, valid)).mean()


def lower_bound(neighbours: Neighbours) -> Float[Tensor, " B"]:
    """L* of each video."""
    return torch.xlogy(neighbours.tied, neighbours.tied).sum((1, 2)) / neighbours.pairs


def ordering_loss(
    similarity: Float[Tensor, "B T"], neighbours: Neighbours, temperature: float, direction: Direction
) -> Float[Tensor, " B"]:
    """The ordering loss of each video, from its frames' similarities."""
    loss: Tensor = _Ordering.apply(similarity, neighbours, temperature, direction)
    return loss


def ordering_metrics(
    similarity: Float[Tensor, "B T"], neighbours: Neighbours, temperature: float, direction: Direction
) -> dict[str, Float[Tensor, ""]]:
    """The three numbers of every InfoNCE objective, over pairs (i, j) with a frame strictly farther from i.

    Returns:
        `categorical_accuracy`: share of pairs whose R is no less than that of any strictly farther frame.
        `logits_pos`: mean R(i, j). `logits_neg`: mean over pairs of the strictly farther frames' mean R.
    """
    gap = _gap_vlo(similarity.detach(), neighbours)
    score = -direction(gap, neighbours) * gap / temperature
    pair = neighbours.counts & (neighbours.first > 0)
    farther = (neighbours.first - 1).clamp(min=0).long()
    best = score.cummax(2).values.gather(2, farther)
    mean = score.cumsum(2).gather(2, farther) / (farther + 1)
    values = {"categorical_accuracy": (score >= best).double(), "logits_pos": score, "logits_neg": mean}
    return {name: value.where(pair, 0).sum() / pair.sum().clamp(min=1) for name, value in values.items()}


def _gap_vlo(similarity: Float[Tensor, "B T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
    """S(v_k, l) - S(v_i, l), in double precision: exp R spans hundreds of powers of ten."""
    wide, order = similarity.double(), neighbours.order
    return wide.gather(1, order.flatten(1)).view_as(order).sub_(wide[:, :, None])


class _Ordering(torch.autograd.Function):
    """Value and gradient in one go, along the places p of each anchor.

    With n_p = `tied`, e_p = exp R_p and C_p the running sum of e, which at the last place of a distance is the
    denominator of all pairs at that distance, a video's loss sums n_p log C_p - R_p. The slope in R_p is e_p
    times the sum of n_q / C_q over q >= p, less 1. Frames that do not count stand last and have n = 0.
    """

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, neighbours: Neighbours, temperature: float, direction: Direction
    ) -> Tensor:
        gap, pairs = _gap_vlo(similarity, neighbours), neighbours.pairs
        slope = direction(gap, neighbours).masked_fill_(~neighbours.counts, 0).div_(-temperature)
        score = gap.mul_(slope)
        # |R| is at most 2 / temperature: double precision holds exp R down to a temperature of 1/350.
        contrast = _contrast if 350 * temperature >= 1 else _contrast_in_logs
        log_sums, share = contrast(score, neighbours.tied)
        # What flows into frame k flows out of anchor i.
        flow = share.sub_(1).mul_(slope).div_(pairs[:, None, None])
        gradient = flow.sum(2).neg_().scatter_add_(1, neighbours.order.flatten(1), flow.flatten(1))
        ctx.save_for_backward(gradient.to(similarity.dtype))
        return ((log_sums - score.sum((1, 2))) / pairs).to(similarity.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[:, None] * gradient, None, None, None


def _contrast(score: Float[Tensor, "B T T"], tied: Float[Tensor, "B T T"]) -> tuple[Tensor, Tensor]:
    """Per video the sum of n_p log C_p, [B], and its slope in each R_p, [B, T, T]."""
    e = score.exp()
    C = e.cumsum(2)
    share = (tied / C).flip(2).cumsum_(2).flip(2).mul_(e)
    return C.log_().mul_(tied).sum((1, 2)), share


def _contrast_in_logs(score: Float[Tensor, "B T T"], tied: Float[Tensor, "B T T"]) -> tuple[Tensor, Tensor]:
    """The same where exp would underflow, at several times the cost."""
    log_C = score.logcumsumexp(2)
    behind = (tied.log() - log_C).flip(2).logcumsumexp(2).flip(2)
    return (log_C * tied).sum((1, 2)), behind.add_(score).exp_()


LOG_EPSILON = 1e-6  # the authors' addition to log(1 + 2 var)


@dataclass(frozen=True)
class Bridge:
    """Where each frame of a video stands between the ends of its bridge.

    Attributes:
        ends: Positions (i, j) of the end frames.
        share: (t - n(i)) / (n(j) - n(i)).
        variance: var_t; 1 where t is not inside.
        inside: Whether t lies strictly between the ends in time, and is no padding.
        dimensions: D.
    """

    ends: Int[Tensor, "B 2"]
    share: Float[Tensor, "B T"]
    variance: Float[Tensor, "B T"]
    inside: Bool[Tensor, "B T"]
    dimensions: int

    @classmethod
    def over(
        cls,
        frames: Float[Tensor, "B T D"],
        times: Shaped[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        interval: Int[Tensor, "B 2"] | None = None,
    ) -> Bridge:
        """The bridge between the frames at `interval`, by default the first and the last valid ones.

        Raises:
            BadInputError: When the shapes do not pair up.
        """
        given = {"frames": frames, "times": times, "valid": valid, "interval": interval}
        shapes = {name: tuple(value.shape) for name, value in given.items() if value is not None}
        lead = frames.shape[:2]
        wanted = {"frames": (*lead, *frames.shape[-1:]), "times": lead, "valid": lead, "interval": (*lead[:1], 2)}
        if any(shape != wanted[name] for name, shape in shapes.items()):
            raise BadInputError(
                ", ".join(shapes),
                f"shapes {', '.join(map(str, shapes.values()))}",
                "frames [B, T, D], times and valid [B, T], interval [B, 2]",
                "pass one time and one flag a frame, and two positions a video",
            )
        if valid is None:
            valid = torch.ones_like(times, dtype=torch.bool)
        if interval is None:
            flags = valid.int()
            interval = torch.stack([flags.argmax(1), flags.shape[1] - 1 - flags.flip(1).argmax(1)], 1)
        start, stop = times.gather(1, interval).chunk(2, dim=1)
        # Differences of frame numbers are exact; only they become floating point.
        since, until, length = ((a - b).to(frames.dtype) for a, b in ((times, start), (stop, times), (stop, start)))
        inside = valid & (since * until > 0)
        share = (since / length).where(inside, 0)
        return cls(interval, share, (since * until / length.abs()).where(inside, 1), inside, frames.shape[2])

    @property
    def count(self) -> Int[Tensor, "B 1"]:
        """Frames inside, at least 1."""
        return self.inside.sum(1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Pull:
    """A video's loss: sum_t weight_t ||v_t - (v_i + share_t (v_j - v_i))||^2 + reach ||v_j - v_i||^2."""

    share: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"]
    reach: Float[Tensor, " B"] | None = None

    def loss(self, frames: Tensor, bridge: Bridge, distance: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Mean over videos, from `line_distance` at `share`."""
        loss = (self.weight * distance).sum(1)
        if self.reach is not None:
            first, last = frames.gather(1, bridge.ends[..., None].expand(-1, -1, bridge.dimensions)).unbind(1)
            loss = loss + self.reach * (last - first).square().sum(1)
        return loss.mean()


def pull_to_line(bridge: Bridge) -> Pull:
    """Eq. 4."""
    return Pull(bridge.share, _plain(bridge) / bridge.count)


def log_pull_to_line(bridge: Bridge) -> Pull:
    """Eq. 4 as Appendix B scales it."""
    return Pull(bridge.share, _log(bridge) / bridge.count)


def pull_to_point(bridge: Bridge) -> Pull:
    """What b46fa66 trains, without its factor 0.1."""
    return _collapse(bridge, _plain(bridge))


def log_pull_to_point(bridge: Bridge) -> Pull:
    """What 1aa2a0c trains, without its factor 100."""
    return _collapse(bridge, _log(bridge))


def _plain(bridge: Bridge) -> Float[Tensor, "B T"]:
    return (1 / (2 * bridge.variance)).where(bridge.inside, 0)


def _log(bridge: Bridge) -> Float[Tensor, "B T"]:
    return (1 / (torch.log1p(2 * bridge.variance) + LOG_EPSILON)).where(bridge.inside, 0)


def _collapse(bridge: Bridge, weight: Float[Tensor, "B T"]) -> Pull:
    """sum_t w_t sum_j ||v_j - mu_t||^2 = W sum_j ||v_j - mu||^2 + M sum_t w_t ||mu_t - mu||^2, over M D."""
    total = weight.sum(1, keepdim=True)
    centre = (weight * bridge.share).sum(1, keepdim=True) / total.where(total > 0, 1)
    spread = (weight * (bridge.share - centre).square()).sum(1)
    share = centre.expand_as(weight)
    return Pull(share, bridge.inside * total / (bridge.count * bridge.dimensions), spread / bridge.dimensions)


def _loss(
    form: Callable[[Bridge], Pull], frames: Tensor, times: Tensor, valid: Tensor | None, interval: Tensor | None = None
) -> Float[Tensor, ""]:
    bridge = Bridge.over(frames, times, valid, interval)
    pull = form(bridge)
    return pull.loss(frames, bridge, line_distance(frames, bridge.ends, pull.share))


@in_full_precision
def brownian_bridge_loss(
    frames: Float[Tensor, "B T D"],
    times: Shaped[Tensor, "B T"],
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    interval: Int[Tensor, "B 2"] | None = None,
) -> Float[Tensor, ""]:
    """L_BB (Eq. 4), the mean over videos.

    Args:
        frames: Raw embeddings.
        times: n(i), frame numbers (or any times).
        valid: False at padding, which then changes nothing.
        interval: Positions (i, j) of each video's end frames; the first and the last valid frame by default.

    Returns:
        A video without a frame strictly between its ends in time adds 0.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    return _loss(pull_to_line, frames, times, valid, interval)


@in_full_precision
def brownian_bridge_log_loss(
    frames: Float[Tensor, "B T D"],
    times: Shaped[Tensor, "B T"],
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    interval: Int[Tensor, "B 2"] | None = None,
) -> Float[Tensor, ""]:
    """`brownian_bridge_loss` with log(1 + 2 var_t) for 2 var_t: what the paper trains, with lambda = 100."""
    return _loss(log_pull_to_line, frames, times, valid, interval)


@in_full_precision
def brownian_bridge_loss_as_trained(
    frames: Float[Tensor, "B T D"], times: Shaped[Tensor, "B T"], *, valid: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, ""]:
    """What the authors' training computes for L_BB (b46fa66, without its factor 0.1); it collapses frames.

    Args, result and errors are those of `brownian_bridge_loss`.
    """
    return _loss(pull_to_point, frames, times, valid)


@in_full_precision
def brownian_bridge_log_loss_as_trained(
    frames: Float[Tensor, "B T D"], times: Shaped[Tensor, "B T"], *, valid: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, ""]:
    """The same in the log form: the authors' first release (1aa2a0c, without its factor 100)."""
    return _loss(log_pull_to_point, frames, times, valid)


def random_intervals(sample: Int[Tensor, " B"], valid: Bool[Tensor, "B T"]) -> Int[Tensor, "B 2"]:
    """One sub-interval a video, with a valid frame inside; all of a video with fewer than three valid frames.

    The start is uniform, the end uniform after it. Both are a pure function of the sample's number: batch, rank
    and worker change nothing.

    Args:
        sample: Global sample indices.
        valid: False at padding.
    """
    count = valid.sum(1)
    free = (count - 2).clamp(min=1)
    start = (_uniform(sample, 0) * free).long()
    stop = start + 2 + (_uniform(sample, 1) * (free - start)).long()
    places = torch.stack([start, torch.minimum(stop, count - 1)], 1).clamp(min=0)
    return (~valid).sort(dim=1, stable=True).indices.gather(1, places)


def _uniform(sample: Int[Tensor, " B"], stream: int) -> Float[Tensor, " B"]:
    """In [0, 1): the splitmix64 hash of (sample, stream); 64-bit products wrap as it wants them."""
    word = (2 * sample.long() + stream + 1) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        word = (word ^ _shift(word, shift)) * factor
    return _shift(word ^ _shift(word, 31), 11).double() / 2**53


def _shift(word: Int[Tensor, " B"], bits: int) -> Int[Tensor, " B"]:
    """Logical shift to the right."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


BRIDGES = {
    "log_variance": log_pull_to_line,
    "variance": pull_to_line,
    "log_variance_as_trained": log_pull_to_point,
    "variance_as_trained": pull_to_point,
}


class AcTOLConfig(ClipConfig):
    """AcTOL's settings. The paper's recipe switches `augment` on.

    Attributes:
        temperature: What R is divided by.
        frames: T, frames drawn of a clip.
        bridge_weight: lambda. The paper's 100 goes with CLIP's weights; small encoders want 0.1 or less.
        bridge: `log_variance` (Appendix B), `variance` (Eq. 4), or what the authors' releases compute instead.
        interval: `clip`, from the first to the last frame drawn, or `random`, one sub-interval a clip.
    """

    temperature: float = Field(default=0.01, gt=0)
    frames: int = Field(default=10, ge=3)
    bridge_weight: float = Field(default=100.0, ge=0)
    bridge: Literal["log_variance", "variance", "log_variance_as_trained", "variance_as_trained"] = "log_variance"
    interval: Literal["clip", "random"] = "clip"


@in_full_precision
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
    """`vlo_loss` + `bridge_weight` * `brownian_bridge_log_loss` (Eq. 5), in fewer passes over the frames.

    Args:
        frames: Raw embeddings of each video's frames.
        text: Raw embeddings of their instructions.
        times: n(i), frame numbers (or any times).
        temperature: What R is divided by.
        bridge_weight: lambda.
        valid: False at padding, which then changes nothing.
        interval: Positions (i, j) of the bridge's ends; the first and the last valid frame by default.

    Raises:
        BadInputError: When the shapes do not pair up.
    """
    bridge = Bridge.over(frames, times, valid, interval)
    pull = log_pull_to_line(bridge)
    similarity, distance = frame_geometry(frames, text, bridge.ends, pull.share)
    order = ordering_loss(similarity, Neighbours.of(times, valid), temperature, either_way)
    return order.mean() + bridge_weight * pull.loss(frames, bridge, distance)


class AcTOL(ClipObjective):
    """AcTOL on clips.

    Args:
        encoder: Image and text towers. The paper's start from CLIP, which says which way similarity runs.
        config: Settings; the paper's by default.
    """

    def __init__(self, encoder: DualEncoder, config: AcTOLConfig | None = None) -> None:
        config = config or AcTOLConfig()
        super().__init__(encoder, SortedFrames(config.frames), augment=config.augmentation)
        self.config = config

    def direction(self, gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
        """Which sign a gap in similarity should have: `vlo.either_way`."""
        return either_way(gap, neighbours)

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Eq. 5.

        Metrics are the two terms (`vlo`; `bridge`, before its weight), how far `vlo` stands above its lower
        bound (`vlo_excess`), and the three of every InfoNCE objective over pairs of frames.
        """
        frames, text = features.rows["frames"], features.rows["text"]
        times, valid = batch["clip.indices"], batch["clip.valid"]
        interval = random_intervals(batch["sample"], valid) if self.config.interval == "random" else None
        bridge = Bridge.over(frames, times, valid, interval)
        pull = BRIDGES[self.config.bridge](bridge)
        similarity, distance = frame_geometry(frames, text, bridge.ends, pull.share)
        neighbours, temperature = Neighbours.of(times, valid), self.config.temperature
        vlo = ordering_loss(similarity, neighbours, temperature, self.direction)
        smoothness = pull.loss(frames, bridge, distance)
        metrics = {
            "vlo": vlo.mean(),
            "bridge": smoothness,
            "vlo_excess": (vlo - lower_bound(neighbours)).mean(),
            **ordering_metrics(similarity, neighbours, temperature, self.direction),
        }
        return LossOutput(vlo.mean() + self.config.bridge_weight * smoothness, metrics)


class DirectedAcTOL(AcTOL):
    """AcTOL on `vlo.directed_vlo_loss`: similarity must rise with time. For encoders that start from nothing."""

    def direction(self, gap: Float[Tensor, "B T T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
        """Which sign a gap in similarity should have: `vlo.time_forward`."""
        return time_forward(gap, neighbours)
