"""Brownian bridge: AcTOL's second loss, which holds frames near the line between two of them.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.frame_geometry import line_distance
from counterpoint.objectives.infonce import in_full_precision

__all__ = [
    "Bridge",
    "Pull",
    "brownian_bridge_log_loss",
    "brownian_bridge_log_loss_as_trained",
    "brownian_bridge_loss",
    "brownian_bridge_loss_as_trained",
    "log_pull_to_line",
    "log_pull_to_point",
    "pull_to_line",
    "pull_to_point",
    "random_intervals",
]

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
        wanted = {
            "frames": (*lead, *frames.shape[-1:]),
            "times": lead,
            "valid": lead,
            "interval": (*lead[:1], 2),
        }
        if any(shape != wanted[name] for name, shape in shapes.items()):
            raise BadInputError(
                ", ".join(shapes),
                found=f"shapes {', '.join(map(str, shapes.values()))}",
                expected="frames [B, T, D], times and valid [B, T], interval [B, 2]",
                mend="pass one time and one flag a frame, and two positions a video",
            )
        if valid is None:
            valid = torch.ones_like(times, dtype=torch.bool)
        if interval is None:
            flags = valid.int()
            interval = torch.stack([flags.argmax(1), flags.shape[1] - 1 - flags.flip(1).argmax(1)], 1)
        start, stop = times.gather(1, interval).chunk(2, dim=1)
        # Differences of frame numbers are exact; only they become floating point.
        since, until, length = (
            (a - b).to(frames.dtype) for a, b in ((times, start), (stop, times), (stop, start))
        )
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
    form: Callable[[Bridge], Pull],
    frames: Tensor,
    times: Tensor,
    valid: Tensor | None,
    interval: Tensor | None = None,
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
