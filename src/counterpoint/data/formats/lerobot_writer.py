"""Write a LeRobot v3.0 data set, which `lerobot` opens as its own.

Episodes are appended to parquet files and, camera by camera, to mp4 files until a file has reached its size.
All of it is built in a temporary folder beside the target and takes the target's name when it is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Array, Episode
from counterpoint.data.formats import lerobot_layout as layout
from counterpoint.data.formats.lerobot_files import DataFiles, VideoTrack, write_tasks
from counterpoint.data.formats.lerobot_stats import PixelCounts, sampled_steps, vector_stats
from counterpoint.data.formats.lerobot_tables import as_column, as_matrix, as_png
from counterpoint.data.video import Codec, encode_video, probe_video, read_frames
from counterpoint.errors import BadInputError

__all__ = ["LeRobotWriter"]

_MB = 1024**2
_COUNTERS = ("frame_index", "episode_index", "index", "task_index")


class LeRobotWriter:
    """Writes episodes into a new folder; nothing stands there before `finalize`.

    Success is kept as the feature `next.success`, true at the last step of a successful episode, and rewards as
    `next.reward`; each is there if the first episode has it. The format has no place for masks and terminal frames.

    Args:
        root: The folder to write; it must not exist.
        fps: Frames a second, a whole number.
        cameras: Camera name -> (height, width); `top` becomes the feature `observation.images.top`.
        action_dim: A, or `None` without actions.
        state_dim: S, or `None` without proprioception.
        robot_type: Told to readers.
        info: What else is to be known (simulator, versions, seeds): JSON, under the key `counterpoint`.
        image_cameras: Cameras kept losslessly, as PNG in the parquet files, instead of as video.
        codec: How frames are encoded.
        data_files_size_in_mb: A parquet file of this size takes no further episode.
        video_files_size_in_mb: The same of an mp4 file.
        chunks_size: Files a chunk folder.

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
        robot_type: str,
        info: Mapping[str, Any] | None = None,
        image_cameras: Sequence[str] = (),
        codec: Codec = "libx264",
        data_files_size_in_mb: float = 100,
        video_files_size_in_mb: float = 200,
        chunks_size: int = 1000,
    ) -> None:
        self.root = Path(root)
        if fps != int(fps) or fps <= 0:
            raise BadInputError(
                "fps", found=f"{fps:g}", expected="a whole number above 0", mend="resample the video"
            )
        self._refuse_existing()
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(dir=self.root.parent, prefix=f".{self.root.name}.")
        self._build = Path(self._folder.name) / "dataset"
        (self._build / "meta/episodes/chunk-000").mkdir(parents=True)
        self._fps, self._cameras, self._codec = int(fps), dict(cameras), codec
        self._dims = {layout.ACTION: action_dim, layout.STATE: state_dim}
        self._images = [name for name in cameras if name in image_cameras]
        self._info = {"robot_type": robot_type, "chunks_size": chunks_size}
        self._info |= {"data_files_size_in_mb": data_files_size_in_mb}
        self._info |= {"video_files_size_in_mb": video_files_size_in_mb, "counterpoint": dict(info or {})}
        self._tracks = {
            name: VideoTrack(self._build, _key(name), self._fps, video_files_size_in_mb * _MB, chunks_size)
            for name in cameras
            if name not in self._images
        }
        self._data = DataFiles(self._build, data_files_size_in_mb * _MB, chunks_size)
        self._pixels = {name: PixelCounts() for name in cameras}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._frames = 0
        self._told: dict[str, bool] = {}

    def add_episode(self, episode: Episode, videos: Mapping[str, Path] | None = None) -> None:
        """Append one episode.

        Args:
            episode: With frames of every camera that is not in `videos`.
            videos: Camera name -> the episode's frames already encoded, T of them; copied, not encoded again.

        Raises:
            BadInputError: When the episode does not fit what the writer was made for.
        """
        videos = videos or {}
        self._check(episode, videos)
        number, length = len(self._episodes), len(episode)
        meta: dict[str, Any] = {"episode_index": number, "tasks": [episode.instruction], "length": length}
        columns = self._columns(episode)
        table = {name: as_column(values) for name, values in columns.items()}
        stats = {name: vector_stats(values) for name, values in columns.items()}
        picked = sampled_steps(length)
        for name in self._cameras:
            pixels = PixelCounts()
            pixels.add(read_frames(videos[name], picked) if name in videos else episode.frames[name][picked])
            self._pixels[name].merge(pixels)
            stats[_key(name)] = pixels.stats()
            if name in self._images:
                table[_key(name)] = as_png(episode.frames[name])
        place = self._data.append(pa.table(table, metadata=self._hub_metadata(columns)))
        meta |= {"data/chunk_index": place[0], "data/file_index": place[1]}
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
        """Complete the data set and give it its name.

        Args:
            splits: Split name -> "a:b", episodes a to b-1; by default all are "train".

        Raises:
            BadInputError: When there is no episode, a split is malformed, or the folder exists by now.
        """
        total = len(self._episodes)
        if total == 0:
            raise BadInputError(
                self.root, found="no episode", expected="at least one", mend="call add_episode first"
            )
        splits = dict(splits or {"train": f"0:{total}"})
        for name, text in splits.items():
            _check_split(name, text, total)
        self._refuse_existing()
        self._data.close()
        for track in self._tracks.values():
            track.close()
        pq.write_table(
            pa.Table.from_pylist(self._episodes), self._build / "meta/episodes/chunk-000/file-000.parquet"
        )
        write_tasks(self._build / "meta/tasks.parquet", self._tasks)
        self._write_json("stats.json", self._stats())
        sizes = {"total_episodes": total, "total_frames": self._frames, "total_tasks": len(self._tasks)}
        info = {"codebase_version": "v3.0", **sizes, "fps": self._fps, "splits": splits}
        info |= {"data_path": layout.DATA_PATH, "video_path": layout.VIDEO_PATH if self._tracks else None}
        self._write_json("info.json", {**info, **self._info, "features": self._features()})
        shutil.rmtree(self._build / "parts", ignore_errors=True)
        self._build.rename(self.root)
        self._folder.cleanup()

    def _refuse_existing(self) -> None:
        if self.root.exists():
            raise BadInputError(
                self.root,
                found="an existing path",
                expected="a new folder",
                mend="give another name, or remove it",
            )

    def _check(self, episode: Episode, videos: Mapping[str, Path]) -> None:
        where = f"episode {len(self._episodes)}"
        length = len(episode)
        _expect(f"{where}, videos", sorted(videos.keys() - self._tracks.keys()), [], "video cameras only")
        for name, size in self._cameras.items():
            if name in videos:
                info = probe_video(videos[name])
                _expect(
                    videos[name], (info.frames, info.height, info.width), (length, *size), "(frames, H, W)"
                )
            elif name in episode.frames:
                _expect(f"{where}, camera {name!r}", episode.frames[name].shape[1:3], tuple(size), "(H, W)")
            else:
                _expect(where, f"cameras {sorted(episode.frames)}", f"a camera {name!r}", "cameras")
        for key, values in ((layout.ACTION, episode.actions), (layout.STATE, episode.state)):
            _expect(
                f"{where}, {key}", None if values is None else values.shape[1], self._dims[key], "dimensions"
            )
        steps = np.diff(episode.timestamps)
        if len(steps) and np.abs(steps - 1 / self._fps).max() > layout.TOLERANCE:
            step = float(steps[np.abs(steps - 1 / self._fps).argmax()])
            expected = f"1/{self._fps} s within {layout.TOLERANCE}"
            raise BadInputError(
                where, found=f"a step of {step:.6f} s", expected=expected, mend="resample the episode"
            )
        told = {"success": episode.success is not None, "rewards": episode.rewards is not None}
        self._told = self._told or told
        for what, known in told.items():
            _expect(f"{where}, {what}", known, self._told[what], "known, as in episode 0")

    def _columns(self, episode: Episode) -> dict[str, Array]:
        """Feature -> [T, n]: everything but pictures."""
        length = len(episode)
        columns = {layout.ACTION: episode.actions, layout.STATE: episode.state}
        values = {name: column for name, column in columns.items() if column is not None}
        if self._told["success"]:
            success = np.zeros((length, 1), dtype=np.bool_)
            success[-1] = bool(episode.success)
            values[layout.SUCCESS] = success
        if episode.rewards is not None:
            values[layout.REWARD] = episode.rewards[:, None]
        steps = np.arange(length, dtype=np.int64)[:, None]
        task = self._tasks.setdefault(episode.instruction, len(self._tasks))
        numbers = (
            steps,
            np.full_like(steps, len(self._episodes)),
            steps + self._frames,
            np.full_like(steps, task),
        )
        times = (steps / self._fps).astype(np.float32)
        return values | {"timestamp": times} | dict(zip(_COUNTERS, numbers, strict=True))

    def _hub_metadata(self, columns: Mapping[str, Array]) -> dict[str, str]:
        """What tells the Hub's viewer and `datasets` that a struct of bytes is a picture."""
        features: dict[str, Any] = {_key(name): {"_type": "Image"} for name in self._images}
        for name, values in columns.items():
            value = {"dtype": values.dtype.name, "_type": "Value"}
            width = values.shape[1]
            features[name] = value if width == 1 else {"feature": value, "length": width, "_type": "Sequence"}
        return {"huggingface": json.dumps({"info": {"features": features}})}

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, (height, width) in self._cameras.items():
            entry = {"shape": [height, width, 3], "names": ["height", "width", "channels"]}
            if name in self._images:
                features[_key(name)] = {"dtype": "image", **entry}
            else:
                features[_key(name)] = {"dtype": "video", **entry, "info": self._tracks[name].describe()}
        vectors = [("float32", name, dim) for name, dim in self._dims.items() if dim is not None]
        vectors += [("bool", layout.SUCCESS, 1)] if self._told["success"] else []
        vectors += [("float32", layout.REWARD, 1)] if self._told["rewards"] else []
        vectors += [("float32", "timestamp", 1)] + [("int64", name, 1) for name in _COUNTERS]
        return features | {
            name: {"dtype": kind, "shape": [dim], "names": None} for kind, name, dim in vectors
        }

    def _stats(self) -> dict[str, Any]:
        """Statistics of the whole data set, exact: one column after the other is read back."""
        stats: dict[str, Any] = {_key(name): pixels.stats() for name, pixels in self._pixels.items()}
        for name in [name for name in self._features() if name not in stats]:  # in the same order every time
            parts = [as_matrix(path, pq.read_table(path, columns=[name]), name) for path in self._data.paths]
            stats[name] = vector_stats(np.concatenate(parts))
        return stats

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=4, ensure_ascii=False)
        (self._build / "meta" / name).write_text(text + "\n", encoding="utf-8")


def _key(camera: str) -> str:
    return camera if camera.startswith("observation.") else layout.IMAGES + camera


def _expect(where: str | Path, found: object, expected: object, what: str) -> None:
    if found != expected:
        raise BadInputError(
            where,
            found=f"{found} ({what})",
            expected=f"{expected}",
            mend="give every episode what the writer was made for",
        )


def _check_split(name: str, text: str, total: int) -> None:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= total):
        raise BadInputError(
            f"split {name!r}",
            found=repr(text),
            expected=f'"a:b" with a <= b <= {total}',
            mend="correct the split",
        )
