"""Vision-language ordering: AcTOL's first loss, its lower bound, and a form that learns which way time runs.

    R(i, j) = -|S(v_i, l) - S(v_j, l)| / temperature, S the cosine                  (Eq. 1)
    N(i, j) = {k != i : |n(i) - n(k)| >= |n(i) - n(j)|}, which holds j itself       (section 4.1)
    L_VLO   = mean over i != j of -log exp R(i, j) / sum_{k in N(i, j)} exp R(i, k)
    L*      = mean over i != j of log |{k != i : |n(i) - n(k)| = |n(i) - n(j)|}|    (Eq. 3)

A frame is one number here, its similarity to the instruction. For each anchor i the other frames are put in
order of their distance, farthest first; every denominator is then a running sum along that order. That takes
O(T^2) memory a video, not the O(T^3) of all triples. The gradient is written by hand: so the T^2 numbers of a
video live only as long as the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from counterpoint.errors import BadInputError
from counterpoint.objectives.frame_geometry import frame_similarity
from counterpoint.objectives.infonce import in_full_precision

__all__ = [
    "Direction",
    "Neighbours",
    "directed_vlo_loss",
    "either_way",
    "lower_bound",
    "ordering_loss",
    "ordering_metrics",
    "time_forward",
    "vlo_loss",
    "vlo_lower_bound",
]


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
                found=f"shapes {tuple(times.shape)} and {None if valid is None else tuple(valid.shape)}",
                expected="[B, T] each",
                mend="pass one frame number and one flag a frame",
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


def vlo_lower_bound(
    times: Shaped[Tensor, "B T"], *, valid: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, ""]:
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
    gap = _gap(similarity.detach(), neighbours)
    score = -direction(gap, neighbours) * gap / temperature
    pair = neighbours.counts & (neighbours.first > 0)
    farther = (neighbours.first - 1).clamp(min=0).long()
    best = score.cummax(2).values.gather(2, farther)
    mean = score.cumsum(2).gather(2, farther) / (farther + 1)
    values = {"categorical_accuracy": (score >= best).double(), "logits_pos": score, "logits_neg": mean}
    return {name: value.where(pair, 0).sum() / pair.sum().clamp(min=1) for name, value in values.items()}


def _gap(similarity: Float[Tensor, "B T"], neighbours: Neighbours) -> Float[Tensor, "B T T"]:
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
        gap, pairs = _gap(similarity, neighbours), neighbours.pairs
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
