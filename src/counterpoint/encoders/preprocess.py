"""Preprocessing from camera frames to normalised images: stated here and nowhere else."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import require

_TOLERANCE = 1e-3
"""Distance from [0, 1] that rounding may cause."""


def preprocess(
    frames: Shaped[Tensor, "*lead H W 3"], *, size: int, mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Float[Tensor, "N 3 S S"]:
    """Scale to [0, 1], stretch to S x S, normalise.

    The whole image is kept: other shapes are stretched, not cropped. Resampling is bilinear with antialiasing, on the
    device, in at least single precision. An image of the right size is untouched.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1]; any number of leading dimensions.
        size: S.
        mean: Channel means of pixels in [0, 1]; its device and dtype are those of the result.
        std: Channel deviations.

    Returns:
        N = product of the leading dimensions, in the dtype of `mean`.

    Raises:
        BadInputError: When dtype or shape differ, or floats lie outside [0, 1].
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


def stack_frames(
    frames: Shaped[Tensor, "N S H W 3"], mean: Float[Tensor, "*image 3"], deviation: Float[Tensor, "*channels"]
) -> Float[Tensor, "N L H W"]:
    """Return normalised images with the channels of S frames, the oldest first, in channels-last memory.

    Bytes are reordered before they become four times as many, and one fused operation normalises them.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1].
        mean: Of pixels in [0, 1]: an image [H, W, 3], or channel means [3].
        deviation: One number, or one for each channel.

    Returns:
        L = 3 S channels.
    """
    S, unit = frames.shape[1], 255.0 if frames.dtype == torch.uint8 else 1.0
    pixels = torch.cat(frames.unbind(1), -1).to(mean.dtype)
    offset = (-mean / deviation).repeat(*[1] * (mean.ndim - 1), S)
    scale = 1 / (unit * deviation)
    return torch.addcmul(offset, pixels, scale.repeat(S) if scale.ndim else scale).permute(0, 3, 1, 2)


def resize_and_crop(
    frames: Shaped[Tensor, "M H W 3"], *, size: int, resize: int, resample: Literal["bilinear", "bicubic"]
) -> Float[Tensor, "M 3 S S"]:
    """Return pixels in [0, 1], the shorter edge resized to `resize` pixels (antialiased), then the centre cut out."""
    images = (frames.float() / 255 if frames.dtype == torch.uint8 else frames).permute(0, 3, 1, 2)
    height, width = images.shape[-2:]
    short = min(height, width)
    if short != resize:
        scaled = (height * resize // short, width * resize // short)
        images = functional.interpolate(images, scaled, mode=resample, antialias=True).clamp(0, 1)  # bicubic overshoots
    top, left = (round((side - size) / 2) for side in images.shape[-2:])
    return images[..., top : top + size, left : left + size]


def check_frames(frames: Tensor) -> None:
    """Raise `BadInputError` unless frames are [..., H, W, 3], uint8 or float in [0, 1]."""
    expected = "a tensor [..., H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    is_tensor = isinstance(frames, Tensor)
    require(is_tensor, "frames", type(frames).__name__, expected, "wrap it with torch.from_numpy")
    images = frames.ndim >= 3 and frames.shape[-1] == 3 and 0 not in frames.shape[-3:]
    require(images, "frames", f"shape {list(frames.shape)}", expected, "put channels last: .movedim(-3, -1)")
    if frames.dtype == torch.uint8:
        return
    hint = "convert pixels in [0, 255] with .to(torch.uint8)"
    require(frames.is_floating_point(), "frames", frames.dtype, expected, hint)
    if frames.numel():
        low, high = (float(bound) for bound in frames.detach().aminmax())
        inside = low >= -_TOLERANCE and high <= 1 + _TOLERANCE  # false for NaN too
        hint = "pass pixels in [0, 255] as uint8, or divide by 255; the encoder normalises by itself"
        require(inside, "frames", f"{frames.dtype} in [{low:.4g}, {high:.4g}]", expected, hint)
