"""Decode videos by torchcodec, on a graphics card or on the processor, where a block of code asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, import_extra, require
from counterpoint.formats.boundary import parsing
from counterpoint.formats.containers import EXPECTED
from counterpoint.formats.video import Decoder, other_decoder

P = ParamSpec("P")
R = TypeVar("R")
VideoBackend = Literal["pyav", "torchcodec"]
"""The library that decodes videos: PyAV on the processor, or torchcodec on the device that computes."""
BY_PYAV = "decode by PyAV: --video-backend pyav"


@contextmanager
def decoding(device: str | None) -> Iterator[None]:
    """Let torchcodec decode the videos that this thread reads inside the block, or PyAV if `device` is `None`.

    On a CPU, both libraries give the same images. A graphics card rounds colours otherwise. PyAV decodes the files that
    torchcodec would read otherwise: videos that are rotated or remote, parts of other files, and videos whose edit list
    leaves out frames.
    """
    before = other_decoder.set(None if device is None else Torchcodec(device))
    try:
        yield
    finally:
        other_decoder.reset(before)


def decoded_by(backend: VideoBackend, device: str, work: Callable[P, R]) -> Callable[P, R]:
    """Return a function that does `work` while a library decodes videos: see `decoding`.

    Args:
        backend: The library.
        device: The device on which torchcodec decodes, such as cuda.
        work: The function.

    Raises:
        BadInputError: If the library is not known, or torchcodec cannot load FFmpeg's libraries.
        MissingExtraError: If torchcodec is not installed.
    """
    require(backend in ("pyav", "torchcodec"), "--video-backend", repr(backend), "pyav or torchcodec", "choose one")
    if backend == "pyav":
        return work
    try:
        import_extra("torchcodec.decoders", "torchcodec")
    except (OSError, RuntimeError) as error:
        found, hint = "torchcodec, which cannot load FFmpeg's libraries", f"apt-get install ffmpeg, or {BY_PYAV}"
        raise BadInputError("--video-backend", found, "FFmpeg, from version 4 on", hint) from error

    @wraps(work)
    def run(*args: P.args, **options: P.kwargs) -> R:
        with decoding(device):
            return work(*args, **options)

    return run


@dataclass(frozen=True)
class Torchcodec:
    """Opens files on a device."""

    device: str

    def __call__(self, path: str, seconds: NDArray[np.float64]) -> Decoder | None:
        """Return a decoder, or `None` if torchcodec counts other frames than PyAV.

        Args:
            path: The local file.
            seconds: The presentation time of each frame, from the first, by PyAV.
        """
        with parsing(path, EXPECTED, BY_PYAV):
            made = import_extra("torchcodec.decoders", "torchcodec").VideoDecoder
            source = made(path, dimension_order="NHWC", device=self.device)
            return TorchcodecDecoder(path, seconds, source) if len(source) == len(seconds) else None


@dataclass(frozen=True)
class TorchcodecDecoder:
    """One open file: its path, the times of its frames by PyAV, and torchcodec's decoder."""

    path: str
    seconds: NDArray[np.float64]
    source: Any

    def read(self, wanted: Sequence[int], out: Array) -> None:
        """Decode N ascending frame numbers into `out`, uint8 [N, H, W, 3].

        Raises:
            BadInputError: If the file is damaged, or torchcodec reads frames of other times.
        """
        with parsing(self.path, EXPECTED, BY_PYAV):
            found = self.source.get_frames_at(indices=list(wanted))
            out[:] = found.data.cpu().numpy()
            times = found.pts_seconds.cpu().numpy() - self.source.metadata.begin_stream_seconds
        off = np.abs(times - self.seconds[list(wanted)]).max(initial=0.0)
        require(off < 1e-3, self.path, f"frames whose times are off by {off:.3f} s", "frames at their times", BY_PYAV)
