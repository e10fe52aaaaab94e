"""Frames at training size: the resize rule, and a store that decodes its frames whenever they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore, check_camera
from counterpoint.data.store_views import Integers, StoreView
from counterpoint.errors import require

Fit = Literal["square", "shorter"]
"""`square` squeezes the whole view to size x size; `shorter` keeps the aspect ratio, and the shorter side is `size`."""

_BICUBIC = Image.Resampling.BICUBIC
_FEW = 16  # number of frames up to which starting threads costs more than it saves


def resized_shape(height: int, width: int, size: int, fit: Fit) -> tuple[int, int]:
    """Return the height and width of a resized frame."""
    scale = size / min(height, width)
    return (size, size) if fit == "square" else (round(height * scale), round(width * scale))


def as_rgb(where: str, images: Array, lead: int = 1) -> Array:
    """Return images with three channels on the last axis, in the same dtype.

    Args:
        where: The place for errors.
        images: uint8 or float, [*lead, H, W, C] or [*lead, C, H, W]; or grey [*lead, H, W]. C is 3, 1 (grey, which is
            repeated) or 4 (alpha, the fourth channel, is left out).
        lead: The number of axes before the axes of a single image.

    Raises:
        BadInputError: If the shape or the dtype is another one, such as uint16 for depth.
    """
    axis = channel_axis(images.shape[lead:])
    found, expected = f"images {images.dtype} {list(images.shape)}", "uint8 or float with 1, 3 or 4 channels"
    hint = "convert what is no colour image: depth (16 bits), or stacks of frames along the channels"
    require(axis is not None and (images.dtype == np.uint8 or images.dtype.kind == "f"), where, found, expected, hint)
    last = images[..., None] if images.ndim == lead + 2 else np.moveaxis(images, axis or 0, -1)
    return np.repeat(last, 3, axis=-1) if last.shape[-1] == 1 else last[..., :3]


def channel_axis(shape: Sequence[int]) -> int | None:
    """Return the axis of an image's channels: -1 (also for grey [H, W]) or -3; `None` if this is no image's shape."""
    if len(shape) == 2:
        return -1
    axes = [axis for count in (3, 4, 1) for axis in (-1, -3) if len(shape) == 3 and shape[axis] == count]
    return axes[0] if axes else None


def resize(frames: Array, size: int, fit: Fit = "square") -> Array:
    """Resize frames with Pillow's antialiased bicubic filter, as CLIP does; frames that already have the size are kept.

    Args:
        frames: uint8 [N, H, W, 3].
        size: Side of the square, or length of the shorter side, in pixels.
        fit: `square` or `shorter`.

    Returns:
        uint8 [N, H', W', 3].
    """
    target = resized_shape(frames.shape[1], frames.shape[2], size, fit)
    if target == frames.shape[1:3] or not len(frames):
        return frames.reshape(len(frames), *target, 3)

    def one(frame: Array) -> Array:
        return np.asarray(Image.fromarray(frame).resize(target[::-1], _BICUBIC))

    if len(frames) <= _FEW:
        return np.stack([one(frame) for frame in frames])
    with ThreadPoolExecutor() as pool:  # Pillow releases Python's global lock while it resizes
        return np.stack(list(pool.map(one, frames)))


class ResizedStore(StoreView):
    """A view of another store at training size: only requested frames are read, decoded and resized.

    The pixels are the same as in a training store of the same size. Nothing is written to disk or kept in memory.

    Args:
        store: The source.
        size: Training resolution in pixels.
        fit: The resize rule.
        cameras: The cameras to keep, in order; all by default.

    Raises:
        BadInputError: When a camera is unknown.
    """

    def __init__(
        self, store: EpisodeStore, size: int, fit: Fit = "square", cameras: Sequence[str] | None = None
    ) -> None:
        super().__init__([store], np.zeros(len(store.episodes)), np.arange(len(store.episodes)))
        self.size, self.fit = size, fit
        self.cameras = tuple(store.cameras if cameras is None else cameras)
        for camera in self.cameras:
            check_camera(camera, store)

    @property
    def fingerprint(self) -> str:
        """Hex digest of the source's fingerprint, the size, the resize rule and the cameras."""
        about = f"{self.stores[0].fingerprint}{self.size}{self.fit}{self.cameras}"
        return hashlib.sha256(about.encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]; refuse an unknown camera."""
        return resize(super().frames(episode, indices, camera), self.size, self.fit)

    def _camera(self, camera: str | None) -> str:
        check_camera(camera or self.cameras[0], self)
        return camera or self.cameras[0]

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read steps of many episodes; each requested frame is decoded once."""
        if source != "frames":
            return super().gather(source, episodes, steps)
        return EpisodeStore.gather(self, source, episodes, steps, camera=camera, out=out)
