"""The files of a LeRobot data set: `meta/info.json`, and the location of every episode.

Format v3.0 keeps many episodes in one parquet and one mp4 file (`meta/episodes` gives their locations); v2.1 keeps one
episode in each file (metadata in JSON lines). Metadata are not trusted: a path that leaves the data set's folder is
refused.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import as_list, as_mapping, as_number, as_whole, read_bytes
from counterpoint.formats.lerobot.tables import HINT, as_array, as_matrix, count_rows, damaged, read_table, reading

INFO = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
ACTION, STATE, IMAGES = "action", "observation.state", "observation.images."
ENVIRONMENT = "observation.environment_state"
REWARD, SUCCESS = "next.reward", "next.success"
TASK, SUBTASK = "task_index", "subtask_index"
TASKS, SUBTASKS = "meta/tasks.parquet", "meta/subtasks.parquet"
BETWEEN = 0.25
"""Frames by which a `from_timestamp` may differ from a frame's time; if it differs more, its frame is in doubt."""
COUNTERS = ("frame_index", "episode_index", "index", TASK)
OWN = ("timestamp", *COUNTERS, SUBTASK)
"""Columns that LeRobot computes itself; columns of other formats must not have these names."""
ROLES = {
    "actions": ((ACTION,), ("actions",)),
    "state": ((STATE,), ("state",), ("joint_position", "gripper_position")),
    "environment_state": ((ENVIRONMENT,),),
    "rewards": ((REWARD,),),
}
"""Vector of an episode -> the features it may be read from: LeRobot's name, then the names in openpi's data.

The feature with LeRobot's name is used if it exists. Otherwise the first group is used whose features all exist as
vectors of numbers; the features of a group are joined."""

NUMBERS = {
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
"""The dtypes that a column of numbers may have."""
_KNOWN = {
    *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "total_videos"),
    *("total_chunks", "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path"),
    *("robot_type", "splits", "tools", "storage_format", "counterpoint"),
}
_FIELD = re.compile(r"\{(chunk_index|file_index|episode_chunk|episode_index|video_key)(:0?\d?d)?\}")
_SUCCESS = f"stats/{SUCCESS}/max"
_TASK = ("stats/task_index/min", "stats/task_index/max")
_DATA = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
_VIDEO = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
_TRUST = "do not use this data set unless you trust it; keep its files and paths in its folder"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feature:
    """One column: its dtype (`video`, `image`, `string` or a numpy name) and the shape of one row's value.

    An image or a video is marked as depth by `is_depth_map` (LeRobot 0.6), by the older `video.is_depth_map`, or by one
    channel and "depth" in its name or in the names of its dimensions.
    """

    dtype: str
    shape: tuple[int, ...]
    is_depth: bool
    notes: Mapping[str, Any]  # the rest of its entry in info.json: `names` of the dimensions and so on

    @property
    def is_visual(self) -> bool:
        """True for an image or a video."""
        return self.dtype in ("video", "image")

    @property
    def is_column(self) -> bool:
        """True if every row has one text, or numbers of the same shape as in all rows."""
        return self.dtype == "string" or self.is_numeric

    @property
    def is_numeric(self) -> bool:
        """True if every row has numbers, of the same shape in all rows."""
        return self.dtype in NUMBERS and all(length > 0 for length in self.shape)


@dataclass(frozen=True)
class Info:
    """The checked content of `meta/info.json`."""

    version: tuple[int, int]  # (3, 0) or (2, 1)
    fps: float
    episodes: int  # of the whole data set
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int, int]]  # name -> its first episode, and the episode after its last
    data_path: str  # template of the parquet files' paths
    video_path: str  # template of the video files' paths; empty without video
    chunk: int  # number of files (v3.0) or episodes (v2.1) in a chunk folder
    raw: Mapping[str, Any]  # the whole content of info.json

    @property
    def camera_names(self) -> dict[str, str]:
        """The name of each image or video feature by its key: the short name, or a longer one if that is not unique."""
        visual = [key for key, feature in self.features.items() if feature.is_visual]
        counts = Counter(map(short_name, visual))
        longer = {key: key.removeprefix("observation.") if key.startswith(IMAGES) else key for key in visual}
        names = {key: short_name(key) if counts[short_name(key)] == 1 else longer[key] for key in visual}
        return names if len({*names.values()}) == len(names) else {key: key for key in visual}

    @property
    def cameras(self) -> dict[str, str]:
        """The feature key of each camera by its name; depth cameras are left out."""
        return {name: key for key, name in self.camera_names.items() if not self.features[key].is_depth}

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The features that each vector in `ROLES` is read from, without the vectors that the data set lacks."""
        vectors = {key for key, feature in self.features.items() if feature.is_numeric and len(feature.shape) < 2}
        found: dict[str, tuple[str, ...]] = {}
        for source, (own, *others) in ROLES.items():
            ways = [own] if self.features.keys() & set(own) else [keys for keys in others if vectors.issuperset(keys)]
            found |= {source: ways[0]} if ways else {}
        return found

    @property
    def video_keys(self) -> list[str]:
        """The feature keys of the cameras that are stored as video."""
        return [key for key in self.cameras.values() if self.features[key].dtype == "video"]


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """The frames of an episode in a video file: the first frame's number, and bounds on the file's number of frames.

    `start` is the episode's first time in the file, and `seconds` its length, both in seconds as the episode table
    gives them; `seconds` is `None` where it gives none.
    """

    path: Path
    first: int
    frames: tuple[int, int]
    start: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeLocation:
    """The location of one episode."""

    number: int  # `episode_index`
    length: int
    tasks: tuple[str, ...]  # in words, as the episode table lists them
    task: int | None  # the `task_index` of all rows; `None` if it varies or the statistics do not say
    success: bool | None  # whether any step reports success; `None` if the metadata do not say
    data: Path  # the parquet file
    row: int  # number of the episode's first row in that file
    rows: int  # number of rows the whole file must have
    videos: Mapping[str, VideoSpan]  # by feature key


def read_info(root: Path) -> Info:
    """Read and check `meta/info.json`.

    Raises:
        BadInputError: When the file is missing or malformed, or has another version or unknown storage, or a file of
            `meta` lies outside the folder.
    """
    path = root / INFO
    for file in (root / "meta", *(root / "meta").rglob("*")):
        _require_inside(root, file)
    with reading(path, "a readable JSON file"):
        raw = json.loads(read_bytes(path))
    require(isinstance(raw, dict), path, type(raw).__name__, "a JSON object", HINT)
    lance = raw.get("storage_format") == "lance"
    require(not lance, path, '"storage_format": "lance"', "parquet and mp4 files", "export it to parquet with lerobot")
    version = re.fullmatch(r"v(3)\.(\d+)|v(2)\.([01])", str(raw.get("codebase_version")))
    found, hint = f"codebase_version {raw.get('codebase_version')!r}", "convert it with lerobot"
    require(version, path, found, "v3.0 or v2.1", hint)
    assert version is not None
    for key in sorted(raw.keys() - _KNOWN):
        warn_once(f"{path}: unknown key {key!r} is ignored")
    with reading(path, "the keys of a LeRobot data set"):
        splits = dict(as_mapping(raw.get("splits") or {}))
        for name, text in splits.items():
            told = f"split {str(name)!r} as {text!s:.60}"
            require(re.fullmatch(r"-?\d+:-?\d+", str(text)), path, told, "a range a:b of episodes", "write it as a:b")
        info = Info(
            version=(int(version[1] or version[3]), int(version[2] or version[4])),
            fps=as_number(raw["fps"]),
            episodes=as_whole(raw["total_episodes"]),
            features={str(name): _feature(str(name), entry) for name, entry in as_mapping(raw["features"]).items()},
            splits={
                str(name): (int(a), int(b)) for name, (a, b) in ((n, str(t).split(":")) for n, t in splits.items())
            },
            data_path=str(raw["data_path"]),
            video_path=str(raw.get("video_path") or ""),
            chunk=as_whole(raw.get("chunks_size") or 1000),
            raw=raw,
        )
    good = 0 < info.fps < math.inf and info.chunk >= 1
    require(good, path, f"fps {info.fps}, chunks_size {info.chunk}", "above 0", HINT)
    return info


def short_name(key: str) -> str:
    """Return the name of a camera, given its feature key."""
    return key.removeprefix(IMAGES if key.startswith(IMAGES) else "observation.")


def _feature(name: str, value: object) -> Feature:
    entry = as_mapping(value)
    shape = tuple(map(as_whole, as_list(entry["shape"])))
    details = [as_mapping(entry.get(key) or {}) for key in ("info", "video_info")]
    marked = any(each.get(mark) for each in details for mark in ("is_depth_map", "video.is_depth_map"))
    one_channel = len(shape) == 2 or (len(shape) == 3 and 1 in (shape[0], shape[-1]))
    notes = {key: note for key, note in entry.items() if key not in ("dtype", "shape")}
    named = "depth" in f"{name} {entry.get('names') or ''}".lower()
    return Feature(str(entry["dtype"]), shape, marked or (one_channel and named), notes)


@cache
def warn_once(text: str) -> None:
    """Log a warning once; the same text is not logged again."""
    _log.warning(text)


def _require_inside(root: Path, path: Path) -> None:
    """Refuse a path or link that leaves the folder, except links of the Hub's own cache (snapshots to blobs)."""
    home = root.resolve()
    allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    try:
        inside = any(path.resolve().is_relative_to(folder) for folder in allowed)
    except (OSError, RuntimeError, ValueError):  # a loop of links, or not a valid path
        inside = False
    require(inside, path, "a path or link that leaves the data set's folder", "a path inside it", _TRUST)


def _path(root: Path, template: str, **fields: int | str) -> Path:
    """Return a path template of `meta/info.json` filled in; refuse a path outside the data set's folder."""
    try:
        known = not re.search(r"[{}]", _FIELD.sub("", template))
        relative = PurePosixPath(template.format(**fields) if known else "")
    except (KeyError, ValueError):
        relative = PurePosixPath()
    if not relative.name or relative.is_absolute() or ".." in relative.parts:
        found = f"the path {template!r}" + (f" with {fields['video_key']!r}" if "video_key" in fields else "")
        raise BadInputError(root / INFO, found, "a path inside the data set's folder", _TRUST)
    _require_inside(root, root / relative)
    return root / relative


def image_file(root: Path, path: str) -> Path:
    """Return the file of an image that a table names by its path, absolute or relative to the data set's folder.

    Raises:
        BadInputError: When the path leaves the data set's folder, or the file does not exist.
    """
    file, hint = root / path, f"copy the images into the folder, with the paths that the table names: {path:.80}"
    _require_inside(root, file)
    require(file.is_file(), file, "no such file", "an image inside the data set's folder", hint)
    return file


def split_names(root: Path) -> tuple[str, ...]:
    """Return the names of the splits in `meta/info.json`."""
    return tuple(read_info(root).splits)


def locate(root: Path, info: Info) -> list[EpisodeLocation]:
    """Return the location of each episode, in order of `episode_index`.

    Raises:
        BadInputError: When metadata are missing, malformed or contradictory, or a path leaves the folder.
    """
    return (_locate_v21 if info.version[0] == 2 else _locate_v30)(root, info)


def _one_task(ends: Sequence[Any]) -> int | None:
    """Return the task of all rows from the minimum and maximum `task_index`; `None` if they differ or are missing."""
    numbers = {as_whole(as_list(end)[0]) for end in ends if end is not None}
    return numbers.pop() if len(numbers) == 1 and None not in ends else None


def _locate_v21(root: Path, info: Info) -> list[EpisodeLocation]:
    path, stats = root / "meta/episodes.jsonl", root / "meta/episodes_stats.jsonl"
    success: dict[int, bool] = {}
    task: dict[int, int | None] = {}
    if stats.exists():  # absent before v2.1
        with reading(stats, "statistics of each episode"):
            for line in json_lines(stats):
                own = as_mapping(line.get("stats", {}))
                if entry := own.get(SUCCESS):
                    success[as_whole(line["episode_index"])] = bool(as_list(as_mapping(entry)["max"])[0])
                if entry := own.get("task_index"):
                    ends = [as_mapping(entry)[end] for end in ("min", "max")]
                    task[as_whole(line["episode_index"])] = _one_task(ends)
    locations = []
    for line in json_lines(path):
        with reading(path, "episode_index, length and tasks"):
            episode, length = as_whole(line["episode_index"]), as_whole(line["length"])
            words = tuple(str(task) for task in as_list(line["tasks"]) if task is not None)
        require(1 <= length < 2**31, path, f"episode {episode} of length {length}", "at least one step", HINT)
        at = {"episode_chunk": episode // info.chunk, "episode_index": episode}
        span = (length, length)
        videos = {k: VideoSpan(_path(root, info.video_path, video_key=k, **at), 0, span) for k in info.video_keys}
        facts = (words, task.get(episode), success.get(episode))
        locations.append(EpisodeLocation(episode, length, *facts, _path(root, info.data_path, **at), 0, length, videos))
    return sorted(locations, key=lambda location: location.number)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line."""
    with reading(path, "one JSON object a line"):
        lines = [json.loads(text) for text in read_bytes(path).decode().splitlines() if text.strip()]
    for number, line in enumerate(lines, start=1):
        require(isinstance(line, dict), path, f"line {number}: {line!r:.40}", "one JSON object a line", HINT)
    return lines


def _locate_v30(root: Path, info: Info) -> list[EpisodeLocation]:
    folder, keys = root / "meta/episodes", info.video_keys
    wanted = ["episode_index", "length", *_DATA, *(f"videos/{key}/{name}" for key in keys for name in _VIDEO)]
    files = [_read_episodes(path, wanted, info.fps) for path in sorted(folder.glob("*/*.parquet"))]
    columns = {name: np.concatenate([file[name] for file in files]) if files else np.zeros(0, int) for name in wanted}
    further = ("tasks", "task", _SUCCESS)
    tasks, task, success = ([entry for file in files for entry in file[name]] for name in further)
    order = np.argsort(columns["episode_index"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    starts, lengths = columns["dataset_from_index"], columns["length"]
    rows = _spans(root, info.data_path, columns, "data", starts, lengths)
    begin = {key: columns[f"videos/{key}/from_timestamp"] for key in keys}
    seconds = {key: columns[f"videos/{key}/to_timestamp"] - begin[key] for key in keys}
    firsts = {key: _numbered(begin[key] * info.fps) for key in keys}
    spans = {}
    for key in keys:
        where = columns, f"videos/{key}", begin[key] * info.fps, lengths
        spans[key] = _spans(root, info.video_path, *where, video_key=key)
        last = np.rint(columns[f"videos/{key}/to_timestamp"] * info.fps).astype(np.int64)
        np.maximum.at(spans[key].most, spans[key].file, last)  # a file may have as many frames as its timestamps imply
    locations = [
        EpisodeLocation(
            number=int(columns["episode_index"][at]),
            length=int(lengths[at]),
            tasks=tuple(str(task) for task in tasks[source] if task is not None),
            task=task[source],
            success=bool(success[source][0]) if success[source] else None,
            data=rows.paths[file := rows.file[at]],
            row=int(starts[at] - rows.first[file]),
            rows=int(rows.end[file] - rows.first[file]),
            videos={
                key: span.video(at, int(firsts[key][at]), float(begin[key][at]), float(seconds[key][at]))
                for key, span in spans.items()
            },
        )
        for at, source in enumerate(order.tolist())
    ]
    return _located(root, info, locations)


def _located(root: Path, info: Info, locations: list[EpisodeLocation]) -> list[EpisodeLocation]:
    """Correct the locations of episodes if a file does not have the number of rows that the metadata say.

    LeRobot's converter from v2.1 gives the first episode of some files the location of the file before (LeRobot's issue
    2401). Metadata from which episodes were removed do not count the rows of these episodes. In both cases an episode
    is located by the `episode_index` of the rows, if all rows of the episode are together in one file. Any other
    episode keeps its location, and reading it raises an error.
    """
    counts = {path: _rows_of(path) for path in dict.fromkeys(at.data for at in locations)}
    numbers = [at.number for at in locations]
    removed = numbers != list(range(len(numbers)))
    if any(counts[at.data] not in (None, at.rows) for at in locations):
        folder = root / PurePosixPath(info.data_path).parts[0]
        runs = [run for path in sorted(folder.rglob("*.parquet")) for run in _runs(root, path)]
        known: dict[int, list[tuple[int, int, Path, int, int]]] = {}
        for run in runs:
            known.setdefault(run[0], []).append(run)
        removed = removed or not known.keys() <= set(numbers)
        for place, at in enumerate(locations):
            own = known.get(at.number, [])
            if len(own) == 1 and own[0][1] == at.length:
                _, _, path, row, rows = own[0]
                locations[place] = replace(at, data=path, row=row, rows=rows)
    if removed:  # videos may have more frames after the last episode that is left
        for place, at in enumerate(locations):
            videos = {key: replace(video, frames=(video.frames[0], 2**31)) for key, video in at.videos.items()}
            locations[place] = replace(at, videos=videos)
    return locations


def _rows_of(path: Path) -> int | None:
    """Return the number of rows of a parquet file, 0 if it is missing, `None` if it is damaged."""
    try:
        return count_rows(path) if path.is_file() else 0
    except BadInputError:
        return None


def _runs(root: Path, path: Path) -> list[tuple[int, int, Path, int, int]]:
    """Return each run of rows of one episode: episode, length, file, first row, and the number of rows of the file."""
    _require_inside(root, path)
    try:
        numbers = as_matrix(path, read_table(path, ["episode_index"]), "episode_index")[:, 0]
    except (BadInputError, LookupError):
        return []
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
    lengths = np.diff(np.append(firsts, len(numbers)))
    runs = zip(numbers[firsts].tolist(), lengths.tolist(), firsts.tolist(), strict=True)
    return [(number, length, path, first, len(numbers)) for number, length, first in runs]


def _read_episodes(path: Path, wanted: list[str], fps: float) -> dict[str, Any]:
    """Read a file of `meta/episodes`; return numbers as arrays, and tasks and success as lists."""
    table = read_table(path, [*wanted, "tasks", *_TASK, _SUCCESS])
    for name in [*wanted, "tasks"]:
        sound = name in table.column_names and _is_sound(name, table[name], fps)
        require(sound, path, f"no sound column {name!r}", "the columns of LeRobot v3.0, for every episode", HINT)
    with reading(path):
        columns: dict[str, Any] = {name: as_array(table[name]) for name in wanted}
        columns["tasks"] = table["tasks"].to_pylist()
        known = _SUCCESS in table.column_names
        columns[_SUCCESS] = table[_SUCCESS].to_pylist() if known else [None] * len(table)
        columns[_SUCCESS] = [entry and as_list(entry) for entry in columns[_SUCCESS]]
        columns["task"] = [None] * len(table)
        if set(_TASK) <= set(table.column_names):
            columns["task"] = list(map(_one_task, zip(*(table[name].to_pylist() for name in _TASK), strict=True)))
    starts, ends, lengths = (columns[name] for name in ("dataset_from_index", "dataset_to_index", "length"))
    for at in np.flatnonzero((lengths < 1) | (ends - starts != lengths))[:1]:
        found = f"episode {columns['episode_index'][at]} of length {lengths[at]} in rows {starts[at]} to {ends[at]}"
        raise damaged(path, found, "a length above 0 equal to the number of rows")
    return columns


def _is_sound(name: str, column: pa.ChunkedArray, fps: float) -> bool:
    """Return whether every episode has a valid value in the column `name`."""
    kind = column.type
    if column.null_count:
        return False
    if name == "tasks":
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
    if name.endswith("timestamp"):
        return bool(pa.types.is_floating(kind) and (np.abs(as_array(column)) * fps < 2**53).all())
    return bool(pa.types.is_integer(kind) and (as_array(column) < 2**53).all() and (as_array(column) >= 0).all())


def _numbered(starts: Array) -> Array:
    """Return the number of the frame or row at each start; the number before a start that lies between two of them."""
    return np.floor(starts + BETWEEN).astype(np.int64)


@dataclass(frozen=True)
class _Spans:
    """Files shared by episodes: path, first start, last end and maximum length of each; the file of each episode."""

    paths: list[Path]
    first: Array
    end: Array
    file: Array
    most: Array

    def video(self, episode: int, first: int, start: float, seconds: float) -> VideoSpan:
        file = self.file[episode]
        return VideoSpan(self.paths[file], first, (int(self.end[file]), int(self.most[file])), start, seconds)


def _spans(
    root: Path, template: str, columns: Mapping[str, Array], prefix: str, starts: Array, lengths: Array, **fields: str
) -> _Spans:
    """Group episodes by file; the episodes of one file must not overlap, wherever a start between two rows belongs."""
    starts, latest = _numbered(starts), np.ceil(starts - BETWEEN).astype(np.int64)
    pairs = np.stack([columns[f"{prefix}/chunk_index"], columns[f"{prefix}/file_index"]], axis=1)
    unique, file = np.unique(pairs, axis=0, return_inverse=True)
    paths = [_path(root, template, chunk_index=c, file_index=f, **fields) for c, f in unique.tolist()]
    file, ends = file.reshape(-1), starts + lengths
    order = np.lexsort((starts, file))
    before, after = order[:-1], order[1:]
    for at in np.flatnonzero((file[before] == file[after]) & (latest[after] < ends[before]))[:1]:
        found = f"an episode from {latest[after[at]]}, inside another that ends at {ends[before[at]]}"
        hint = "download meta/ again, or convert the data set from v2.1 again with a newer lerobot (its issue 2401)"
        raise BadInputError(paths[file[after[at]]], found, "metadata whose episodes do not overlap", hint)
    first, end = np.full(len(paths), np.iinfo(np.int64).max), np.zeros(len(paths), np.int64)
    np.minimum.at(first, file, starts)
    np.maximum.at(end, file, ends)
    return _Spans(paths, first, end, file, end.copy())
