"""What the LeRobot readers and the writer share: names, `meta/info.json` and paths.

Format v3.0 keeps many episodes in one parquet and one mp4 file, v2.1 one episode in each. Both describe
themselves in `meta/info.json`; nothing in it is trusted: a path that leaves the data set's folder is refused.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from counterpoint.errors import BadInputError

__all__ = [
    "ACTION",
    "DATA_PATH",
    "IMAGES",
    "INFO",
    "REWARD",
    "STATE",
    "SUCCESS",
    "TOLERANCE",
    "VIDEO_PATH",
    "EpisodePlace",
    "Feature",
    "Info",
    "VideoPlace",
    "damaged",
    "located",
    "one_instruction",
    "read_info",
]

INFO = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
ACTION, STATE, IMAGES = "action", "observation.state", "observation.images."
REWARD, SUCCESS = "next.reward", "next.success"
TOLERANCE = 1e-4
"""Seconds by which the step between two timestamps may differ from 1/fps."""

_KNOWN = {
    *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "total_videos"),
    *(
        "total_chunks",
        "chunks_size",
        "data_files_size_in_mb",
        "video_files_size_in_mb",
        "data_path",
        "video_path",
    ),
    *("robot_type", "splits", "tools", "storage_format", "counterpoint"),
}
_FIELD = re.compile(r"\{(chunk_index|file_index|episode_chunk|episode_index|video_key)(:0?\d?d)?\}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feature:
    """One column: its dtype (`video`, `image`, `string` or a numpy name) and the shape of one row's value."""

    dtype: str
    shape: tuple[int, ...]
    is_depth: bool


@dataclass(frozen=True)
class Info:
    """`meta/info.json`, checked.

    Attributes:
        version: (3, 0) or (2, 1).
        fps: Frames a second.
        episodes: Number of episodes of the whole data set.
        features: Column name -> what it holds.
        splits: Split name -> first episode and the one after its last.
        data_path: Template of the parquet files' paths.
        video_path: Template of the video files' paths; `None` without video.
        chunk: Number of files (v3.0) or episodes (v2.1) a chunk folder.
    """

    version: tuple[int, int]
    fps: float
    episodes: int
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int, int]]
    data_path: str
    video_path: str | None
    chunk: int

    @property
    def cameras(self) -> dict[str, str]:
        """Short camera name -> feature key, depth maps left out."""
        keys = [k for k, f in self.features.items() if f.dtype in ("video", "image") and not f.is_depth]
        return {k.removeprefix(IMAGES).removeprefix("observation."): k for k in keys}


@dataclass(frozen=True, slots=True)
class VideoPlace:
    """An episode's frames in a video file: number of the first; least and most frames of the whole file."""

    path: Path
    first: int
    frames: tuple[int, int]


@dataclass(frozen=True, slots=True)
class EpisodePlace:
    """Where one episode lies.

    Attributes:
        number: Its `episode_index`.
        length: T.
        instruction: Its task in words.
        success: Whether any step reports success, where the metadata say.
        data: The parquet file.
        row: Number of its first row there.
        rows: Number of rows the whole file must have.
        videos: Feature key -> where its frames are.
    """

    number: int
    length: int
    instruction: str
    success: bool | None
    data: Path
    row: int
    rows: int
    videos: Mapping[str, VideoPlace]


def damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    """The error for files that contradict themselves or each other."""
    return BadInputError(where, found=found, expected=expected, mend="copy or download the data set again")


def read_info(root: Path) -> Info:
    """Read and check `meta/info.json`.

    Raises:
        BadInputError: When it is missing, malformed, of another version or of unknown storage.
    """
    path = root / INFO
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, str(error), "a readable JSON file") from error
    if not isinstance(raw, dict):
        raise damaged(path, type(raw).__name__, "a JSON object")
    if raw.get("storage_format") == "lance":
        raise BadInputError(
            path,
            found='"storage_format": "lance"',
            expected="parquet and mp4 files",
            mend="export the data set to the parquet layout with lerobot",
        )
    version = re.fullmatch(r"v(\d+)\.(\d+)", str(raw.get("codebase_version")))
    if version is None or (int(version[1]) != 3 and version[0] not in ("v2.0", "v2.1")):
        raise BadInputError(
            path,
            found=f"codebase_version {raw.get('codebase_version')!r}",
            expected="v3.0 or v2.1",
            mend="convert the data set with lerobot's own converter",
        )
    for key in sorted(raw.keys() - _KNOWN):
        _warn_once(str(path), key)
    try:
        info = Info(
            version=(int(version[1]), int(version[2])),
            fps=float(raw["fps"]),
            episodes=int(raw["total_episodes"]),
            features={str(name): _feature(entry) for name, entry in raw["features"].items()},
            splits={str(name): _split(text) for name, text in (raw.get("splits") or {}).items()},
            data_path=str(raw["data_path"]),
            video_path=raw.get("video_path"),
            chunk=int(raw.get("chunks_size") or 1000),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", "the keys of a LeRobot data set") from error
    if not 0 < info.fps < math.inf:
        raise damaged(path, f"fps {info.fps}", "frames a second above 0")
    return info


def _feature(entry: Mapping[str, Any]) -> Feature:
    details = entry.get("info") or entry.get("video_info") or {}
    return Feature(
        str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), bool(details.get("video.is_depth_map"))
    )


def _split(text: str) -> tuple[int, int]:
    first, last = text.split(":")
    return int(first), int(last)


@cache
def _warn_once(path: str, key: str) -> None:
    _log.warning("%s: unknown key %r is ignored", path, key)


def located(root: Path, template: str, **fields: int | str) -> Path:
    """Fill in a path template of `meta/info.json`.

    Raises:
        BadInputError: When the template has an unknown field or the path leaves the data set's folder.
    """
    try:
        known = not re.search(r"[{}]", _FIELD.sub("", template))
        relative = PurePosixPath(template.format(**fields) if known else "")
    except (KeyError, ValueError, TypeError):
        relative = PurePosixPath()
    if not relative.name or relative.is_absolute() or ".." in relative.parts:
        raise BadInputError(
            root / INFO,
            found=f"the path {template!r}"
            + (f" with {fields['video_key']!r}" if "video_key" in fields else ""),
            expected="a path inside the data set's folder",
            mend="do not use this data set unless you trust it; correct data_path and video_path",
        )
    return root / relative


def one_instruction(where: Path, tasks: list[str]) -> str:
    """An episode's task in words; of several, the first, with one warning a file."""
    if len(tasks) > 1:
        _warn_several(str(where))
    return str(tasks[0]) if tasks else ""


@cache
def _warn_several(path: str) -> None:
    _log.warning("%s: some episodes have several tasks; the first of each is used", path)
