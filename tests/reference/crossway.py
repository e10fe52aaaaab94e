"""Crossway Diffusion's reconstruction error, one number at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def image_error(image: Tensor, frames: Tensor) -> float:
    """Mean squared error of [B, 3, h, w] in [-1, 1] from bytes [B, h, w, 3]."""
    total, count = 0.0, 0
    for row in range(len(frames)):
        for y in range(frames.shape[1]):
            for x in range(frames.shape[2]):
                for colour in range(3):
                    seen = 2 * int(frames[row, y, x, colour]) / 255 - 1
                    total += (float(image[row, colour, y, x]) - seen) ** 2
                    count += 1
    return total / count


def state_error(predicted: Tensor, state: Tensor) -> float:
    parts = [
        (float(a) - float(b)) ** 2
        for one, other in zip(predicted, state, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    return sum(parts) / len(parts)


def reconstruction(images: Tensor, frames: Tensor, weights: Sequence[float], numbers: Tensor, state: Tensor) -> float:
    """Weighted errors of images [B, C, 3, h, w] of frames [B, C, h, w, 3], and that of the state [B, P]."""
    errors = [image_error(images[:, camera], frames[:, camera]) for camera in range(frames.shape[1])]
    return sum(w * e for w, e in zip(weights, errors, strict=True)) + state_error(numbers, state)
