"""Video files: probe, read by frame number, encode, concatenate, and decode what may crash a decoder.

Reading lives in `counterpoint.data.video_decoder` and is named here again: this module is all a caller needs.
Encoding sets a keyframe every second frame, which is what makes random access cheap.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

import av
import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.video_decoder import VideoInfo, decoders, probe_video, read_frames, reading
from counterpoint.errors import BadInputError

__all__ = [
    "Codec",
    "VideoInfo",
    "decoders",
    "encode_video",
    "in_worker",
    "probe_video",
    "read_frames",
    "remux",
]

Result = TypeVar("Result")
Codec = Literal["libx264", "libsvtav1"]

# Without B-frames the order of packets is the order of pictures, so that remuxed parts join without a gap.
# A fixed quantiser: the rate control of libx264 has been seen to choose other ones for the same pictures in another
# process, and a recording that was interrupted shall end in the same pixels as one that was not.
_OPTIONS: dict[str, dict[str, str]] = {"libx264": {"qp": "18", "bf": "0"}, "libsvtav1": {"crf": "30"}}
_SMALLEST_AV1 = 64  # SVT-AV1 crashes the process on smaller pictures.


def encode_video(
    path: str | Path, frames: Iterable[Array], fps: float, *, codec: Codec = "libx264", gop: int = 2
) -> None:
    """Encode frames into a file that comes into being whole or not at all.

    Pictures with an odd side keep their size: libx264 stores them with full-resolution colour (yuv444p).

    Args:
        path: The file to write; its ending names the container (.mp4).
        frames: At least one uint8 [H, W, 3], all of one size.
        fps: Frames a second.
        codec: libx264 (quantiser 18), or LeRobot's default libsvtav1 (crf 30), for at least 64 pixels a side.
        gop: A keyframe every `gop` frames.

    Raises:
        BadInputError: When there is no frame, a frame has another size or dtype, or the codec cannot take it.
    """
    path = Path(path)
    shape: tuple[int, ...] | None = None
    with _written_whole(path) as part, av.open(str(part), "w") as container:
        stream = container.add_stream(codec, rate=_rate(fps), options={**_OPTIONS[codec], "g": str(gop)})
        stream.codec_context.thread_count = 1  # the same frames give the same bytes, whatever the machine
        for number, frame in enumerate(frames):
            if shape is None:
                shape = _check_encodable(path, frame, codec)
                stream.height, stream.width = shape[:2]
                odd = any(side % 2 for side in shape[:2])
                stream.pix_fmt = "yuv444p" if odd and codec == "libx264" else "yuv420p"
            if frame.dtype != np.uint8 or frame.shape != shape:
                raise BadInputError(
                    path,
                    found=f"frame {number} as {frame.dtype} {frame.shape}",
                    expected=f"uint8 {shape}",
                    mend="give RGB frames of one size, channels last",
                )
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        if shape is None:
            raise BadInputError(path, found="no frame", expected="at least one", mend="drop empty episodes")
        container.mux(stream.encode(None))


def remux(parts: Sequence[Path], path: str | Path) -> None:
    """Concatenate video files of one codec, size and frame rate without encoding again.

    Args:
        parts: At least one file, as `encode_video` writes them.
        path: The file to write.

    Raises:
        BadInputError: When a part is damaged or differs from the first.
    """
    path = Path(path)
    infos = [probe_video(part) for part in parts]
    with _written_whole(path) as whole, av.open(str(whole), "w") as target:
        out, alike, start = None, None, 0
        for part, info in zip(parts, infos, strict=True):
            with reading(part), av.open(str(part)) as source:
                stream = source.streams.video[0]
                codec = stream.codec_context
                own = (
                    codec.name,
                    codec.pix_fmt,
                    info.height,
                    info.width,
                    round(info.fps, 3),
                    codec.extradata,
                )
                if out is None:
                    out, alike = target.add_stream_from_template(stream, opaque=True), own
                if own != alike:
                    raise BadInputError(
                        part,
                        found=f"{own[:4]}",
                        expected=f"{(alike or own)[:4]} and the same encoder settings, as in {parts[0]}",
                        mend="encode the parts alike, or give frames instead of files",
                    )
                shift = round(start / (_rate(info.fps) * (stream.time_base or 1)))
                for packet in source.demux(stream):
                    if packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, out
                        target.mux(packet)
            start += info.frames


def in_worker(function: Callable[..., Result], *args: Any, timeout: float = 60.0) -> Result:
    """Run `function(*args)` in a fresh process that may die: damaged media can crash a decoder or hang it.

    Args:
        function: A picklable function; what it raises is raised here.
        args: Its arguments; a path in the first place names the input in the error.
        timeout: Seconds the function may take, its process's start not counted, before the process is killed.

    Raises:
        BadInputError: When the process dies or takes too long.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share locks and open decoders
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, function, args), daemon=True)
    process.start()
    theirs.close()  # so that the worker's death ends the pipe
    try:
        ours.recv()  # it has started; how long that takes says nothing about the media
        if ours.poll(timeout):
            result, error = ours.recv()
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        found = f"no answer after {timeout:g} s"
    except EOFError:
        process.join()
        found = f"a crash of the process that reads it (exit code {process.exitcode})"
    finally:
        process.kill()
        process.join()
        ours.close()
    where = args[0] if args and isinstance(args[0], str | Path) else getattr(function, "__name__", "worker")
    raise BadInputError(where, found=found, expected="readable media", mend="replace the file, or remove it")


def _serve(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    answer: tuple[Any, Exception | None]
    pipe.send(None)
    try:
        answer = (function(*args), None)
    except Exception as error:  # whatever it is, it is raised in the caller
        answer = (None, error)
    pipe.send(answer)


def _rate(fps: float) -> Fraction:
    """Frame rates of film and broadcast are fractions over 1001."""
    return Fraction(fps).limit_denominator(1001)


@contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _check_encodable(path: Path, frame: Array, codec: Codec) -> tuple[int, ...]:
    small = codec == "libsvtav1" and min(frame.shape[:2]) < _SMALLEST_AV1
    if frame.ndim != 3 or frame.shape[-1] != 3 or small:
        raise BadInputError(
            path,
            found=f"frames of shape {frame.shape}",
            expected="(H, W, 3)" + (f" of at least {_SMALLEST_AV1} pixels a side" if small else ""),
            mend="use codec='libx264' for small pictures" if small else "give RGB frames, channels last",
        )
    return frame.shape
