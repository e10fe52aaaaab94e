"""EPIC-KITCHENS-100: narrated segments of first-person video, in the layout of the official download.

`EPIC_100_train.csv` and its like name segments by their first and last frame. The frames are
`ROOT/PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg`, or the same names in `ROOT/PXX/rgb_frames/VIDEO_ID.tar`.
Times come from the frame rates in `EPIC_100_video_info.csv`.

D. Damen et al., "Rescaling Egocentric Vision", IJCV 2022.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.table import OnBadRow, Row, raise_error, read_table
from counterpoint.data.formats.video_folder import ClipStore
from counterpoint.errors import BadInputError

__all__ = ["EpicKitchensStore"]

_COLUMNS = ("narration_id", "participant_id", "video_id", "start_frame", "stop_frame", "narration")
_VIDEO = re.compile(r"(P\d{2})_\d{2,3}")
_FRAME = re.compile(r"frame_(\d{10})\.jpg")


@dataclass(frozen=True)
class _Segment:
    video: str
    start: int
    stop: int  # the last frame, itself included


class EpicKitchensStore(ClipStore):
    """Segments whose frames are there: one camera, `rgb`; neither actions nor state.

    Args:
        annotations_csv: EPIC_100_train.csv or another file of its columns, or several.
        frames_root: The folder of PXX folders.
        video_info_csv: EPIC_100_video_info.csv; looked for beside the annotations by default.
        strict: Raise where frames of a segment are missing, instead of leaving the segment out.
        on_bad_row: Told of each row that cannot be used, which is then left out; by default the first raises.

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
        rates = _frame_rates(Path(video_info_csv or tables[0].with_name("EPIC_100_video_info.csv")))
        self._root = Path(frames_root)
        self._videos: dict[str, _Frames | None] = {}
        self._segments: list[_Segment] = []
        episodes: list[EpisodeInfo] = []
        skipped: list[str] = []
        for row in (row for table in tables for row in read_table(table, _COLUMNS, on_bad_row=on_bad_row)):
            try:
                segment, narration = _parse(row), row.text("narration")
                have, length = self._count(segment), segment.stop - segment.start + 1
                if have < length:
                    if strict:
                        raise _missing(row.where, self._root, segment, have)
                    skipped.append(row.text("narration_id"))
                    continue
                if segment.video not in rates:
                    raise row.error("video_id", segment.video, "a video listed in EPIC_100_video_info.csv")
            except BadInputError as error:
                on_bad_row(error)
                continue
            self._segments.append(segment)
            episodes.append(EpisodeInfo(length, narration, rates[segment.video]))
        if not episodes:
            raise BadInputError(
                self._root,
                f"the frames of none of {len(skipped)} segments",
                "PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg or PXX/rgb_frames/VIDEO_ID.tar",
                "give the folder that holds the PXX folders, with the frames of at least one segment",
            )
        self.episodes = tuple(episodes)
        self.skipped = tuple(skipped)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the segments and of each used file's size and time of change."""
        digest = hashlib.sha256()
        used: dict[str, set[int]] = {}
        for segment, info in zip(self._segments, self.episodes, strict=True):
            digest.update(f"{segment}{info}".encode())
            used.setdefault(segment.video, set()).update(range(segment.start, segment.stop + 1))
        for video, numbers in used.items():
            for path in self._frames_of(video).files(sorted(numbers)):
                stat = path.stat()
                digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def read(self, episode: int, steps: Array) -> Array:
        """uint8 [N, H, W, 3].

        Raises:
            BadInputError: When a frame cannot be decoded, or the frames of the segment differ in size.
        """
        segment = self._segments[episode]
        source = self._frames_of(segment.video)
        pictures: list[Array] = []
        for number in (segment.start + steps).tolist():
            picture = _decode(source.read(number), f"{source.path}, frame_{number:010d}.jpg")
            if pictures and picture.shape != pictures[0].shape:
                raise _damaged(f"{source.path}, frame_{number:010d}.jpg", f"{picture.shape}", f"{pictures[0].shape}")
            pictures.append(picture)
        return np.stack(pictures)

    def _count(self, segment: _Segment) -> int:
        if segment.video not in self._videos:
            self._videos[segment.video] = None  # what stays where the next line raises
            self._videos[segment.video] = _find_frames(self._root, segment.video)
        frames = self._videos[segment.video]
        return 0 if frames is None else frames.count(segment.start, segment.stop)

    def _frames_of(self, video: str) -> _Frames:
        frames = self._videos[video]
        assert frames is not None  # only segments with all their frames are kept
        return frames


@dataclass(frozen=True, eq=False)
class _Frames:
    """Where the frames of one video are: files of a folder, or places in a tar.

    Attributes:
        path: The folder or the tar.
        numbers: int64 [n], ascending.
        places: int64 [n, 2], offset and size of each inside the tar; `None` for a folder.
    """

    path: Path
    numbers: NDArray[np.int64]
    places: NDArray[np.int64] | None = None

    def count(self, start: int, stop: int) -> int:
        """How many frames with start <= number <= stop are there."""
        left, right = np.searchsorted(self.numbers, [start, stop + 1])
        return int(right - left)

    def files(self, numbers: Sequence[int]) -> list[Path]:
        """The files that hold these frames."""
        return [self.path] if self.places is not None else [self.path / f"frame_{n:010d}.jpg" for n in numbers]

    def read(self, number: int) -> bytes:
        """The bytes of one JPEG."""
        try:
            if self.places is None:
                return (self.path / f"frame_{number:010d}.jpg").read_bytes()
            offset, size = self.places[int(np.searchsorted(self.numbers, number))].tolist()
            with self.path.open("rb") as tar:  # opened anew, so that forked workers share no file position
                tar.seek(offset)
                return tar.read(size)
        except OSError as error:
            where = f"{self.path}, frame_{number:010d}.jpg"
            raise _damaged(where, error.strerror or str(error), "a readable JPEG") from error


def _find_frames(root: Path, video: str) -> _Frames | None:
    folder = root / video.partition("_")[0] / "rgb_frames" / video
    tar = folder.with_name(f"{video}.tar")
    if folder.is_dir():
        names = (_FRAME.fullmatch(path.name) for path in folder.iterdir())
        return _Frames(folder, np.array(sorted(int(name[1]) for name in names if name), dtype=np.int64))
    return _index_tar(tar) if tar.is_file() else None


def _index_tar(path: Path) -> _Frames:
    places: dict[int, tuple[int, int]] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = _FRAME.fullmatch(member.name.rpartition("/")[2])
                if name and member.isreg():
                    places[int(name[1])] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error), "an uncompressed tar of frames") from error
    numbers = sorted(places)
    return _Frames(
        path, np.array(numbers, dtype=np.int64), np.array([places[n] for n in numbers], np.int64).reshape(-1, 2)
    )


def _decode(data: bytes, where: str) -> Array:
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
        raise _damaged(where, str(error), "a whole JPEG") from error


def _parse(row: Row) -> _Segment:
    video, participant = row.text("video_id"), row.text("participant_id")
    name = _VIDEO.fullmatch(video)
    if name is None or name[1] != participant:
        raise row.error("video_id", video, f"a video of participant {participant!r}, as P01_11 is one of P01")
    start, stop = row.frame("start_frame"), row.frame("stop_frame")
    if start > stop:
        raise row.error("start_frame", str(start), f"at most stop_frame = {stop}")
    return _Segment(video, start, stop)


def _frame_rates(path: Path) -> dict[str, float]:
    rates: dict[str, float] = {}
    for row in read_table(path, ("video_id", "fps")):
        fps = row.seconds("fps")
        if not fps or not math.isfinite(1 / fps):
            raise row.error("fps", row.fields["fps"], "frames a second above 0")
        rates[row.text("video_id")] = fps
    return rates


def _missing(where: str, root: Path, segment: _Segment, have: int) -> BadInputError:
    return BadInputError(
        where,
        f"{have} of {segment.stop - segment.start + 1} frames of {segment.video} in {root}",
        f"frames {segment.start} to {segment.stop}",
        "download the missing frames, or leave strict off to skip such segments",
    )


def _damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    return BadInputError(where, found, expected, "download or extract the frames again")
