"""Interval quasimetric embeddings (IQE): a distance with a direction, for any pair of vectors.

Improved Representation of Asymmetrical Distances with Interval Quasimetric Embeddings (Wang & Isola, 2022). A vector
of C x K numbers is read as C components of K interval ends. For component c

    d_c(u, v) = | union over k of [u_ck, max(u_ck, v_ck)] |        the length of the union on the line

and the distance is their "maxmean" with a learned a in (0, 1):

    d(u, v) = a max_c d_c(u, v) + (1 - a) mean_c d_c(u, v)

Whatever the vectors, d(u, u) = 0, d(u, v) >= 0 and d(u, w) <= d(u, v) + d(v, w), while d(u, v) and d(v, u) may differ:
going down a slope is shorter than going up.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["IntervalQuasimetric", "interval_union"]


def interval_union(
    start: Float[Tensor, "*batch K"], end: Float[Tensor, "*batch K"]
) -> Float[Tensor, "*batch"]:
    """Length of the union over k of the intervals [start_k, max(start_k, end_k)].

    Sorted by start, each interval adds what lies beyond the farthest end so far.
    """
    starts, order = start.sort(dim=-1)
    ends = torch.maximum(start, end).gather(-1, order)
    reached = ends.cummax(dim=-1).values
    fresh = torch.relu(ends[..., 1:] - torch.maximum(starts[..., 1:], reached[..., :-1]))
    return ends[..., 0] - starts[..., 0] + fresh.sum(dim=-1)


class IntervalQuasimetric(nn.Module):
    """d(u, v) of embeddings of E critics, each with its own a.

    Args:
        members: E.
        components: C; a vector has C x K numbers.
    """

    def __init__(self, members: int, components: int) -> None:
        super().__init__()
        self.components = components
        self.mix = nn.Parameter(torch.zeros(members, 1))

    def forward(
        self, start: Float[Tensor, "E B _"], end: Float[Tensor, "E B _"], *, frozen: bool = False
    ) -> Float[Tensor, "E B"]:
        """Distances from `start` to `end`, in float32; `frozen` keeps gradients from a."""
        shape = (*start.shape[:-1], self.components, -1)
        lengths = interval_union(start.float().reshape(shape), end.float().reshape(shape))
        share = torch.sigmoid(self.mix.detach() if frozen else self.mix)
        return share * lengths.amax(dim=-1) + (1 - share) * lengths.mean(dim=-1)
