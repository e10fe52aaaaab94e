"""What AcTOL measures on frames: similarity to an instruction, and distance from a line between two of them.

The gradient is written by hand. Frames [B, T, D] are by far the largest thing in either loss, and to make a
tensor of their size costs more than to fill it: here there is one, which holds the gaps between line and frames
on the way forward and the frames' gradient on the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoint.objectives.infonce import check_clips, in_full_precision

__all__ = ["frame_geometry", "frame_similarity", "line_distance"]


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
    frames: Float[Tensor, "B T D"],
    text: Float[Tensor, "B D"],
    ends: Int[Tensor, "B 2"],
    share: Float[Tensor, "B T"],
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
