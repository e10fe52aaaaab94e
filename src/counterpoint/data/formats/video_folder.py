"""What stores of instructed videos share: one camera, a constant frame rate, no actions, state or rewards.

A folder of videos and a manifest that says what each shows: the least effort to bring data of one's own.

`manifest.csv` or `manifest.jsonl` has the columns `video` (a path inside the folder) and `instruction`;
`start` and `end`, in seconds, are added where an episode is only a part of its video.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path, PurePosixPath

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.table import OnBadRow, Row, raise_error, read_table
from counterpoint.data.video import VideoInfo, probe_video, read_frames
from counterpoint.errors import BadInputError

__all__ = ["MANIFESTS", "ClipStore", "VideoFolderStore"]


class ClipStore:
    """An `EpisodeStore` of videos of people; a format says where the frames of an episode are.

    Attributes:
        cameras: The one camera's name.
        episodes: What is known of each episode.
    """

    cameras: tuple[str, ...]
    episodes: tuple[EpisodeInfo, ...]

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the content behind the store does."""
        raise NotImplementedError

    def read(self, episode: int, steps: Array) -> Array:
        """uint8 [N, H, W, 3] at N steps of an episode."""
        raise NotImplementedError

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3].

        Raises:
            BadInputError: When the camera is unknown, or a frame cannot be decoded.
        """
        if camera is not None and camera not in self.cameras:
            raise BadInputError("camera", repr(camera), f"{self.cameras[0]!r}", "leave the camera out")
        return self.read(episode, np.asarray(indices, dtype=np.int64))

    def timestamps(self, episode: int) -> Array:
        """float64 [T], seconds since the episode's first frame."""
        info = self.episodes[episode]
        return np.arange(info.length) / info.fps

    def actions(self, episode: int) -> None:
        """Videos of people have none."""

    def state(self, episode: int) -> None:
        """Videos of people have none."""

    def rewards(self, episode: int) -> None:
        """Videos of people have none."""


MANIFESTS = ("manifest.csv", "manifest.jsonl")
"""The names a manifest may have."""


class VideoFolderStore(ClipStore):
    """Episodes of a folder of videos: one camera, `camera`; neither actions nor state.

    Args:
        path: The folder that holds the manifest, or the manifest itself.
        on_bad_row: Told of each row that cannot be used, which is then left out; by default the first raises.

    Raises:
        BadInputError: When the manifest or a row of it cannot be used: the message names the row.
    """

    cameras = ("camera",)

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.manifest = _find_manifest(Path(path))
        folder = self.manifest.parent.resolve()
        videos: dict[Path, VideoInfo] = {}  # a video of many episodes is probed once
        episodes: list[EpisodeInfo] = []
        self._segments: list[tuple[Path, int]] = []  # video, number of the first frame
        for row in read_table(self.manifest, ("video", "instruction"), on_bad_row=on_bad_row):
            try:
                instruction = row.text("instruction")
                video = _inside(folder, row)
                if video not in videos:
                    videos[video] = _probe(video, row)
                first, length = _segment(row, videos[video])
            except BadInputError as error:
                on_bad_row(error)
                continue
            episodes.append(EpisodeInfo(length, instruction, videos[video].fps))
            self._segments.append((video, first))
        self.episodes = tuple(episodes)
        self.videos = tuple(videos)

    @property
    def fingerprint(self) -> str:
        """Digest of the manifest and of each video's name, size and time of change."""
        digest = hashlib.sha256(self.manifest.read_bytes())
        for video in self.videos:
            stat = video.stat()
            digest.update(f"{video.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def read(self, episode: int, steps: Array) -> Array:
        """uint8 [N, H, W, 3]."""
        video, first = self._segments[episode]
        return read_frames(video, first + steps)


def _find_manifest(path: Path) -> Path:
    if path.is_file():
        return path
    here = [path / name for name in MANIFESTS if (path / name).is_file()]
    if len(here) != 1:
        raise BadInputError(
            path,
            "both manifest.csv and manifest.jsonl" if here else "no manifest",
            "manifest.csv or manifest.jsonl",
            "keep one manifest, with the columns video, instruction and, if wanted, start, end",
        )
    return here[0]


def _inside(folder: Path, row: Row) -> Path:
    """The video of a row, which must lie in the manifest's folder even after following symbolic links."""
    name = row.text("video")
    try:
        plain = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        video = (folder / name).resolve() if plain else None
        inside = video is not None and video.is_relative_to(folder)
        there = inside and video is not None and video.is_file()
    except (OSError, ValueError, RuntimeError):  # no path at all: too long, a null byte, a loop of links
        raise row.error("video", name, "a path") from None
    if video is None or not inside:
        raise BadInputError(
            row.where,
            f"video = {name!r}, which leaves the folder",
            f"a path inside {folder}",
            "copy the video into the folder and name it relative to the manifest",
        )
    if not there:
        raise BadInputError(
            row.where, f"no file {name!r}", f"a video in {folder}", "copy the video there, or remove this row"
        )
    return video


def _probe(video: Path, row: Row) -> VideoInfo:
    try:
        info = probe_video(video)
    except BadInputError as error:
        raise BadInputError(f"{row.where}, {video}", error.found, error.expected, error.hint) from error
    if not info.fps > 0:
        raise BadInputError(
            f"{row.where}, {video}",
            f"a frame rate of {info.fps}",
            "frames a second above 0",
            "encode the video again with a frame rate",
        )
    return info


def _segment(row: Row, video: VideoInfo) -> tuple[int, int]:
    """First frame and number of frames: those shown at start <= t < end."""
    duration = video.frames / video.fps
    start, end = row.seconds("start") or 0.0, row.seconds("end")
    # Times are written with few decimals: a frame within a thousandth of its interval of `start` belongs.
    first = max(0, math.ceil(start * video.fps - 1e-3))
    last = video.frames if end is None else math.ceil(end * video.fps - 1e-3)
    if first >= last or last > video.frames:
        raise BadInputError(
            row.where,
            f"start = {start:g}, end = {'the end' if end is None else f'{end:g}'}",
            f"at least one frame in start <= t < end <= {duration:.3f}, the video's end in seconds",
            "correct start and end, or leave them empty for the whole video",
        )
    return first, last - first
