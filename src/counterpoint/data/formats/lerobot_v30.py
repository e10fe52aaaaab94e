"""Find the episodes of a LeRobot v3.0 data set: `meta/episodes` says in which shared files each lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoint.data.formats.lerobot_layout import (
    SUCCESS,
    EpisodePlace,
    Info,
    VideoPlace,
    damaged,
    located,
    one_instruction,
)
from counterpoint.data.formats.lerobot_tables import read_table, reading

__all__ = ["places_v30"]

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
    return [
        VideoPlace(path, start, (spans[path][1], most[path]))
        for path, start in zip(files, starts, strict=True)
    ]


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
