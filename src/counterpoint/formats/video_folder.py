"""A folder of videos and a manifest with the instruction of each video: the simplest format for your own data.

`manifest.csv` or `manifest.jsonl` has the columns `video` (a path inside the folder) and `instruction`;
`start` and `end`, in seconds, are added where an episode is only a part of its video.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each
from counterpoint.formats.kinds import MANIFESTS
from counterpoint.formats.table import Row, read_table
from counterpoint.formats.video import frame_times, probe_video, read_frames, uneven_rate


class VideoFolderStore(Reader):
    """Episodes of a folder of videos: one camera, `camera`; neither actions nor state.

    An episode is the frames whose presentation time t has start <= t < end. For a video of variable frame rate, these
    times are the timestamps, and `fps` is the mean rate of the episode.

    Args:
        path: The folder that holds the manifest, or the manifest itself.
        on_bad_row: Called for each row that cannot be used and is left out; by default the first one raises.

    Raises:
        BadInputError: When the manifest or a row of it cannot be used: the message names the row.
    """

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.manifest = _find_manifest(Path(path))
        folder = self.manifest.parent.resolve()
        rows = read_table(self.manifest, ("video", "instruction"), on_bad_row=on_bad_row)
        parsed = [result for _, result in read_each(rows, lambda row: _parse(row, folder), on_bad_row)]
        self.episodes = tuple(episode for episode, _, _ in parsed)
        self._segments = [(video, first) for _, video, first in parsed]
        self.names = videos = [video for video, _ in self._segments]
        self.files = list(dict.fromkeys(videos))
        self.identity = [(video.name, first) for video, first in self._segments]

    def findings(self) -> Iterator[BadInputError]:
        """Yield the videos whose frame rate varies."""
        for video in self.files:
            yield from uneven_rate(video)

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return uint8 [N, H, W, 3]."""
        video, first = self._segments[episode]
        return read_frames(video, first + steps)

    def recording(self, episode: int) -> Hashable:
        """Return the episode's video."""
        return str(self._segments[episode][0])

    def timestamps(self, episode: int) -> Array:
        """Return float64 [T], seconds since the episode's first frame."""
        video, first = self._segments[episode]
        if not probe_video(video).variable:
            return super().timestamps(episode)
        times = frame_times(video)[first : first + self.episodes[episode].length]
        shifted: Array = times - times[0]
        return shifted


def _find_manifest(path: Path) -> Path:
    if path.is_file():
        return path
    here = [path / name for name in MANIFESTS if (path / name).is_file()]
    found = "both manifest.csv and manifest.jsonl" if here else "no manifest"
    hint = "keep one, with columns video and instruction"
    require(len(here) == 1, path, found, "manifest.csv or manifest.jsonl", hint)
    return here[0]


def _parse(row: Row, folder: Path) -> tuple[EpisodeInfo, Path, int]:
    """Return a row's episode, its video and the number of its first frame."""
    instruction, video = row.text("instruction"), _inside(folder, row)
    try:
        fps, times = probe_video(video).fps, frame_times(video)
    except BadInputError as error:
        raise BadInputError(f"{row.where}, {video}", error.found, error.expected, error.hint) from error
    start, end = row.seconds("start") or 0.0, row.seconds("end")
    # Times are written with few decimals: a frame up to a thousandth of its interval before `start` is included.
    slack = 1e-3 / fps
    first = int(np.searchsorted(times[:-1], start - slack))
    stop = len(times) - 1 if end is None else int(np.searchsorted(times[:-1], end - slack))
    if first >= stop or (end is not None and end > times[-1] + slack):
        found = f"start = {start:g}, end = {'the end' if end is None else f'{end:g}'}"
        expected = f"at least one frame in start <= t < end <= {times[-1]:.3f}, the video's end in seconds"
        raise BadInputError(row.where, found, expected, "correct start and end, or leave them empty for all of it")
    if probe_video(video).variable:
        fps = float((stop - first) / (times[stop] - times[first]))
    return EpisodeInfo(stop - first, instruction, fps), video, first


def _inside(folder: Path, row: Row) -> Path:
    """Return a row's video, which must lie in the manifest's folder even after following symbolic links."""
    name = row.text("video")
    try:
        plain = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        video = (folder / name).resolve()
        inside, there = plain and video.is_relative_to(folder), video.is_file()
    except (OSError, ValueError, RuntimeError):  # not a valid path: too long, a null byte, a loop of links
        raise row.error("video", name, "a path") from None
    hint = "copy the video into the folder and name it relative to the manifest, or remove this row"
    require(inside, row.where, f"video = {name!r}, which leaves the folder", f"a path inside {folder}", hint)
    require(there, row.where, f"no file {name!r}", f"a video in {folder}", hint)
    return video
