"""Random numbers of a batch: crops, shifts and colour jitter of images, and noise for objectives.

The sampler draws them on the CPU for the whole batch, so they do not depend on the number of workers and ranks. The
functions below apply crops, shifts and jitter to a whole batch at once, on its device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from counterpoint.errors import require

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


class Transform(Protocol):
    """A rule that draws random numbers for a batch; the batch holds them under the transform's key."""

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[Any]:
        """Draw the numbers of a whole batch: [B, ...]."""


class ViewShape(NamedTuple):
    """The sizes of a batch of images: B samples of V views (or frames) by C cameras, H x W pixels."""

    B: int
    V: int
    C: int
    H: int
    W: int


@dataclass(frozen=True)
class ResizedCrop:
    """One random crop per clip: [B, 4], (top, left, height, width) as shares of the image.

    The crop is drawn as in torchvision's RandomResizedCrop: its area is uniform in `scale`, and width / height in
    pixels is log-uniform in `ratio`. Up to ten crops are drawn until one fits into the image. If none fits, the crop is
    the largest centred window of a permitted ratio.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw one crop per clip."""
        wide = views.W / views.H
        area = rng.uniform(*self.scale, (10, views.B))
        ratio = np.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1]), (10, views.B)))
        sizes = np.sqrt([area / ratio * wide, area * ratio / wide])  # [2, 10, B], height and width
        fits = (sizes <= 1).all(0)
        size = np.take_along_axis(sizes, fits.argmax(0)[None, None], 1)[:, 0]
        corner = rng.uniform(0, np.maximum(1 - size, 0))
        whole = np.clip(wide, *self.ratio)
        largest = np.array([[min(1, wide / whole)], [min(1, whole / wide)]])
        corner, size = (np.where(fits.any(0), *pair) for pair in ((corner, (1 - largest) / 2), (size, largest)))
        return np.concatenate([corner, size]).T.astype(np.float32)


@dataclass(frozen=True)
class Jitter:
    """Colour jitter: [B, F, 4], factors of brightness, contrast and saturation, and a hue rotation in turns.

    The attributes are the maximum change of each factor, in the order of torchvision's ColorJitter; `Jitter(x)`
    changes only the brightness.
    """

    brightness: float
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw four numbers per frame."""
        width = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        numbers = np.array([1.0, 1.0, 1.0, 0.0]) + width * rng.uniform(-1, 1, (views.B, views.V, 4))
        return numbers.astype(np.float32)


@dataclass(frozen=True)
class Shift:
    """DrQ-v2's random shift: int64 [B, V, 2], (x, y) in 0..2 pad, the same for all frames and cameras of a view.

    Attributes:
        pad: Maximum shift in either direction, in pixels; edges are replicated.
        together: Shift all views of a sample by the same amount, instead of drawing one shift per view.
    """

    pad: int
    together: bool = False

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.int64]:
        """Sample one shift for each view, or, with `together`, for each sample."""
        drawn = rng.integers(2 * self.pad + 1, size=(views.B, 1 if self.together else views.V, 2))
        return np.broadcast_to(drawn, (views.B, views.V, 2)).copy()


@dataclass(frozen=True)
class Crop:
    """A random window cut out of every image: int64 [B, V, C, 2], (x, y) of its top left corner.

    Attributes:
        size: Side of the window, in pixels.
    """

    size: int

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one corner per view and camera; refuse images smaller than the window."""
        good, expected = min(views.H, views.W) >= self.size, f"at least {self.size} x {self.size}, the side of a crop"
        require(good, "frames", f"{views.H} x {views.W}", expected, "open the data larger, or crop less")
        room = np.array([views.W, views.H]) - self.size + 1
        return rng.integers(room, size=(views.B, views.V, views.C, 2))


@dataclass(frozen=True)
class Row:
    """A random choice of one stored row per sample, such as one of a clip's augmented features: int64 [B]."""

    rows: int

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one row per sample."""
        return rng.integers(self.rows, size=views.B)


@dataclass(frozen=True)
class Noise:
    """Random numbers that an objective uses as they are: float32 [B, ...], or [B, V, C, ...] for each image.

    Attributes:
        shape: Shape of the numbers of one sample, or of one image.
        kind: `normal` is standard normal, `uniform` lies in [0, 1).
        each: `sample` draws the numbers once per sample, `image` once per image.
    """

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform"] = "normal"
    each: Literal["sample", "image"] = "sample"

    def draw(self, views: ViewShape, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw the noise of a batch."""
        lead = views[:1] if self.each == "sample" else views[:3]
        sample = rng.standard_normal if self.kind == "normal" else rng.random
        return sample((*lead, *self.shape), np.float32)


def images(
    batch: Mapping[str, Any], key: str, size: int | None = None
) -> UInt8[Tensor, "B F H W 3"] | Float[Tensor, "B F S S 3"]:
    """Return the frames under `key`, augmented where the batch holds random numbers for it.

    Args:
        batch: A batch with frames and, optionally, random numbers.
        key: The frames' key.
        size: Side S of crops, in pixels; the frames' shorter side by default.

    Returns:
        The frames: uint8 as stored if there is nothing to apply, otherwise float in [0, 1].
    """
    frames: Tensor = batch[key]
    crop = batch.get(f"{key}.crop")
    if crop is None:
        return frames
    cropped = resized_crop(frames.float() / 255, crop, size or min(frames.shape[-3:-1]))
    jitter = batch.get(f"{key}.jitter")
    return cropped if jitter is None else color_jitter(cropped, jitter)


def resized_crop(
    frames: Float[Tensor, "B F H W 3"], crop: Float[Tensor, "B 4"], size: int
) -> Float[Tensor, "B F S S 3"]:
    """Cut one window per clip and resize it bilinearly to a square.

    Args:
        frames: Values in [0, 1].
        crop: [top, left, height, width] as shares of the image.
        size: S, in pixels.
    """
    B, F, H, W, _ = frames.shape
    top, left, height, width = crop.to(frames.dtype).unbind(1)
    zero = torch.zeros_like(top)
    theta = torch.stack([width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], 1).view(B, 2, 3)
    grid = functional.affine_grid(theta, [B, 3 * F, size, size], align_corners=False)
    # All frames of a clip share one window, so they are processed as channels of one image.
    stacked = frames.permute(0, 1, 4, 2, 3).reshape(B, F * 3, H, W)
    cut = functional.grid_sample(stacked, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return cut.reshape(B, F, 3, size, size).permute(0, 1, 3, 4, 2)


def color_jitter(frames: Float[Tensor, "B F H W 3"], jitter: Float[Tensor, "B F 4"]) -> Float[Tensor, "B F H W 3"]:
    """Change brightness, contrast, saturation, then hue, each frame by its own factors; clamp to [0, 1].

    Hue is rotated in the chroma plane of YIQ, which approximates the rotation in HSV linearly.
    """
    brightness, contrast, saturation, hue = (value[..., None, None, None] for value in jitter.unbind(-1))
    luma = frames.new_tensor(LUMA)
    out = (frames * brightness).clamp(0, 1)
    mean = (out @ luma).mean(dim=(-2, -1))[..., None, None, None]
    out = (mean + (out - mean) * contrast).clamp(0, 1)
    grey = (out @ luma)[..., None]
    out = (grey + (out - grey) * saturation).clamp(0, 1)
    to_yiq = frames.new_tensor([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
    y, i, q = (out @ to_yiq.T).unbind(-1)
    cos, sin = torch.cos(2 * math.pi * hue[..., 0]), torch.sin(2 * math.pi * hue[..., 0])
    turned = torch.stack([y, cos * i - sin * q, sin * i + cos * q], -1)
    shifted: Tensor = turned @ torch.linalg.inv(to_yiq).T
    return shifted.clamp(0, 1)


def brightened_views(
    frames: UInt8[Tensor, "B V S H W 3"], jitter: Float[Tensor, "B V 4"] | None
) -> UInt8[Tensor, "B V S H W 3"]:
    """Multiply every observation of a batch by its own brightness; `None` changes nothing."""
    if jitter is None:
        return frames
    return (frames * jitter[..., :1, None, None, None]).clamp(0, 255).round().to(torch.uint8)


def random_shift(
    frames: UInt8[Tensor, "N S H W 3"], shift: Int[Tensor, "N 2"], *, pad: int
) -> UInt8[Tensor, "N S H W 3"]:
    """Shift images as DrQ-v2 does, by an index gather: all frames of a stack move together, edges are replicated.

    The authors' code samples a grid bilinearly, at positions that are whole pixels up to rounding. The index gather
    takes exactly the same crop of the padded image and keeps uint8 values.

    Args:
        frames: N stacks of frames.
        shift: Top left corner (x, y) of the crop in the padded image, in [0, 2 pad]; a shift of `pad` changes nothing.
        pad: P, in pixels.
    """
    N, S, H, W, C = frames.shape
    padded = frames.new_empty((N, S, H + 2 * pad, W + 2 * pad, C))
    inside = slice(pad, pad + W)
    padded[:, :, pad : pad + H, inside] = frames
    padded[:, :, :pad, inside], padded[:, :, pad + H :, inside] = frames[:, :, :1], frames[:, :, -1:]
    padded[..., :pad, :] = padded[..., pad : pad + 1, :]
    padded[..., pad + W :, :] = padded[..., pad + W - 1 : pad + W, :]
    return _windows(padded, shift, H, W)


def cropped(
    frames: Shaped[Tensor, "N *lead H W c"], corner: Int[Tensor, "N 2"], size: int
) -> Shaped[Tensor, "N *lead s s c"]:
    """Cut a window out of every image, by an index gather: uint8 stays uint8, masks stay binary.

    Args:
        frames: N stacks of images, or of masks with one channel.
        corner: (x, y) of each window's top left corner, inside the image.
        size: Side of the windows, in pixels.
    """
    N, *lead, H, W, c = frames.shape
    if (size, size) == (H, W):
        return frames
    return _windows(frames.reshape(N, -1, H, W, c), corner, size, size).view(N, *lead, size, size, c)


def _windows(images: Tensor, corner: Tensor, height: int, width: int) -> Tensor:
    """Cut one window out of every stack of images [N, F, H, W, c]."""
    N, F, H, W, c = images.shape
    flat = images.reshape(N, F, H, W * c)
    if flat.device.type == "cpu":  # copies row by row; indexing by row and column copies byte by byte
        rows, (x, y) = np.ascontiguousarray(flat.numpy()), corner.numpy().T
        n, f, h, w = rows.strides
        shape, strides = (N, H - height + 1, W - width + 1, F, height, width * c), (n, h, w * c, f, h, w)
        windows = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
        return torch.from_numpy(windows[np.arange(N), y, x]).view(N, F, height, width, c)
    down = corner[:, 1:] + torch.arange(height, device=flat.device)
    along = corner[:, :1] * c + torch.arange(width * c, device=flat.device)
    sample = torch.arange(N, device=flat.device)[:, None, None, None]
    stack = torch.arange(F, device=flat.device)[None, :, None, None]
    window: Tensor = flat[sample, stack, down[:, None, :, None], along[:, None, None, :]]
    return window.view(N, F, height, width, c)


def centre_corner(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the top left corner (x, y) of the central window of an image, which policies use when they act."""
    return (width - size) // 2, (height - size) // 2


def shifted_views(
    frames: UInt8[Tensor, "B V S H W 3"], shift: Int[Tensor, "B V 2"] | None, *, pad: int
) -> UInt8[Tensor, "B V S H W 3"]:
    """Shift every observation of a batch by its own shift; `None` changes nothing."""
    if shift is None or pad == 0:
        return frames
    return random_shift(frames.flatten(0, 1), shift.flatten(0, 1), pad=pad).view(frames.shape)


def cropped_views(
    frames: UInt8[Tensor, "B V F H W 3"], crop: Int[Tensor, "B V C 2"] | None, *, size: int
) -> UInt8[Tensor, "B V F s s 3"]:
    """Cut every observation of a batch to its own windows, one per camera; `None` changes nothing."""
    if crop is None or size == 0:
        return frames
    (B, V, F), C = frames.shape[:3], crop.shape[2]
    stacks = frames.reshape(B * V * C, F // C, *frames.shape[3:])
    return cropped(stacks, crop.flatten(0, 2), size).view(B, V, F, size, size, 3)
