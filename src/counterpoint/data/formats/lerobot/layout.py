"""What the LeRobot readers and the writer share: names, `meta/info.json` and paths.

Format v3.0 keeps many episodes in one parquet and one mp4 file, v2.1 one episode in each. Both describe
themselves in `meta/info.json`; nothing in it is trusted: a path that leaves the data set's folder is refused.

Find the episodes of a LeRobot v2.1 data set: metadata in JSON lines, files of one episode each.

Find the episodes of a LeRobot v3.0 data set: `meta/episodes` says in which shared files each lies.
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

import pyarrow as pa
import pyarrow.compute as pc

from counterpoint.data.formats.lerobot.tables import damaged, read_table, reading
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
    "located",
    "one_instruction",
    "places_v21",
    "places_v30",
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
    *("total_chunks", "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path"),
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
            '"storage_format": "lance"',
            "parquet and mp4 files",
            "export the data set to the parquet layout with lerobot",
        )
    version = re.fullmatch(r"v(\d+)\.(\d+)", str(raw.get("codebase_version")))
    if version is None or (int(version[1]) != 3 and version[0] not in ("v2.0", "v2.1")):
        raise BadInputError(
            path,
            f"codebase_version {raw.get('codebase_version')!r}",
            "v3.0 or v2.1",
            "convert the data set with lerobot's own converter",
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
    return Feature(str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), bool(details.get("video.is_depth_map")))


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
            f"the path {template!r}" + (f" with {fields['video_key']!r}" if "video_key" in fields else ""),
            "a path inside the data set's folder",
            "do not use this data set unless you trust it; correct data_path and video_path",
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


def places_v21(root: Path, info: Info) -> list[EpisodePlace]:
    """Where each episode lies, in order of `episode_index`.

    Raises:
        BadInputError: When metadata are missing or malformed, or a path leaves the folder.
    """
    path = root / "meta/episodes.jsonl"
    success = _successes(root / "meta/episodes_stats.jsonl")
    video_keys = [key for key in info.cameras.values() if info.features[key].dtype == "video"]
    places = []
    for line in _lines(path):
        try:
            number, length = int(line["episode_index"]), int(line["length"])
            tasks = [str(task) for task in line["tasks"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"{type(error).__name__}: {error}", "episode_index, length and tasks") from error
        if not 1 <= length < 2**31:
            raise damaged(path, f"episode {number} of length {length}", "at least one step")
        at = {"episode_chunk": number // info.chunk, "episode_index": number}
        places.append(
            EpisodePlace(
                number=number,
                length=length,
                instruction=one_instruction(path, tasks),
                success=success.get(number),
                data=located(root, info.data_path, **at),
                row=0,
                rows=length,
                videos={
                    key: VideoPlace(located(root, info.video_path or "", video_key=key, **at), 0, (length, length))
                    for key in video_keys
                },
            )
        )
    return sorted(places, key=lambda place: place.number)


def _successes(path: Path) -> dict[int, bool]:
    """Episode number -> whether any step succeeded, where the statistics (absent before v2.1) say."""
    if not path.exists():
        return {}
    entries = ((line, line.get("stats", {}).get(SUCCESS)) for line in _lines(path))
    try:
        return {int(line["episode_index"]): bool(stats["max"][0]) for line, stats in entries if stats}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", "statistics of each episode") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    try:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.strip():
                lines.append(json.loads(text))
                if not isinstance(lines[-1], dict):
                    raise damaged(path, f"line {number}: {text[:40]}", "one JSON object a line")
    except BadInputError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(path, str(error), "one JSON object a line") from error
    return lines


_SUCCESS = f"stats/{SUCCESS}/max"
_DATA = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
_VIDEO = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


def places_v30(root: Path, info: Info) -> list[EpisodePlace]:
    """Where each episode lies, in order of `episode_index`.

    Raises:
        BadInputError: When metadata are missing, malformed or contradictory, or a path leaves the folder.
    """
    folder = root / "meta/episodes"
    keys = [key for key in info.cameras.values() if info.features[key].dtype == "video"]
    rows = [row for path in sorted(folder.glob("*/*.parquet")) for row in _read(path, keys)]
    rows.sort(key=lambda row: row["episode_index"])
    data = [_file(root, info, row, "data") for row in rows]
    lengths = [row["length"] for row in rows]
    spans = _spans(data, [row["dataset_from_index"] for row in rows], lengths)
    videos = [_videos(root, info, rows, key) for key in keys]
    return [
        EpisodePlace(
            number=row["episode_index"],
            length=row["length"],
            instruction=one_instruction(folder, row["tasks"]),
            success=_success(row),
            data=path,
            row=row["dataset_from_index"] - spans[path][0],
            rows=spans[path][1] - spans[path][0],
            videos={key: places[at] for key, places in zip(keys, videos, strict=True)},
        )
        for at, (row, path) in enumerate(zip(rows, data, strict=True))
    ]


def _videos(root: Path, info: Info, rows: list[dict[str, Any]], key: str) -> list[VideoPlace]:
    """Where each episode's frames of one camera are."""
    files = [_file(root, info, row, f"videos/{key}", key) for row in rows]
    starts = [round(row[f"videos/{key}/from_timestamp"] * info.fps) for row in rows]
    spans = _spans(files, starts, [row["length"] for row in rows])
    most = {path: end for path, (_, end) in spans.items()}
    for path, row in zip(files, rows, strict=True):  # a file may be as long as its timestamps say, too
        most[path] = max(most[path], round(row[f"videos/{key}/to_timestamp"] * info.fps))
    return [VideoPlace(path, start, (spans[path][1], most[path])) for path, start in zip(files, starts, strict=True)]


def _read(path: Path, video_keys: list[str]) -> list[dict[str, Any]]:
    wanted = [
        "episode_index",
        "tasks",
        "length",
        *_DATA,
        *(f"videos/{key}/{name}" for key in video_keys for name in _VIDEO),
    ]
    table = read_table(path, [*wanted, _SUCCESS])
    with reading(path):
        rows: list[dict[str, Any]] = table.to_pylist()
    for name in wanted:
        if name not in table.column_names or not _is_sound(name, table[name]):
            raise damaged(path, f"no sound column {name!r}", "the columns of LeRobot v3.0, for every episode")
    for row in rows:
        start, end, length = row["dataset_from_index"], row["dataset_to_index"], row["length"]
        if length < 1 or end - start != length:
            found = f"episode {row['episode_index']} of length {length} in rows {start} to {end}"
            raise damaged(path, found, "a length above 0 equal to the number of rows")
    return rows


def _is_sound(name: str, column: pa.ChunkedArray) -> bool:
    """Whether every episode has a value, of the kind the column is for."""
    kind = column.type
    if name == "tasks":
        right = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    elif name.endswith("timestamp"):
        right = pa.types.is_floating(kind) and pc.all(pc.is_finite(column)).as_py()
    else:
        right = pa.types.is_integer(kind)
    return bool(right) and column.null_count == 0


def _file(root: Path, info: Info, row: dict[str, Any], prefix: str, video_key: str | None = None) -> Path:
    at = {"chunk_index": row[f"{prefix}/chunk_index"], "file_index": row[f"{prefix}/file_index"]}
    if video_key is None:
        return located(root, info.data_path, **at)
    return located(root, info.video_path or "", video_key=video_key, **at)


def _spans(files: list[Path], starts: list[int], lengths: list[int]) -> dict[Path, tuple[int, int]]:
    """File -> the first start and the last end of the episodes in it, which must not overlap."""
    spans: dict[Path, tuple[int, int]] = {}
    for path, start, length in sorted(zip(files, starts, lengths, strict=True)):
        first, end = spans.get(path, (start, start))
        if start < end:
            found = f"an episode from {start}, inside another that ends at {end}"
            raise damaged(path, found, "metadata whose episodes do not overlap")
        spans[path] = (first, start + length)
    return spans


def _success(row: dict[str, Any]) -> bool | None:
    most = row.get(_SUCCESS)
    return bool(most[0]) if most else None
