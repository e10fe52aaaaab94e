"""The growing files of a LeRobot v3.0 data set: parquet and mp4 files take episodes until they are full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.formats import lerobot_layout as layout
from counterpoint.data.video import remux

__all__ = ["DataFiles", "VideoTrack", "write_tasks"]


class DataFiles:
    """The parquet files under `data/`, one row group an episode.

    Args:
        folder: The data set's folder.
        limit: A file of this many bytes takes no further episode.
        chunk: Files a chunk folder.
    """

    def __init__(self, folder: Path, limit: float, chunk: int) -> None:
        self._folder, self._limit, self._chunk = folder, limit, chunk
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self.paths: list[Path] = []

    def append(self, rows: pa.Table) -> tuple[int, int]:
        """Write an episode; returns the chunk and file it went to."""
        if self._writer is None:
            place = divmod(len(self.paths), self._chunk)
            path = self._folder / layout.DATA_PATH.format(chunk_index=place[0], file_index=place[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            self.paths.append(path)
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pq.ParquetWriter(self._sink, rows.schema)
        self._writer.write_table(rows)
        chunk, file = divmod(len(self.paths) - 1, self._chunk)
        if self._sink is not None and self._sink.tell() >= self._limit:
            self.close()
        return chunk, file

    def close(self) -> None:
        """Complete the open file."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        self._writer = self._sink = None


class VideoTrack:
    """The mp4 files of one camera.

    Args:
        folder: The data set's folder.
        key: The camera's feature key.
        fps: Frames a second.
        limit: A file of this many bytes takes no further episode.
        chunk: Files a chunk folder.
    """

    def __init__(self, folder: Path, key: str, fps: int, limit: float, chunk: int) -> None:
        self._folder, self._key, self._fps, self._limit, self._chunk = folder, key, fps, limit, chunk
        self._parts: list[Path] = []
        self._bytes = self._frames = self._file = 0
        self._staging = folder / "parts" / key
        self._staging.mkdir(parents=True)

    def new_part(self, episode: int) -> Path:
        """Where to put an episode's own mp4 file before `append`."""
        return self._staging / f"episode-{episode:06d}.mp4"

    def append(self, part: Path, length: int) -> dict[str, Any]:
        """Take an episode's file of `length` frames; returns its place as columns of `meta/episodes`."""
        chunk, file = divmod(self._file, self._chunk)
        start, end = self._frames / self._fps, (self._frames + length) / self._fps
        self._parts.append(part)
        self._bytes += part.stat().st_size
        self._frames += length
        if self._bytes >= self._limit:
            self.close()
        place = {"chunk_index": chunk, "file_index": file, "from_timestamp": start, "to_timestamp": end}
        return {f"videos/{self._key}/{name}": value for name, value in place.items()}

    def close(self) -> None:
        """Concatenate what has gathered into the next file."""
        if self._parts:
            remux(self._parts, self._path(self._file))
            for part in self._parts:
                part.unlink()
            self._file += 1
        self._parts = []
        self._bytes = self._frames = 0

    def describe(self) -> dict[str, Any]:
        """The feature's `info` in `meta/info.json`, read from the first file."""
        with av.open(str(self._path(0))) as container:
            stream = container.streams.video[0]
            return {
                "video.height": stream.height,
                "video.width": stream.width,
                "video.codec": stream.codec_context.codec.canonical_name,
                "video.pix_fmt": stream.codec_context.pix_fmt,
                "video.is_depth_map": False,
                "video.fps": self._fps,
                "video.channels": 3,
                "has_audio": False,
            }

    def _path(self, number: int) -> Path:
        chunk, file = divmod(number, self._chunk)
        name = layout.VIDEO_PATH.format(video_key=self._key, chunk_index=chunk, file_index=file)
        return self._folder / name


def write_tasks(path: Path, tasks: Mapping[str, int]) -> None:
    """`meta/tasks.parquet` as pandas writes a frame whose index is named "task"."""
    table = pa.table(
        {"task_index": pa.array(tasks.values(), pa.int64()), "task": pa.array(tasks, pa.string())}
    )
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, (kind, numpy) in kinds.items()
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
