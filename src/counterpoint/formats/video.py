"""Probe video files, read frames exactly by number, and encode and join files.

A frame's number is its rank in presentation order. The first access to a file reads its packets, decodes only the first
frame, and notes every presentation time and keyframe. After that, reading a frame costs one seek to the keyframe before
it and decoding from there. Encoding sets a keyframe every second frame, which makes random access cheap.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import MOST_PIXELS, parsing
from counterpoint.formats.containers import EXPECTED, is_cut, open_container, require_whole
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.remote import Part, opened

# On small frames, threads cost more than they save, and threads do not survive a fork. PyAV < 17 uses none.
_CONVERSION: dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}

Media = str | Path | Part
"""A video file, or a video that is a part of another file."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """The properties of a video file.

    Attributes:
        frames: Number of frames.
        fps: Frames a second; the mean where it varies.
        height: Height in pixels, as shown.
        width: Width in pixels, as shown.
        variable: True if any frame's time differs by over half a frame interval from its time at a constant rate.
    """

    frames: int
    fps: float
    height: int
    width: int
    variable: bool = False


def probe_video(path: Media) -> VideoInfo:
    """Return the properties of a video file; only one frame is decoded.

    Raises:
        BadInputError: When the file is missing, is no video, or ends early.
    """
    return _index(_file_key(path)).info


def frame_times(path: Media) -> NDArray[np.float64]:
    """Return the presentation time of each frame, then the end: float64 [frames + 1], in seconds from the first frame.

    Raises:
        BadInputError: When the file has no frame rate, or `probe_video` refuses it.
    """
    index = _index(_file_key(path))
    good, hint = index.info.fps > 0, "encode it again with one"
    require(good, str(path), f"a frame rate of {index.info.fps}", "frames a second above 0", hint)
    return index.seconds if index.info.variable else np.arange(index.info.frames + 1) / index.info.fps


def has_uneven_rate(path: Media) -> bool:
    """Return whether over 5 % of the intervals differ from the median interval by more than half of the median."""
    steps = np.diff(frame_times(path)[:-1])
    return len(steps) > 0 and bool((np.abs(steps / np.median(steps) - 1) > 0.5).mean() > 0.05)


def uneven_rate(path: Media) -> Iterator[BadInputError]:
    """Yield an error if the frame rate varies, since training treats all steps as equally long."""
    if has_uneven_rate(path):
        steps = np.maximum(np.diff(frame_times(path)[:-1]), 1e-6)
        found = f"a variable frame rate: {1 / steps.max():.3g} to {1 / steps.min():.3g} frames a second"
        hint = "ffmpeg -i IN -vf fps=10 OUT.mp4, or leave it: every frame is read at its own time"
        yield BadInputError(str(path), found, "a constant one", hint)


def read_frames(path: Media, indices: Sequence[int] | NDArray[Any]) -> Array:
    """Decode frames by their number inside the file.

    Args:
        path: The video file. Up to `decoders.limit` files stay open in this process; each thread opens its own.
        indices: N frame numbers in any order; repeats are allowed.

    Returns:
        uint8 [N, H, W, 3], RGB, rotated and mirrored as the file says.

    Raises:
        BadInputError: When the file is missing or damaged, or has no frame of a given number.
    """
    key, other = _file_key(path), other_decoder.get()
    info = _index(key).info
    wanted, where = np.unique(np.asarray(indices, dtype=np.int64).reshape(-1), return_inverse=True)
    if len(wanted) and (wanted[0] < 0 or wanted[-1] >= info.frames):
        found = f"a request for frame {wanted[0] if wanted[0] < 0 else wanted[-1]}"
        raise BadInputError(str(path), found, f"a number from 0 to {info.frames - 1}", "copy it again if it is longer")
    images = np.empty((len(wanted), info.height, info.width, 3), dtype=np.uint8)
    own = key, threading.get_ident(), other  # each thread has its own position in a file
    decoder = decoders.get(own, lambda: (_decoder(key, other), 1))  # closed when the last user releases it
    try:
        decoder.read(wanted.tolist(), images)
    except BaseException:
        decoders.drop(own)
        raise
    in_order = len(wanted) == len(where) and bool((np.diff(where) > 0).all())
    return images if in_order else images[where]


def read_part(path: str | Path, start: int, limit: int) -> tuple[Array, Array, int]:
    """Decode frames from number `start` on, as many as `limit` bytes hold.

    Returns:
        The frames, uint8 [n, H, W, 3], at least one; their presentation times, float64 [n], in seconds from the file's
        first frame; and the number of frames in the file.
    """
    info = probe_video(path)
    stop = min(info.frames, start + max(1, limit // (info.height * info.width * 3)))
    return read_frames(path, np.arange(start, stop)), frame_times(path)[start:stop], info.frames


_HINT = "copy or encode it again"


def reading(path: Media) -> AbstractContextManager[None]:
    """Turn every error on a damaged file into `BadInputError`."""
    return parsing(str(path), EXPECTED, _HINT)


_FileKey = tuple[str | Part, int, int]


def _file_key(path: Media) -> _FileKey:
    """Return path, size and modification time, so that a rewritten file has another key."""
    try:
        status = (path.path if isinstance(path, Part) else Path(path)).stat()
    except OSError as error:
        raise BadInputError(str(path), error.strerror or str(error), "a video file", "check the path") from error
    return path if isinstance(path, Part) else str(path), status.st_size, status.st_mtime_ns


def _orientation(frame: av.VideoFrame) -> tuple[int, int, int]:
    """Return the axis of the stored image that is shown as rows, and the steps (1 or -1) along rows and columns.

    The display matrix, 3 x 3 of int32, gives x' = a x + c y and y' = b x + d y, for multiples of a quarter turn.
    """
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    a, b, _, c, d = (1, 0, 0, 0, 1) if matrix is None else np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    swap = abs(b) > abs(a)
    return int(swap), -1 if (b if swap else d) < 0 else 1, -1 if (c if swap else a) < 0 else 1


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of a file: the times of all frames, and the keyframes."""

    info: VideoInfo
    times: NDArray[np.int64]  # presentation time of each frame, ascending, in the stream's units
    seconds: NDArray[np.float64]  # presentation time of each frame and the end, from the first frame
    keyframes: NDArray[np.int64]  # frame number of each keyframe
    key_times: NDArray[np.int64]  # decoding time of each keyframe, the target of a seek
    orientation: tuple[int, int, int]  # from the stored to the shown image: see `_orientation`


_CONVERT = "convert it: ffmpeg -i IN -c:v libx264 OUT.mp4"
_indexes: LRUCache[_Index] = LRUCache(limit=64 * 1024**2)


def _index(key: _FileKey) -> _Index:
    return _indexes.get(key, lambda: _walk(key[0]))


def _walk(path: str | Part) -> tuple[_Index, int]:
    """Return a file's index and the index's size in bytes."""
    source = opened(path)
    with reading(path), open_container(path, source) as container:
        require(container.streams.video, str(path), "no video stream", "a video", "give another file")
        require_whole(path, container.format.name)
        stream = _limited(path, container.streams.video[0])
        known = [] if isinstance(source, str) else _entries(stream)
        read = known or (_packet(path, packet) for packet in container.demux(stream) if packet.size)
        packets = np.fromiter(read, _PACKET)  # as objects they would take eight times the memory
        shown = packets[~packets["discarded"]]
        # A video that was trimmed without being encoded again has an edit list, which leaves out stored frames.
        is_mov = container.format.name.startswith("mov")
        short = len(packets) < stream.frames or (is_mov and not stream.frames)
        short = short or (len(packets) > 0 and bool(packets["cut"][-1]))
        if not len(shown) or (short and (not is_mov or is_cut(path))):
            expected = f"{stream.frames}, as its header says" if stream.frames else "a whole file"
            hint = "copy it again" + ", or keep what is left: ffmpeg -i IN -c copy OUT.mkv" * (len(shown) > 0)
            raise BadInputError(str(path), f"{len(shown)} frames", expected, hint)
        order = np.lexsort((shown["duration"], shown["pts"]))
        times = shown["pts"][order]
        keys = packets[packets["is_key"] & (packets["pts"] <= times[-1])]
        require(len(keys), str(path), "no keyframe", EXPECTED, _HINT)
        if container.format.name == "mpeg":  # after a seek, this demuxer gives other times to the same frames
            keys = keys[:1]
        keyframes = np.searchsorted(times, keys["pts"])
        container.seek(int(keys["dts"][0]), stream=stream)
        first = next(container.decode(stream), None)
        if first is None:
            raise BadInputError(str(path), "no frame that decodes", EXPECTED, _HINT)
        if container.format.name == "avi" and stream.codec_context.has_b_frames:
            raise BadInputError(str(path), "an .avi with B-frames", "times of its frames, which .avi lacks", _CONVERT)
        orientation, fps = _orientation(first), float(stream.average_rate or Fraction(0))
        height, width = (first.width, first.height) if orientation[0] else (first.height, first.width)
        elapsed = (times - times[0]) * float(stream.time_base or 0)
        step = elapsed[-1] / max(len(times) - 1, 1)
        variable = bool((np.abs(elapsed - step * np.arange(len(times))) > step / 2).any())
        last = int(shown["duration"][order[-1]]) * float(stream.time_base or 0)
        last = max(last, float(np.diff(elapsed[-2:]).sum()))
        if variable:
            fps = len(times) / (elapsed[-1] + last)
        elif (
            step > 0 and abs(elapsed[-1] * fps - len(times) + 1) > 0.5
        ):  # the header gives no rate, or a rate that contradicts the times
            fps = 1 / step
        info = VideoInfo(len(shown), float(fps), height, width, variable)
        seconds = np.append(elapsed, elapsed[-1] + last)
        index = _Index(info, times, seconds, keyframes, keys["dts"].copy(), orientation)
        return index, 1000 + 2 * times.nbytes + 2 * keyframes.nbytes


def _limited(path: str | Part, stream: Any) -> Any:
    """Return a stream whose decoder refuses pictures of too many pixels before it allocates memory for them."""
    require(stream.codec_context is not None, str(path), "a codec that is not known", EXPECTED, _HINT)
    stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
    return stream


class _Packet(NamedTuple):
    pts: int  # presentation time
    dts: int  # decoding time
    duration: int
    is_key: bool
    discarded: bool = False  # True if the frame is decoded but not shown
    cut: bool = False  # True if the container announces more bytes than it has


_PACKET = np.dtype([(name, bool if name in ("is_key", "discarded", "cut") else np.int64) for name in _Packet._fields])


def _packet(path: str | Part, packet: Any) -> _Packet:
    if packet.pts is None:
        raise BadInputError(str(path), "a frame without a presentation time", "times in the container", _CONVERT)
    decoded = packet.pts if packet.dts is None else packet.dts  # Matroska has no decoding times, and seeks by pts
    return _Packet(packet.pts, decoded, packet.duration or 0, packet.is_keyframe, packet.is_discard, packet.is_corrupt)


def _entries(stream: Any) -> list[_Packet]:
    """Return a stream's packets from the container's index, without reading them all; empty if there is no index.

    The index has decoding times, which equal the presentation times if frames are shown in the order of decoding.
    """
    index = getattr(stream, "index_entries", ())  # not available in av 15 and 16
    entries = [(entry.timestamp, entry.is_keyframe) for entry in index if not entry.is_discard]
    if stream.codec_context.has_b_frames or not entries or len(entries) != stream.frames:
        return []
    times = [time for time, _ in entries]
    rest = (stream.duration or 0) + (stream.start_time or times[0]) - times[-1]
    durations = [after - time for time, after in pairwise(times)] + [max(0, rest)]
    return [_Packet(time, time, wait, key) for (time, key), wait in zip(entries, durations, strict=True)]


class Decoder(Protocol):
    """One open file."""

    def read(self, wanted: Sequence[int], out: Array) -> None:
        """Decode N ascending frame numbers into `out`, uint8 [N, H, W, 3]."""


OtherDecoder = Callable[[str, NDArray[np.float64]], Decoder | None]
"""Opens a local file, given the times of its frames; `None` if it would read other frames."""
other_decoder: ContextVar[OtherDecoder | None] = ContextVar("other_decoder", default=None)
"""The decoder in place of PyAV now; `None` if PyAV decodes."""


class _Decoder:
    """One open file and the position of PyAV's decoder."""

    def __init__(self, key: _FileKey) -> None:
        self.path, self.index = key[0], _index(key)
        with reading(self.path):
            self._container = open_container(self.path, opened(self.path))
        self._stream = _limited(self.path, self._container.streams.video[0])
        self._stream.codec_context.thread_count = 1  # a decoding thread would not survive a fork
        self._reformatter = av.video.reformatter.VideoReformatter()
        self._frames: Iterator[av.VideoFrame] = iter(())
        self._next = self.index.info.frames  # the number of the next frame to be decoded

    def read(self, wanted: Sequence[int], out: Array) -> None:
        """Decode ascending frame numbers into `out`, in as few passes as the keyframes allow."""
        with reading(self.path):
            for slot, number in enumerate(wanted):
                if number != self._next:
                    key = max(int(np.searchsorted(self.index.keyframes, number, side="right")) - 1, 0)
                    if not self.index.keyframes[key] <= self._next <= number:
                        self._seek(int(self.index.key_times[key]))
                frame = self._forward_to(number)
                if frame is None:  # in some containers a seek overshoots: start from the beginning
                    self._seek(int(self.index.key_times[0]))
                    frame = self._forward_to(number)
                if frame is None or frame.is_corrupt:
                    hint = f"copy it again, or {_CONVERT}"
                    raise BadInputError(str(self.path), f"no sound frame {number}", EXPECTED, hint)
                height, width = out.shape[1:3]
                found = f"a frame of {frame.height} x {frame.width} among {height} x {width}"
                require({frame.height, frame.width} == {height, width}, str(self.path), found, EXPECTED, _HINT)
                image = self._reformatter.reformat(frame, format="rgb24", **_CONVERSION).to_ndarray()
                rows, down, across = self.index.orientation
                out[slot] = image.swapaxes(0, rows)[::down, ::across]

    def _seek(self, time: int) -> None:
        self._container.seek(time, stream=self._stream)
        self._frames = self._container.decode(self._stream)

    def _forward_to(self, number: int) -> av.VideoFrame | None:
        for frame in self._frames:
            if frame.pts is None:
                continue
            shown = int(np.searchsorted(self.index.times, frame.pts))
            self._next = shown + 1
            if shown >= number:
                return frame if shown == number else None
        self._next = self.index.info.frames
        return None


def _decoder(key: _FileKey, other: OtherDecoder | None) -> Decoder:
    """Open a file by the other decoder if there is one that reads this file as PyAV does, otherwise by PyAV."""
    path, index = key[0], _index(key)
    if other is not None and isinstance(path, str) and opened(path) == path and index.orientation == (0, 1, 1):
        return other(path, index.seconds[:-1]) or _Decoder(key)
    return _Decoder(key)


decoders: LRUCache[Decoder] = LRUCache(limit=16)
"""The process-wide cache of open files for `read_frames`, by file and thread; it keeps up to `decoders.limit` files."""

Codec = Literal["libx264", "libsvtav1"]

# Without B-frames the order of packets is the order of frames, so that remuxed parts join without a gap.
# The quantiser is fixed, because libx264's rate control may choose another one for the same frames in another process,
# and an interrupted recording must end in the same pixels as an uninterrupted one.
_OPTIONS: dict[str, dict[str, str]] = {"libx264": {"qp": "18", "bf": "0"}, "libsvtav1": {"crf": "30"}}
_SMALLEST_AV1 = 64  # SVT-AV1 crashes the process on smaller frames.


def encode_video(
    path: str | Path, frames: Iterable[Array], fps: float, *, codec: Codec = "libx264", gop: int = 2
) -> None:
    """Encode frames into a file, which is written completely or not at all.

    Frames with an odd side keep their size: libx264 stores them with full-resolution colour (yuv444p).

    Args:
        path: The file to write; its ending decides the container (.mp4).
        frames: One or more frames uint8 [H, W, 3], all of the same size.
        fps: Frames a second.
        codec: libx264 (quantiser 18) or libsvtav1 (crf 30), LeRobot's default, which needs at least 64 pixels per side.
        gop: Number of frames from one keyframe to the next.

    Raises:
        BadInputError: When there is no frame, a frame has another size or dtype, or the codec cannot encode the frames.
    """
    path = Path(path)
    shape: tuple[int, ...] | None = None
    with _written_whole(path) as part, av.open(str(part), "w") as container:
        stream = container.add_stream(codec, rate=_rate(fps), options={**_OPTIONS[codec], "g": str(gop)})
        stream.codec_context.thread_count = 1  # the same frames give the same bytes on every machine
        for number, frame in enumerate(frames):
            if shape is None:
                shape, least = frame.shape, _SMALLEST_AV1 if codec == "libsvtav1" else 1
                good = frame.ndim == 3 and frame.shape[-1] == 3 and min(frame.shape[:2]) >= least
                expected = f"(H, W, 3), at least {least} pixels a side"
                require(good, path, f"frames of {shape}", expected, "use libx264 for small ones")
                stream.height, stream.width = shape[:2]
                odd = any(side % 2 for side in shape[:2])
                stream.pix_fmt = "yuv444p" if odd and codec == "libx264" else "yuv420p"
            good, kind = frame.dtype == np.uint8 and frame.shape == shape, f"{frame.dtype} {frame.shape}"
            require(good, path, f"frame {number} as {kind}", f"uint8 {shape}", "give RGB frames of one size")
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(image))
        require(shape is not None, path, "no frame", "at least one", "drop empty episodes")
        container.mux(stream.encode(None))


def remux(parts: Sequence[Path], path: str | Path) -> None:
    """Concatenate one or more files that `encode_video` wrote with one codec, size and frame rate into `path`.

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
                own = (codec.name, codec.pix_fmt, info.height, info.width, round(info.fps, 3), codec.extradata)
                if out is None:
                    out, alike = target.add_stream_from_template(stream, opaque=True), own
                expected = f"{(alike or own)[:4]} and the same encoder settings, as in {parts[0]}"
                require(own == alike, part, f"{own[:4]}", expected, "encode the parts alike, or give frames")
                shift = round(start / (_rate(info.fps) * (stream.time_base or 1)))
                for packet in source.demux(stream):
                    if packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, out
                        target.mux(packet)
            start += info.frames


def cut_out(path: Path, first: int, count: int, out: Path) -> None:
    """Copy one part of a file that `remux` joined into a file of its own, without encoding it again.

    Args:
        path: The joined file.
        first: Number of the part's first frame, a keyframe.
        count: Number of frames of the part.
        out: The file to write.
    """
    with reading(path), _written_whole(out) as whole, av.open(str(path)) as source, av.open(str(whole), "w") as target:
        stream = source.streams.video[0]
        copied = target.add_stream_from_template(stream, opaque=True)
        shift = round(first / (probe_video(path).fps * float(stream.time_base or 1)))
        packets = (packet for packet in source.demux(stream) if packet.pts is not None and packet.dts is not None)
        for packet in islice(packets, first, first + count):
            assert packet.pts is not None
            assert packet.dts is not None
            packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, copied
            target.mux(packet)


def _rate(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(1001)  # as film and broadcast use


@contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
