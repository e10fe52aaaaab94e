"""From camera frames to what an image tower sees: stated here and nowhere else."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import BadInputError

__all__ = ["check_frames", "preprocess"]

_TOLERANCE = 1e-3
"""How far outside [0, 1] rounding may carry a pixel."""


def preprocess(
    frames: Shaped[Tensor, "*lead H W 3"], *, size: int, mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Float[Tensor, "N 3 S S"]:
    """Scale to [0, 1], stretch to S x S, normalise.

    The whole picture is kept: other shapes are stretched, not cropped. Resampling is bilinear with
    antialiasing, on the device, in at least single precision (autocast coarsens none of these operations). An
    image of the right size is untouched.

    Args:
        frames: uint8 in [0, 255] or floating point in [0, 1]; the dtype decides. Any number of leading
            dimensions.
        size: S.
        mean: Channel means of pixels in [0, 1]; its device and dtype are those of the result.
        std: Channel deviations.

    Returns:
        N = product of the leading dimensions, in the dtype of `mean`.

    Raises:
        BadInputError: Another dtype, another shape, or floats outside [0, 1].
    """
    check_frames(frames)
    dtype = torch.promote_types(mean.dtype, torch.float32)
    height, width = frames.shape[-3:-1]
    images = frames.to(mean.device, non_blocking=True).reshape(math.prod(frames.shape[:-3]), height, width, 3)
    images = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
    images = images.permute(0, 3, 1, 2)
    if (height, width) != (size, size):
        images = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    centred = images - mean.to(dtype)[:, None, None]
    return (centred / std.to(dtype)[:, None, None]).to(mean.dtype)


def check_frames(frames: Tensor) -> None:
    """Refuse what is no batch of camera frames: one range and one layout for each dtype.

    Raises:
        BadInputError: Another dtype, another shape, or floats outside [0, 1].
    """
    expected = "a tensor [..., H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    if not isinstance(frames, Tensor):
        raise BadInputError("frames", type(frames).__name__, expected, "wrap it with torch.from_numpy")
    if frames.ndim < 3 or frames.shape[-1] != 3 or 0 in frames.shape[-3:]:
        raise BadInputError("frames", f"shape {list(frames.shape)}", expected, "put channels last: .movedim(-3, -1)")
    if frames.dtype == torch.uint8:
        return
    if not frames.is_floating_point():
        raise BadInputError("frames", str(frames.dtype), expected, "convert pixels in [0, 255] with .to(torch.uint8)")
    if frames.numel():
        low, high = (float(bound) for bound in frames.detach().aminmax())
        # Written so that a NaN fails it too.
        if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):
            raise BadInputError(
                "frames",
                f"{frames.dtype} in [{low:.4g}, {high:.4g}]",
                expected,
                "pass pixels in [0, 255] as uint8, or divide by 255; the encoder normalises by itself",
            )
