"""Read LeRobot data sets, v3.0 and v2.1, without `lerobot`.

Frames are addressed by their number inside the video file, never by time: the first frame of an episode
is number round(from_timestamp * fps), and step t is t frames further on. Every read compares what the files
hold with what the metadata say.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.lerobot import layout
from counterpoint.data.formats.lerobot.layout import EpisodePlace, places_v21, places_v30
from counterpoint.data.formats.lerobot.tables import as_matrix, count_rows, damaged, file_key, from_png, read_rows
from counterpoint.data.memory import LRUCache
from counterpoint.data.store import EpisodeStore
from counterpoint.data.video import probe_video, read_frames
from counterpoint.errors import BadInputError

__all__ = ["LeRobotStore"]

_vectors: LRUCache[Array] = LRUCache(limit=64 * 1024**2)
"""Actions, states and rewards of the episodes read last, by all stores of this process together."""


class LeRobotStore(EpisodeStore):
    """An `EpisodeStore` over a LeRobot folder; nothing is decoded before it is asked for.

    An episode counts as a success when `next.success` is true at any of its steps. Features this library
    has no use for are left alone.

    Args:
        root: The data set's folder.
        split: A split of `meta/info.json`, such as "train"; by default every episode.

    Raises:
        BadInputError: When metadata are missing, malformed or of an unknown version, a path leaves the
            folder, a file is missing, or there is no such split.
    """

    def __init__(self, root: str | Path, *, split: str | None = None) -> None:
        self.root = Path(root)
        self.info = layout.read_info(self.root)
        places = (places_v21 if self.info.version[0] == 2 else places_v30)(self.root, self.info)
        if [place.number for place in places] != list(range(self.info.episodes)):
            found = f"{len(places)} episodes, numbered {[p.number for p in places[:3]]} ..."
            expected = f"{self.info.episodes}, numbered from 0, as {layout.INFO} says"
            raise damaged(self.root / "meta", found, expected)
        first, last = self._range(split)
        self._places = tuple(places[first:last])
        for path in self._files():
            if not path.is_file():
                raise damaged(path, "no such file", "a file that the metadata name")
        self._keys = self.info.cameras
        self.cameras = tuple(self._keys)
        self.episodes = tuple(
            EpisodeInfo(place.length, place.instruction, self.info.fps, self._success(place)) for place in self._places
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the metadata's content and name, size and time of change of every other file."""
        digest = hashlib.sha256(repr([place.number for place in self._places]).encode())
        for path in sorted(p for p in (self.root / "meta").rglob("*") if p.is_file()):
            digest.update(path.relative_to(self.root).as_posix().encode() + path.read_bytes())
        for path in self._files():
            status = path.stat()
            digest.update(f"{path.relative_to(self.root)}|{status.st_size}|{status.st_mtime_ns}|".encode())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3] at the N step `indices`; `camera` is a short name or a whole feature key.

        Raises:
            BadInputError: When there is no such camera or step, or the file is not what the metadata say.
        """
        place, key = self._places[episode], self._camera_key(camera)
        steps = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(steps) and not (steps.min() >= 0 and steps.max() < place.length):
            raise BadInputError(
                f"{self.root}, episode {place.number}",
                f"a request for steps {steps.min()} to {steps.max()}",
                f"steps from 0 to {place.length - 1}",
                "ask for steps of the episode",
            )
        if key in place.videos:
            video = place.videos[key]
            count = probe_video(video.path).frames
            if not video.frames[0] <= count <= video.frames[1]:
                raise damaged(video.path, f"{count} frames", f"{video.frames[0]}, as the metadata say")
            return read_frames(video.path, video.first + steps)
        wanted, where = np.unique(steps, return_inverse=True)
        if len(wanted) == 0:
            wanted = np.zeros(1, dtype=np.int64)
        start = int(wanted[0])
        column = self._rows(place, [key], start, int(wanted[-1]) + 1 - start)[key]
        pictures = from_png(place.data, column.take(pa.array(wanted - start)))
        if len({picture.shape for picture in pictures}) > 1:
            raise damaged(place.data, f"pictures of several sizes in {key!r}", "one size a camera")
        return np.stack(pictures)[where]

    def timestamps(self, episode: int) -> Array:
        """float64 [T], frame_index / fps.

        Raises:
            BadInputError: When the stored timestamps do not step by 1/fps within 1e-4 s.
        """
        place, fps = self._places[episode], self.info.fps
        stored = self._checked(place)["timestamp"][:, 0].astype(np.float64)
        off = np.abs(np.diff(stored) - 1 / fps)
        rounding = 2 * float(np.finfo(np.float32).eps) * float(np.abs(stored).max())
        if len(off) and not off.max() <= layout.TOLERANCE + rounding:
            raise BadInputError(
                place.data,
                f"a step of {np.diff(stored)[off.argmax()]:.6f} s in episode {place.number}",
                f"1/{fps:g} s within {layout.TOLERANCE} s",
                "write timestamp as frame_index / fps",
            )
        times: Array = np.arange(place.length) / fps
        return times

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None` without the feature `action`."""
        return self._vectors(self._places[episode], layout.ACTION)

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None` without the feature `observation.state`."""
        return self._vectors(self._places[episode], layout.STATE)

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None` without the feature `next.reward`."""
        place = self._places[episode]
        rewards = self._vectors(place, layout.REWARD)
        if rewards is not None and rewards.shape[1] != 1:
            raise damaged(place.data, f"{layout.REWARD!r} of {rewards.shape[1]} numbers a step", "one")
        return None if rewards is None else rewards[:, 0]

    def _vectors(self, place: EpisodePlace, name: str) -> Array | None:
        if name not in self.info.features:
            return None
        key = (file_key(place.data), place.number, name)
        return _vectors.get(key, lambda: self._read_vectors(place, name)).copy()

    def _read_vectors(self, place: EpisodePlace, name: str) -> tuple[Array, int]:
        values = self._checked(place, name)[name].astype(np.float32)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            found = f"a value that is not finite in {name!r}, episode {place.number}, step {bad[0][0]}"
            raise BadInputError(place.data, found, "finite numbers", "drop or repair the episode")
        return values, values.nbytes

    def _checked(self, place: EpisodePlace, *wanted: str) -> dict[str, Array]:
        """The episode's numbers, column by column, once the rows prove to be its own."""
        known = [name for name in (layout.ACTION, layout.STATE) if name in self.info.features]
        names = list(dict.fromkeys([*wanted, *known]))
        table = self._rows(place, [*names, "timestamp", "frame_index", "episode_index"], 0, place.length)
        columns = {name: as_matrix(place.data, table, name) for name in table.column_names}
        own = (columns["episode_index"] == place.number).all()
        if not own or (columns["frame_index"][:, 0] != np.arange(place.length)).any():
            found = f"other rows where episode {place.number} should be"
            raise damaged(place.data, found, f"{place.length} rows from row {place.row}, as the metadata say")
        return columns

    def _rows(self, place: EpisodePlace, names: list[str], first: int, count: int) -> pa.Table:
        rows = count_rows(place.data)
        if rows != place.rows:
            raise damaged(place.data, f"{rows} rows", f"{place.rows}, as the metadata say")
        return read_rows(place.data, place.row + first, count, names)

    def _success(self, place: EpisodePlace) -> bool | None:
        if place.success is not None or layout.SUCCESS not in self.info.features:
            return place.success
        rows = self._rows(place, [layout.SUCCESS], 0, place.length)
        return bool(as_matrix(place.data, rows, layout.SUCCESS).any())

    def _camera_key(self, camera: str | None) -> str:
        name = camera if camera is not None else next(iter(self._keys), "")
        if name in self._keys.values():
            return name
        if name not in self._keys:
            raise BadInputError(f"{self.root}, camera", repr(name), f"one of {list(self._keys)}", "name one of them")
        return self._keys[name]

    def _range(self, split: str | None) -> tuple[int, int]:
        if split is None:
            return 0, self.info.episodes
        if split not in self.info.splits:
            expected = f"one of {sorted(self.info.splits)}"
            raise BadInputError(f"{self.root}, split", repr(split), expected, "name one of them")
        first, last = self.info.splits[split]
        if not 0 <= first < last <= self.info.episodes:
            raise damaged(
                self.root / layout.INFO, f"split {split!r} as {first}:{last}", f"some of {self.info.episodes} episodes"
            )
        return first, last

    def _files(self) -> list[Path]:
        """Every parquet and media file of the chosen episodes."""
        videos = {video.path for place in self._places for video in place.videos.values()}
        return sorted({place.data for place in self._places} | videos)
