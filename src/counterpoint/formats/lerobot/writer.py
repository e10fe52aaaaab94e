"""Write a LeRobot v3.0 data set, which `lerobot` opens like any other.

Episodes are appended to parquet files and, for each camera, to mp4 files; a new file begins once a file has reached its
size limit. The data set is built in a temporary folder next to the target and renamed when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Array, Episode, Segment, task_of
from counterpoint.errors import BadInputError, require
from counterpoint.files import Beside
from counterpoint.formats.base import Column, require_new
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.clock import TOLERANCE
from counterpoint.formats.lerobot.statistics import PixelCounts, sampled_steps, vector_stats
from counterpoint.formats.lerobot.tables import CHECKED, UNITS, as_column, as_depth, as_matrix, as_png, read_table
from counterpoint.formats.video import Codec, encode_video, probe_video, read_frames, remux


class _DataFiles:
    """The parquet files under `data/`, one row group per episode; a file that has reached `limit` bytes is complete."""

    def __init__(self, folder: Path, limit: float, chunk: int) -> None:
        self._folder, self._limit, self._chunk = folder, limit, chunk
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self.paths: list[Path] = []

    def append(self, rows: pa.Table) -> tuple[int, int]:
        """Write an episode; return the numbers of its chunk and file."""
        if self._writer is None:
            chunk, file = divmod(len(self.paths), self._chunk)
            path = self._folder / layout.DATA_PATH.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.paths.append(path)
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pq.ParquetWriter(self._sink, rows.schema, **CHECKED)
        self._writer.write_table(rows)
        if self._sink is not None and self._sink.tell() >= self._limit:
            self.close()
        return divmod(len(self.paths) - 1, self._chunk)

    def close(self) -> None:
        """Complete the open file."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        self._writer = self._sink = None


class _VideoTrack:
    """The mp4 files of one camera, the feature `key`; a file that has reached `limit` bytes is complete."""

    def __init__(self, folder: Path, key: str, fps: int, limit: float, chunk: int) -> None:
        self._folder, self._key, self._fps, self._limit, self._chunk = folder, key, fps, limit, chunk
        self._parts: list[Path] = []
        self._bytes = self._frames = self._file = 0
        self._staging = folder / "parts" / key
        self._staging.mkdir(parents=True)

    def new_part(self, episode: int) -> Path:
        """Return the path of an episode's own mp4 file, to be written before `append`."""
        return self._staging / f"episode-{episode:06d}.mp4"

    def append(self, part: Path, length: int) -> dict[str, Any]:
        """Add an episode's file of `length` frames; return its location as columns of `meta/episodes`."""
        chunk, file = divmod(self._file, self._chunk)
        start, end = self._frames / self._fps, (self._frames + length) / self._fps
        self._parts.append(part)
        self._bytes += part.stat().st_size
        self._frames += length
        if self._bytes >= self._limit:
            self.close()
        location = {"chunk_index": chunk, "file_index": file, "from_timestamp": start, "to_timestamp": end}
        return {f"videos/{self._key}/{name}": value for name, value in location.items()}

    def close(self) -> None:
        """Join the gathered parts into the next file."""
        if self._parts:
            remux(self._parts, self._path(self._file))
            for part in self._parts:
                part.unlink()
            self._file += 1
        self._parts = []
        self._bytes = self._frames = 0

    def describe(self) -> dict[str, Any]:
        """Return the feature's `info` in `meta/info.json`, read from the first file."""
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
        return self._folder / layout.VIDEO_PATH.format(video_key=self._key, chunk_index=chunk, file_index=file)


def _write_tasks(path: Path, tasks: Mapping[str, int], name: str) -> None:
    """Write the numbers of tasks or subtasks as pandas writes a data frame whose index, the texts, is named `name`."""
    index = f"{name}_index"
    table = pa.table({index: pa.array(tasks.values(), pa.int64()), name: pa.array(tasks, pa.string())})
    kinds = {index: ("int64", "int64"), name: ("unicode", "object")}
    columns = [
        {"name": column, "field_name": column, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for column, (kind, numpy) in kinds.items()
    ]
    pandas = {"index_columns": [name], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path, **CHECKED)


_MB = 1024**2


def _makes_up(episode: Episode) -> bool:
    """Return whether the segments' tasks together are the episode's task."""
    return bool(episode.segments) and task_of(episode.segments) == episode.instruction


def _tasks(episode: Episode) -> list[str]:
    """Return the tasks of an episode, as its metadata list them."""
    return list(dict.fromkeys(words for _, words in episode.segments)) if _makes_up(episode) else [episode.instruction]


def _numbered(known: dict[str, int], segments: Sequence[Segment], steps: Array) -> Array:
    """Return the number of the words at each step [T, 1], as int64 [T, 1]; new words get the next number."""
    numbers = np.array([known.setdefault(words, len(known)) for _, words in segments], np.int64)
    return numbers[np.searchsorted([first for first, _ in segments], steps, side="right") - 1]


def _vectors(episode: Episode) -> dict[str, Array | None]:
    return {layout.ACTION: episode.actions, layout.STATE: episode.state, layout.ENVIRONMENT: episode.environment_state}


class LeRobotWriter:
    """A writer of episodes into a new folder, which appears only after `finalize`.

    Success is kept as the feature `next.success`, true at the last step of a successful episode, and rewards as
    `next.reward`; each exists if the first episode has it. Segments that make up the episode's task are kept as the
    rows' `task_index`, any others as `subtask_index`. The format has no room for masks and terminal frames.

    Args:
        root: The folder to write; it must not exist.
        fps: Frames a second, a whole number.
        cameras: (height, width) of each camera by its name; `top` becomes the feature `observation.images.top`.
        action_dim: A, or `None` without actions.
        state_dim: S, or `None` without proprioception.
        environment_dim: E, or `None` without a state of the surroundings.
        depth: (height, width) of each depth camera. Depth is kept losslessly in the parquet files: millimetres as PNG
            of 16 bits, metres as TIFF of float32.
        columns: Further columns by name; a column named like one of an `Episode`, such as `action`, replaces that one.
        robot_type: The robot's name, for people who read the metadata.
        info: Further notes (simulator, versions, seeds) as JSON values, stored under the key `counterpoint`.
        image_cameras: Cameras kept losslessly, as PNG in the parquet files, instead of as video.
        subtasks: Write `subtask_index` and `meta/subtasks.parquet`, for segments that do not make up the task.
        codec: The video codec.
        data_files_size_in_mb: A parquet file that has reached this size takes no further episode.
        video_files_size_in_mb: An mp4 file that has reached this size takes no further episode.
        chunks_size: Number of files per chunk folder.

    Raises:
        BadInputError: When the folder exists or fps is no whole number.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        fps: float,
        cameras: Mapping[str, tuple[int, int]],
        action_dim: int | None,
        state_dim: int | None,
        environment_dim: int | None = None,
        depth: Mapping[str, tuple[int, int]] | None = None,
        columns: Mapping[str, Column] | None = None,
        robot_type: str,
        info: Mapping[str, Any] | None = None,
        image_cameras: Sequence[str] = (),
        subtasks: bool = False,
        codec: Codec = "libx264",
        data_files_size_in_mb: float = 100,
        video_files_size_in_mb: float = 200,
        chunks_size: int = 1000,
    ) -> None:
        self.root = Path(root)
        require(fps == int(fps) and fps > 0, "fps", f"{fps:g}", "a whole number above 0", "resample the video")
        require_new(self.root)
        self._folder = Beside(self.root)
        self._build = Path(self._folder.name) / "dataset"
        (self._build / "meta/episodes/chunk-000").mkdir(parents=True)
        self._fps, self._cameras, self._codec = int(fps), dict(cameras), codec
        self._dims = {layout.ACTION: action_dim, layout.STATE: state_dim, layout.ENVIRONMENT: environment_dim}
        self._depth, self._more, self._units = dict(depth or {}), dict(columns or {}), dict[str, str]()
        self._images = [name for name in cameras if name in image_cameras]
        sizes = {"data_files_size_in_mb": data_files_size_in_mb, "video_files_size_in_mb": video_files_size_in_mb}
        about = {"counterpoint": dict(info or {})}
        self._info = {"robot_type": robot_type, "chunks_size": chunks_size, **sizes, **about}
        self._tracks = {
            name: _VideoTrack(self._build, _key(name), self._fps, video_files_size_in_mb * _MB, chunks_size)
            for name in cameras
            if name not in self._images
        }
        self._data = _DataFiles(self._build, data_files_size_in_mb * _MB, chunks_size)
        self._pixels = {name: PixelCounts() for name in cameras}
        self._tasks: dict[str, int] = {}
        self._subtasks: dict[str, int] | None = {} if subtasks else None
        self._episodes: list[dict[str, Any]] = []
        self._frames = 0
        self._known: dict[str, bool] = {}

    def add_episode(
        self, episode: Episode, videos: Mapping[str, Path] | None = None, columns: Mapping[str, Array] | None = None
    ) -> None:
        """Append one episode.

        Args:
            episode: An episode with frames of every camera that is not in `videos`.
            videos: Already encoded files with the episode's T frames, by camera name; they are copied without
                re-encoding.
            columns: Values [T, *shape] of the further columns that the writer was made for; texts as objects.

        Raises:
            BadInputError: When the episode's parts or shapes differ from those that the writer was made for.
        """
        videos = videos or {}
        self._check(episode, videos)
        number, length = len(self._episodes), len(episode)
        meta: dict[str, Any] = {"episode_index": number, "tasks": _tasks(episode), "length": length}
        more = dict(columns or {})
        wanted = {name: (length, *(column.shape or (1,))) for name, column in self._more.items()}
        _expect(f"episode {number}", {name: values.shape for name, values in more.items()}, wanted, "columns")
        values = self._columns(episode) | more
        table = {name: as_column(each) for name, each in values.items()}
        stats = {name: vector_stats(each) for name, each in values.items() if each.dtype != object}
        picked = sampled_steps(length)
        for name in self._cameras:
            pixels = PixelCounts()
            pixels.add(read_frames(videos[name], picked) if name in videos else episode.frames[name][picked])
            self._pixels[name].merge(pixels)
            stats[_key(name)] = pixels.stats()
            if name in self._images:
                table[_key(name)] = as_png(episode.frames[name])
        table |= {_key(name): as_depth(episode.depth[name]) for name in self._depth}
        chunk, file = self._data.append(pa.table(table, metadata=self._hub_metadata(values)))
        meta |= {"data/chunk_index": chunk, "data/file_index": file}
        meta |= {"dataset_from_index": self._frames, "dataset_to_index": self._frames + length}
        for name, track in self._tracks.items():
            part = track.new_part(number)
            if name in videos:
                shutil.copyfile(videos[name], part)
            else:
                encode_video(part, episode.frames[name], self._fps, codec=self._codec)
            meta |= track.append(part, length)
        for name, entry in stats.items():
            meta |= {f"stats/{name}/{kind}": value for kind, value in entry.items()}
        meta |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._episodes.append(meta)
        self._frames += length

    def finalize(self, splits: Mapping[str, str] | None = None) -> None:
        """Complete the data set and move it to its path.

        Args:
            splits: The episodes of each split as "a:b", a to b-1; by default all are "train".

        Raises:
            BadInputError: When there is no episode, a split is malformed, or the folder exists by now.
        """
        total = len(self._episodes)
        require(total > 0, self.root, "no episode", "at least one", "call add_episode first")
        splits = dict(splits or {"train": f"0:{total}"})
        for name, text in splits.items():
            first, _, last = text.partition(":")
            good = first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= total
            require(good, f"split {name!r}", repr(text), f'"a:b" with a <= b <= {total}', "correct the split")
        require_new(self.root)
        self._data.close()
        for track in self._tracks.values():
            track.close()
        table = pa.Table.from_pylist(self._episodes)
        pq.write_table(table, self._build / "meta/episodes/chunk-000/file-000.parquet", **CHECKED)
        _write_tasks(self._build / layout.TASKS, self._tasks, "task")
        if self._subtasks is not None:
            _write_tasks(self._build / layout.SUBTASKS, self._subtasks, "subtask")
        self._write_json("stats.json", self._stats())
        sizes = {"total_episodes": total, "total_frames": self._frames, "total_tasks": len(self._tasks)}
        info = {"codebase_version": "v3.0", **sizes, "fps": self._fps, "splits": splits}
        info |= {"data_path": layout.DATA_PATH, "video_path": layout.VIDEO_PATH if self._tracks else None}
        self._write_json("info.json", {**info, **self._info, "features": self._features()})
        shutil.rmtree(self._build / "parts", ignore_errors=True)
        self._build.rename(self.root)
        self._folder.cleanup()

    def _check(self, episode: Episode, videos: Mapping[str, Path]) -> None:
        where, length = f"episode {len(self._episodes)}", len(episode)
        _expect(f"{where}, videos", sorted(videos.keys() - self._tracks.keys()), [], "video cameras only")
        for name, size in self._cameras.items():
            if name in videos:
                info = probe_video(videos[name])
                _expect(videos[name], (info.frames, info.height, info.width), (length, *size), "(frames, H, W)")
            elif name in episode.frames:
                _expect(f"{where}, camera {name!r}", episode.frames[name].shape[1:3], tuple(size), "(H, W)")
            else:
                _expect(where, f"cameras {sorted(episode.frames)}", f"a camera {name!r}", "cameras")
        _expect(where, sorted(episode.depth), sorted(self._depth), "depth cameras")
        for name, images in episode.depth.items():
            unit = self._units.setdefault(name, "mm" if images.dtype == np.uint16 else "m")
            form = (*self._depth[name], np.dtype(UNITS[unit]))
            _expect(f"{where}, depth camera {name!r}", (*images.shape[1:], images.dtype), form, "(H, W, dtype)")
        for key, values in _vectors(episode).items():
            _expect(f"{where}, {key}", None if values is None else values.shape[1], self._dims[key], "dimensions")
        steps = np.diff(episode.timestamps)
        off = np.abs(steps - 1 / self._fps)
        if len(steps) and off.max() > TOLERANCE:
            found, expected = f"a step of {steps[off.argmax()]:.6f} s", f"1/{self._fps} s within {TOLERANCE}"
            raise BadInputError(where, found, expected, "resample the episode")
        known = {"success": episode.success is not None, "rewards": episode.rewards is not None}
        self._known = self._known or known
        for part, there in known.items():
            _expect(f"{where}, {part}", there, self._known[part], "known, as in episode 0")

    def _columns(self, episode: Episode) -> dict[str, Array]:
        """Return the values of each feature except images, [T, n]."""
        steps = np.arange(len(episode), dtype=np.int64)[:, None]
        success = None if episode.success is None else (steps == steps[-1]) & episode.success
        rewards = None if episode.rewards is None else episode.rewards[:, None]
        columns = _vectors(episode) | {
            layout.SUCCESS: success,
            layout.REWARD: rewards,
            "timestamp": (steps / self._fps).astype(np.float32),
        }
        whole = ((0, episode.instruction),)
        task = _numbered(self._tasks, episode.segments if _makes_up(episode) else whole, steps)
        numbers = (steps, np.full_like(steps, len(self._episodes)), steps + self._frames, task)
        columns |= zip(layout.COUNTERS, numbers, strict=True)
        if self._subtasks is not None:
            columns[layout.SUBTASK] = _numbered(self._subtasks, episode.segments or whole, steps)
        return {name: column for name, column in columns.items() if column is not None}

    def _hub_metadata(self, columns: Mapping[str, Array]) -> dict[str, str]:
        """Return the metadata with which the Hub's viewer and `datasets` show a struct of bytes as an image."""
        features: dict[str, Any] = {_key(name): {"_type": "Image"} for name in (*self._images, *self._depth)}
        for name, values in columns.items():
            value: dict[str, Any] = {
                "dtype": "string" if values.dtype == object else values.dtype.name,
                "_type": "Value",
            }
            for length in reversed(values.shape[1:] if values.shape[1:] != (1,) else ()):
                value = {"feature": value, "length": length, "_type": "Sequence"}
            features[name] = value
        return {"huggingface": json.dumps({"info": {"features": features}})}

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, (height, width) in self._cameras.items():
            entry = {"shape": [height, width, 3], "names": ["height", "width", "channels"]}
            if name in self._images:
                features[_key(name)] = {"dtype": "image", **entry}
            else:
                features[_key(name)] = {"dtype": "video", **entry, "info": self._tracks[name].describe()}
        for name, size in self._depth.items():
            about = {"is_depth_map": True, "depth_unit": self._units[name]}
            entry = {"shape": [*size, 1], "names": ["height", "width", "channels"], "info": about}
            features[_key(name)] = {"dtype": "image", **entry}
        vectors = [("float32", name, dim) for name, dim in self._dims.items() if dim is not None]
        vectors += [("bool", layout.SUCCESS, 1)] if self._known["success"] else []
        vectors += [("float32", layout.REWARD, 1)] if self._known["rewards"] else []
        vectors += [("float32", "timestamp", 1)] + [("int64", name, 1) for name in layout.COUNTERS]
        vectors += [("int64", layout.SUBTASK, 1)] if self._subtasks is not None else []
        features |= {name: {"dtype": kind, "shape": [dim], "names": None} for kind, name, dim in vectors}
        return features | {
            name: {"dtype": column.dtype, "shape": list(column.shape or (1,)), "names": None, **column.notes}
            for name, column in self._more.items()
        }

    def _stats(self) -> dict[str, Any]:
        """Return exact statistics of the whole data set; the columns are read back one after another.

        Depth and texts have no statistics.
        """
        stats: dict[str, Any] = {_key(name): pixels.stats() for name, pixels in self._pixels.items()}
        for name, entry in self._features().items():  # in the same order every time
            if name not in stats and entry["dtype"] not in ("image", "string"):
                parts = [as_matrix(path, read_table(path, [name]), name) for path in self._data.paths]
                stats[name] = vector_stats(np.concatenate(parts).reshape(-1, *entry["shape"]))
        return stats

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=4, ensure_ascii=False)
        (self._build / "meta" / name).write_text(text + "\n", encoding="utf-8")


def _key(camera: str) -> str:
    return camera if camera.startswith("observation.") else layout.IMAGES + camera


def _expect(where: str | Path, found: object, expected: object, name: str) -> None:
    require(found == expected, where, f"{found} ({name})", str(expected), "write episodes alike, as the writer says")
