"""Folders of videos or of numbered frames: the simplest formats for your own data.

- A folder with a manifest. `manifest.csv`, `manifest.tsv` or `manifest.jsonl` has the columns `video` (a path inside
  the folder: a video file, or a folder of numbered frames) and `instruction`. Optional columns are `start` and `end`,
  in seconds, if an episode is only a part of its video, and `fps` if the video is a folder of frames.
- A folder per task, which holds nothing but videos: the folder's name is the instruction.
- A folder of numbered frames (`frame_00001.png`), or a folder of such folders: episodes without instructions.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each, stack_images
from counterpoint.formats.boundary import decode_image, parsing
from counterpoint.formats.recognition import MANIFESTS, frame_folders, misfit, numbered_images, task_folders
from counterpoint.formats.remote import read_whole
from counterpoint.formats.table import Row, read_table
from counterpoint.formats.video import frame_times, probe_video, read_frames, uneven_rate

_COLUMNS = ("video", "instruction", "start", "end", "fps")
_FPS = 10.0  # frames a second of a folder of frames, unless the manifest has another rate
_NO_TASK = {
    *("train", "training", "val", "valid", "validation", "eval", "test", "testing"),
    *("data", "raw", "video", "videos", "clip", "clips", "episode", "episodes", "image", "images", "frames"),
    *("demo", "demos", "recording", "recordings", "run", "runs", "session", "trial", "trials", "task", "tasks"),
    *("success", "successes", "failure", "failures", "cam", "camera", "front", "left", "right", "side", "top", "wrist"),
}
"""Words that make no instruction, even together and with numbers."""


class Video:
    """A video file that holds an episode.

    Args:
        path: The file.
        root: The data set's folder.
        rate: Frames a second according to the manifest; `None` if it does not say.

    Attributes:
        files: The files that are read.
        fps: Frames a second; the mean where it varies.
        variable: True if the frame rate varies.
        recorded: False if the frame rate is assumed.
        times: Presentation time of each frame, then the end, float64 [frames + 1].

    Raises:
        BadInputError: If the video is missing or damaged.
    """

    def __init__(self, path: Path, root: Path, rate: float | None = None) -> None:
        _require_inside(path, root)
        self.path, self.files, self.recorded, self._rate = path, [path], True, rate
        self.fps, self.variable = probe_video(path).fps, probe_video(path).variable

    @property
    def times(self) -> NDArray[np.float64]:  # noqa: D102
        return frame_times(self.path)

    def read(self, numbers: Array) -> Array:
        """Return the frames of these numbers, uint8 [N, H, W, 3]."""
        return read_frames(self.path, numbers)

    def findings(self) -> Iterator[BadInputError]:
        """Yield an error if the frame rate varies, or contradicts the manifest."""
        yield from uneven_rate(self.path)
        if self._rate is not None and abs(self._rate / self.fps - 1) > 0.01:
            hint = "correct fps in the manifest, or leave it empty: a video has its own"
            yield BadInputError(self.path, f"{self.fps:.6g} frames a second", f"{self._rate:g}, as fps says", hint)


class FrameFolder:
    """A folder of numbered images that holds an episode; arguments and attributes are those of `Video`."""

    variable = False

    def __init__(self, path: Path, root: Path, rate: float | None = None) -> None:
        with parsing(path, "a readable folder", "check the path"):
            names = numbered_images(path)
        if not names:
            hint = "keep only the frames of one episode there, or name another folder"
            raise BadInputError(path, misfit(path), "numbered images alone, such as frame_00001.png", hint)
        self.path, self.files = path, [path / name for name in names.values()]
        for file in (path, *self.files):
            if file is path or file.is_symlink():
                _require_inside(file, root)
        self.fps, self.recorded, self._numbers = rate or _FPS, rate is not None, list(names)
        self.times = np.arange(len(self.files) + 1) / self.fps

    def read(self, numbers: Array) -> Array:
        """Return the frames of these numbers, uint8 [N, H, W, 3]."""
        files = [self.files[number] for number in numbers.tolist()]
        return stack_images((file, decode_image(file, read_whole(file))) for file in files)

    def findings(self) -> Iterator[BadInputError]:
        """Yield an error if the numbers of the frames have gaps."""
        steps = np.diff(self._numbers)
        gaps = np.flatnonzero(steps != steps.min())
        for at in gaps[:1].tolist():
            found = f"frames {self._numbers[at]} and {self._numbers[at + 1]} in a row, and {len(gaps)} gaps in all"
            hint = "copy the missing frames, or split the folder: all frames are read as equally far apart"
            yield BadInputError(self.path, found, f"numbers that differ by {steps.min()}", hint)


Source = Video | FrameFolder


@dataclass(frozen=True)
class Part:
    """One episode: frames of a video or of a folder, from frame number `first` on."""

    info: EpisodeInfo
    source: Source
    first: int = 0


class ClipsStore(Reader):
    """Episodes that are parts of videos or of folders of frames: one camera, `camera`, and neither actions nor state.

    For a video of variable frame rate, the timestamps are the presentation times, and `fps` is the mean rate of the
    episode.

    Args:
        parts: The episodes.

    Attributes:
        sources: The videos and folders, each once.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = list(parts)
        self.episodes = tuple(part.info for part in self._parts)
        self.names = [part.source.path for part in self._parts]
        self.sources = list(dict.fromkeys(part.source for part in self._parts))
        self.files = list(dict.fromkeys(file for source in self.sources for file in source.files))
        self.identity = [(part.source.path.name, part.first) for part in self._parts]
        self.rate_recorded = all(source.recorded for source in self.sources)

    def findings(self) -> Iterator[BadInputError]:
        """Yield videos whose rate varies or contradicts the manifest, folders with gaps, and repeated episodes."""
        for source in self.sources:
            yield from source.findings()
        seen: dict[Hashable, EpisodeInfo] = {}
        for number, part in enumerate(self._parts):
            same = seen.setdefault((part.source.path, part.first, part.info.length), part.info)
            if same is not part.info:
                found = f"the same frames twice, as {same.instruction!r} and as {part.info.instruction!r}"
                hint = "remove one row, unless the video is to count twice"
                yield BadInputError(f"{part.source.path}, episode {number}", found, "each frame once", hint)

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        part = self._parts[episode]
        return part.source.read(part.first + steps)

    def sizes(self, camera: str) -> Counter[tuple[int, int]]:
        """Return each size (height, width) of the videos with its number of episodes; of folders, the first frame's."""
        videos = [probe_video(part.source.path) for part in self._parts if isinstance(part.source, Video)]
        found = Counter((info.height, info.width) for info in videos)
        return found if len(videos) == len(self._parts) else super().sizes(camera)

    def recording(self, episode: int) -> Hashable:
        """Return the episode's video or folder."""
        return str(self._parts[episode].source.path)

    def timestamps(self, episode: int) -> Array:
        """Return the time of each step, float64 [T], in seconds since the episode's first frame."""
        part = self._parts[episode]
        if not part.source.variable:
            return super().timestamps(episode)
        times = part.source.times[part.first : part.first + part.info.length]
        shifted: Array = times - times[0]
        return shifted


class VideoFolderStore(ClipsStore):
    """Episodes of a manifest. An episode has the frames whose presentation time t is in start <= t < end.

    Args:
        path: The folder that holds the manifest, or the manifest itself.
        on_bad_row: Called with the error of each row that cannot be used and is left out; by default the first error is
            raised.

    Raises:
        BadInputError: When the manifest or one of its rows cannot be used; the message names the row.
    """

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.manifest = _find_manifest(Path(path))
        folder, opened = self.manifest.parent.resolve(), dict[tuple[Path, float | None], Source]()
        command = f"counterpoint data manifest {self.manifest} {self.manifest.parent / 'OUT.csv'}"
        hint = f"name the columns in the first row, or: {command} --columns video=NAME instruction=NAME"
        rows = read_table(self.manifest, ("video", "instruction"), hint=hint, on_bad_row=on_bad_row)
        names = dict.fromkeys(name for row in rows for name in row.fields)
        self.unread = tuple(name for name in names if name and name not in _COLUMNS)
        alike = next((name for name in self.unread if name.lower() in _COLUMNS), "")
        where, hint = f"{self.manifest}, row 1", f"rename it, or: {command} --columns {alike.lower()}={alike}"
        require(not alike, where, f"a column {alike!r}", f"{alike.lower()!r}, in lower case", hint)
        super().__init__(part for _, part in read_each(rows, lambda row: _parse(row, folder, opened), on_bad_row))


class TaskFolderStore(ClipsStore):
    """Videos in a folder per task: the folder's name, with spaces for underscores, is the instruction.

    Args:
        path: The folder that holds the folders of the tasks.
        on_bad_row: Called with the error of each folder or video that cannot be used and is left out; by default the
            first error is raised.

    Raises:
        BadInputError: When a folder's name is not an instruction, or a video cannot be read.
    """

    facts: Mapping[str, str] = {"instructions from": "the names of the folders, with spaces for underscores"}

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        root = Path(path).resolve()
        folders = task_folders(root)
        tasks = read_each(folders, lambda folder: _task(folder, root), on_bad_row)
        named = ((video, task) for folder, task in tasks for video in folders[folder])
        parts = list(read_each(named, lambda row: _whole(Video(row[0], root), row[1]), on_bad_row))
        require(parts, path, "no video that can be used", "one or more", "name the folders by their tasks")
        super().__init__(part for _, part in parts)


class FrameFolderStore(ClipsStore):
    """A folder of numbered frames, or a folder of such folders: episodes without instructions, at 10 frames a second.

    Args:
        path: The folder.
        on_bad_row: Called with the error of each folder that cannot be used and is left out; by default the first error
            is raised.
    """

    facts: Mapping[str, str] = {
        "instructions from": "none: folders of frames have no words; a manifest.csv can add them"
    }

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        root = Path(path).resolve()
        opened = read_each(frame_folders(root), lambda folder: _whole(FrameFolder(folder, root), ""), on_bad_row)
        super().__init__(part for _, part in opened)


def _whole(source: Source, instruction: str) -> Part:
    return Part(EpisodeInfo(len(source.times) - 1, instruction, source.fps), source)


def _task(folder: Path, root: Path) -> str:
    words = folder.name.replace("_", " ").strip()
    good = not {*re.findall(r"[^\W\d]+", words.lower())} <= _NO_TASK
    hint = f"rename the folder, or name the videos in {root / MANIFESTS[0]} with columns video and instruction"
    require(good, folder, f"a folder {folder.name!r} of videos", "the task in words, such as 'open the drawer'", hint)
    return words


def _find_manifest(path: Path) -> Path:
    if path.is_file():
        return path
    here = [path / name for name in MANIFESTS if (path / name).is_file()]
    found = f"both {' and '.join(manifest.name for manifest in here)}" if here else "no manifest"
    hint = "keep one, with columns video and instruction"
    require(len(here) == 1, path, found, "manifest.csv, manifest.tsv or manifest.jsonl", hint)
    return here[0]


def _parse(row: Row, folder: Path, opened: dict[tuple[Path, float | None], Source]) -> Part:
    """Return the episode of a row; `opened` keeps videos and folders, since several rows may name the same one."""
    instruction, path, rate = row.text("instruction"), inside(folder, row), row.rate("fps")
    try:
        if (path, rate) not in opened:
            opened[path, rate] = (FrameFolder if path.is_dir() else Video)(path, folder, rate)
        source, times = opened[path, rate], opened[path, rate].times
    except BadInputError as error:
        hint = f"{error.hint}; or remove this row"
        raise BadInputError(f"{row.where}, {path}", error.found, error.expected, hint) from error
    start, end, fps = row.seconds("start") or 0.0, row.seconds("end"), source.fps
    # Times have few decimals, so a frame that precedes `start` by up to a thousandth of its interval is included.
    slack = 1e-3 / fps
    first = int(np.searchsorted(times[:-1], start - slack))
    stop = len(times) - 1 if end is None else int(np.searchsorted(times[:-1], end - slack))
    if first >= stop or (end is not None and end > times[-1] + slack):
        found = f"start = {start:g}, end = {'the end' if end is None else f'{end:g}'}"
        expected = f"at least one frame in start <= t < end <= {times[-1]:.3f}, the video's end in seconds"
        raise BadInputError(row.where, found, expected, "correct start and end, or leave them empty for all of it")
    if source.variable:
        fps = float((stop - first) / (times[stop] - times[first]))
    return Part(EpisodeInfo(stop - first, instruction, fps), source, first)


def inside(folder: Path, row: Row, column: str = "video") -> Path:
    """Return a row's video, which must lie in the table's folder even after following symbolic links."""
    name = row.text(column)
    try:
        # A path as Windows writes it, or with accents in the form that other systems write
        forms = (name, name.replace("\\", "/"), *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
        name = next((form for form in forms if (folder / form).exists()), forms[1])
        plain = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        video = (folder / name).resolve()
        within, there = plain and video.is_relative_to(folder), video.exists() and video != folder
    except (OSError, ValueError, RuntimeError):  # not a valid path: too long, a null byte, a loop of links
        raise row.error(column, name, "a path") from None
    hint = "copy the video into the folder and name it relative to the table, or remove this row"
    found = "an absolute path" if PurePosixPath(name).is_absolute() else "which leaves the folder"
    require(within, row.where, f"{column} = {name!r}, {found}", f"a path relative to {folder}, and inside it", hint)
    if not there and (close := _similar(folder, name)):
        hint = f"name it {close!r}, or remove this row"
    require(there, row.where, f"no file {name!r}", f"a video or a folder of frames in {folder}", hint)
    return video


def _similar(folder: Path, name: str) -> str:
    """Return the path of a file named `name` in other case, or with an ending added; empty if there is none."""
    inside = PurePosixPath(name).parent
    with contextlib.suppress(OSError):
        for other in sorted((folder / inside).iterdir()):
            if PurePosixPath(name).name.casefold() in (other.name.casefold(), other.stem.casefold()):
                return str(inside / other.name)
    return ""


def _require_inside(path: Path, root: Path) -> None:
    with parsing(path, "a path"):
        inside = path.resolve().is_relative_to(root)
    require(inside, path, "a link that leaves the folder", f"files inside {root}", "copy the file into the folder")
