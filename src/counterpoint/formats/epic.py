"""EPIC-KITCHENS-100: narrated segments of first-person video, in the layout of the official download.

`EPIC_100_train.csv` and similar files list segments by their first and last frame. The frames are
`ROOT/PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg`, or the same names in `ROOT/PXX/rgb_frames/VIDEO_ID.tar`.
Times come from the frame rates in `EPIC_100_video_info.csv`.

D. Damen et al., "Rescaling Egocentric Vision", IJCV 2022.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each, require_split, stack_images
from counterpoint.formats.boundary import decode_image, parsing
from counterpoint.formats.recognition import epic_frames, epic_tables
from counterpoint.formats.remote import read_ranges, read_whole
from counterpoint.formats.table import Row, read_table
from counterpoint.formats.tar import indexed, members

_COLUMNS = ("narration_id", "participant_id", "video_id", "start_frame", "stop_frame", "narration")
_VIDEO = re.compile(r"(P\d{2})_\d{2,3}")
_FRAME = re.compile(r"frame_(\d{10})\.jpg")
_FRAME_NAME = "frame_%010d.jpg"
_TIME = re.compile(r"(\d{1,4}):(\d{2}):(\d{2}(?:\.\d{1,9})?)")
_RATES_DIFFER = 0.02  # 60 and 59.94, and 30 and 29.97, are taken as equal
_HINT = "download or extract the frames again"


@dataclass(frozen=True)
class _Segment:
    video: str
    start: int
    stop: int  # the last frame, inclusive


class _Rate(NamedTuple):
    fps: float
    duration: float | None  # seconds


def epic_splits(path: Path) -> tuple[str, ...]:
    """Return the splits whose annotation files exist."""
    return tuple(table.stem.removeprefix("EPIC_100_") for table in epic_tables(path))


class EpicKitchensStore(Reader):
    """The narrated segments whose frames exist: one camera, `rgb`, and neither actions nor state.

    Args:
        annotations_csv: EPIC_100_train.csv or another file with the same columns, or several files.
        frames_root: The folder of PXX folders.
        video_info_csv: EPIC_100_video_info.csv; by default searched for in the folder of the annotations.
        strict: Raise if frames of a segment are missing, instead of leaving the segment out.
        on_bad_row: Called with the error of each row that cannot be used and is left out; by default the first error is
            raised.

    Attributes:
        skipped: The narration_id of each segment left out because frames of it are missing.

    Raises:
        BadInputError: When a table is damaged, a video has no frame rate, or no segment has its frames.
    """

    cameras = ("rgb",)

    def __init__(
        self,
        annotations_csv: str | Path | Sequence[Path],
        frames_root: str | Path,
        *,
        video_info_csv: str | Path | None = None,
        strict: bool = False,
        on_bad_row: OnBadRow = raise_error,
    ) -> None:
        tables = [Path(annotations_csv)] if isinstance(annotations_csv, str | Path) else list(annotations_csv)
        self._info = Path(video_info_csv or tables[0].with_name("EPIC_100_video_info.csv"))
        self._rates = _frame_rates(self._info)
        self._root = Path(frames_root)
        self._videos: dict[str, _Frames | None] = {}
        self._last: dict[str, tuple[int, Row]] = {}
        skipped: list[str] = []

        def parse(row: Row) -> tuple[_Segment, EpisodeInfo] | None:
            segment, narration = _parse(row), row.text("narration")
            if segment.video not in self._videos:
                self._videos[segment.video] = None  # stays `None` if the next line raises
                self._videos[segment.video] = _find_frames(self._root, segment.video)
            frames, length = self._videos[segment.video], segment.stop - segment.start + 1
            have = 0 if frames is None else frames.count(segment.start, segment.stop)
            if have < length:
                found, expected = f"{have} of {length} frames of {segment.video}", f"{segment.start} to {segment.stop}"
                require(not strict, row.where, found, expected, "download them, or leave strict off")
                skipped.append(row.text("narration_id"))
                return None
            if segment.video not in self._rates:
                raise row.error("video_id", segment.video, "a video listed in EPIC_100_video_info.csv")
            if segment.stop > self._last.get(segment.video, (0, row))[0]:
                self._last[segment.video] = segment.stop, row
            return segment, EpisodeInfo(length, narration, self._rates[segment.video].fps)

        rows = (row for table in tables for row in read_table(table, _COLUMNS, on_bad_row=on_bad_row))
        kept = [parsed for _, parsed in read_each(rows, parse, on_bad_row) if parsed is not None]
        if not kept:
            expected = "PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg or PXX/rgb_frames/VIDEO_ID.tar"
            hint = "give the folder that holds the PXX folders, with the frames of at least one segment"
            raise BadInputError(self._root, f"the frames of none of {len(skipped)} segments", expected, hint)
        self._segments = self.identity = [segment for segment, _ in kept]
        self.names = [f"{self._root}, {segment.video}" for segment in self._segments]
        self.episodes = tuple(info for _, info in kept)
        self.skipped = tuple(skipped)
        self.left_out = (f"{len(skipped)} segments whose frames are not there",) if skipped else ()

    @classmethod
    def of_folder(cls, path: Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> Self:
        """Open the official layout: annotations with the PXX folders in the same folder or below."""
        require_split(path, split, epic_splits(path))
        tables = [table for table in epic_tables(path) if split is None or table.stem.endswith(f"_{split}")]
        return cls(tables, epic_frames(path) or path, on_bad_row=on_bad_row)

    def recording(self, episode: int) -> Hashable:
        """Return the segment's video."""
        return self._segments[episode].video

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of the segments and of each file used; it is computed only once, because there are many files."""
        digest, used = hashlib.sha256(repr((self.episodes, self.identity)).encode()), dict[str, list[Array]]()
        for segment in self._segments:
            used.setdefault(segment.video, []).append(np.arange(segment.start, segment.stop + 1))
        for video, parts in used.items():
            for line in self._frames_of(video).status(np.unique(np.concatenate(parts))):
                digest.update(line)
        return digest.hexdigest()

    def findings(self) -> Iterator[BadInputError]:
        """Yield the videos whose rate in the table contradicts the times of narrations or the number of frames.

        The official table gives the rate of the recording, while frames were extracted at 50 or 60 a second. For a few
        videos the two rates differ widely.
        """
        for video, (stop, row) in self._last.items():
            (fps, duration), frames = self._rates[video], self._frames_of(video)
            seconds, evidence = _clock(row, "stop_timestamp"), dict[str, float]()
            if seconds:
                evidence[f"stop_frame {stop} at {seconds:.2f} s ({row.where})"] = stop / seconds
            if duration and len(frames.numbers) == frames.numbers[-1]:  # no frame before the last is missing
                evidence[f"{len(frames.numbers)} frames in {duration:.2f} s"] = len(frames.numbers) / duration
            wrong = {text: rate for text, rate in evidence.items() if abs(rate / fps - 1) > _RATES_DIFFER + 1 / stop}
            if wrong:
                found = f"{' and '.join(wrong)}: {next(iter(wrong.values())):.1f} frames a second"
                hint = "write the rate of the frames into this table, or extract all frames of the video at its rate"
                yield BadInputError(f"{self._info}, {video}", found, f"{fps:.6g}, as fps says", hint)

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        segment = self._segments[episode]
        source = self._frames_of(segment.video)
        named = ((f"{source.path}, {_FRAME_NAME % number}", number) for number in (segment.start + steps).tolist())
        return stack_images((where, decode_image(where, source.read(number), ["JPEG"])) for where, number in named)

    def _frames_of(self, video: str) -> _Frames:
        frames = self._videos[video]
        assert frames is not None  # only segments with all their frames are kept
        return frames


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames of one video, which are files in a folder or byte ranges of a tar."""

    path: Path  # the folder or the tar
    numbers: NDArray[np.int64]  # [n], ascending
    ranges: NDArray[np.int64] | None = None  # [n, 2], offset and size of each inside the tar; `None` for a folder

    def count(self, start: int, stop: int) -> int:
        """Return how many of the frames with start <= number <= stop exist."""
        left, right = np.searchsorted(self.numbers, [start, stop + 1])
        return int(right - left)

    def status(self, numbers: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the name, size and modification time of each file that holds these frames."""
        names = [self.path.name] if self.ranges is not None else [_FRAME_NAME % number for number in numbers.tolist()]
        folder = self.path.parent if self.ranges is not None else self.path
        with parsing(folder, "readable files", _HINT):
            # There are millions of files: looking up names in an open folder is several times faster than whole paths.
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                for name in names:
                    stat = os.stat(name, dir_fd=descriptor)
                    yield f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode()
            finally:
                os.close(descriptor)

    def read(self, number: int) -> bytes:
        """Return the bytes of one JPEG."""
        if self.ranges is None:
            return read_whole(self.path / (_FRAME_NAME % number))
        offset, size = self.ranges[int(np.searchsorted(self.numbers, number))].tolist()
        return read_ranges(self.path, [(offset, size)])[0]


def _find_frames(root: Path, video: str) -> _Frames | None:
    folder = root / video.partition("_")[0] / "rgb_frames" / video
    path = folder.with_name(f"{video}.tar")
    if folder.is_dir():
        names = (_FRAME.fullmatch(name) for name in os.listdir(folder))  # noqa: PTH208
        return _Frames(folder, np.sort(np.array([int(name[1]) for name in names if name], np.int64)))
    if not path.is_file():
        return None

    def index() -> list[tuple[int, int, int]]:
        found = [(_FRAME.fullmatch(name.rpartition("/")[2]), offset, size) for name, offset, size in members(path)]
        return sorted((int(name[1]), offset, size) for name, offset, size in found if name)

    ranges = np.array(indexed(path, "epic-1", index), np.int64).reshape(-1, 3)
    return _Frames(path, ranges[:, 0], ranges[:, 1:])


def _parse(row: Row) -> _Segment:
    video, participant = row.text("video_id"), row.text("participant_id")
    name = _VIDEO.fullmatch(video)
    if name is None or name[1] != participant:
        raise row.error("video_id", video, f"a video of participant {participant!r}, as P01_11 is one of P01")
    start, stop = row.frame("start_frame"), row.frame("stop_frame")
    if start > stop:
        raise row.error("start_frame", str(start), f"at most stop_frame = {stop}")
    return _Segment(video, start, stop)


def _clock(row: Row, column: str) -> float | None:
    """Return a time HH:MM:SS.SS in seconds; `None` if the row does not have it."""
    found = _TIME.fullmatch(str(row.fields.get(column)))
    return None if found is None else 3600 * int(found[1]) + 60 * int(found[2]) + float(found[3])


def _frame_rates(path: Path) -> dict[str, _Rate]:
    rates: dict[str, _Rate] = {}
    for row in read_table(path, ("video_id", "fps")):
        fps = row.rate("fps")
        if fps is None:
            raise row.error("fps", "", "frames a second above 0")
        rates[row.text("video_id")] = _Rate(fps, row.seconds("duration"))
    return rates
