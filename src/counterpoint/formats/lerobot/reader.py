"""The reader of LeRobot data sets, v3.0 and v2.1, without `lerobot`.

Frames are addressed by their number inside the video file, never by time: the first frame of an episode is number
round(from_timestamp * fps), and step t is t frames later. A start between two frames is refused. Every read compares
the files with the metadata.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import Column, Reader, require_split, stack_images
from counterpoint.formats.boundary import decode_depth, decode_image, is_depth, read_bytes
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.clock import clock_error, even_times, start_error
from counterpoint.formats.lerobot.layout import EpisodeLocation, VideoSpan
from counterpoint.formats.lerobot.tables import (
    HINT,
    UNITS,
    as_matrix,
    column_names,
    count_rows,
    encoded,
    file_key,
    read_rows,
    reading,
)
from counterpoint.formats.lerobot.words import read_words
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.remote import version
from counterpoint.formats.video import cut_out, probe_video, read_frames

_vectors: LRUCache[Array] = LRUCache(limit=64 * 1024**2)
"""The actions, states and rewards of the episodes read last, shared by all stores of this process."""


class LeRobotStore(Reader):
    """The episodes of a LeRobot folder; images are decoded on demand.

    An episode counts as a success when `next.success` is true at any of its steps. `layout.ROLES` names the features
    that actions, state and rewards are read from; all further columns are in `columns`. `frames` accepts a camera's
    short name or its whole feature key. A camera is a depth camera if its feature is marked as depth, or if its images
    have 16 bits; depth is read from images, not from videos.

    Args:
        root: The data set's folder.
        split: A split of `meta/info.json`, such as "train"; by default every episode.

    Raises:
        BadInputError: Metadata are missing, malformed or of an unknown version, a path or link leaves the folder, a
            file is missing, or the split does not exist.
    """

    def __init__(self, root: str | Path, *, split: str | None = None) -> None:
        self.root = Path(root)
        self.info = layout.read_info(self.root)
        locations = layout.locate(self.root, self.info)
        numbers = [location.number for location in locations]
        once, where = numbers and len(set(numbers)) == len(numbers), self.root / "meta"
        found = f"{len(numbers)} episodes, numbered {numbers[:3]} ..."
        require(once, where, found, f"{self.info.episodes}, as {layout.INFO} says, each once", HINT)
        if len(numbers) != self.info.episodes:
            told = f"{len(numbers)} episodes are listed, but total_episodes in {layout.INFO} is {self.info.episodes}"
            layout.warn_once(f"{where}: {told}; `counterpoint data doctor` tells more")
        self._locations = tuple(self._in_split(locations, split))
        for path in self._media:
            require(path.is_file(), path, "no such file", "a file that the metadata name", HINT)
        self.names = [f"{location.data}, episode {location.number}" for location in self._locations]
        self._roles = self.info.roles
        self._keys, self._depth, unread = self._sort_cameras()
        self.cameras, self.depth_cameras = tuple(self._keys), tuple(self._depth)
        renamed = {keys[0]: layout.ROLES[source][0][0] for source, keys in self._roles.items() if len(keys) == 1}
        others = {k: at for k, at in self.info.features.items() if not (at.is_visual or k in layout.OWN)}
        self._sources = {renamed.get(key, key): key for key, at in others.items() if at.is_column}
        kept = {name: others[key] for name, key in self._sources.items()}
        self.columns = {name: Column(at.dtype, at.shape, at.notes) for name, at in kept.items()}
        read = {*self._sources.values(), *(key for keys in self._roles.values() for key in keys)}
        nameless = {layout.SUBTASK} & self.info.features.keys() if not (self.root / layout.SUBTASKS).is_file() else ()
        undeclared = sorted(column_names(self._locations[0].data) - {*self.info.features, *layout.OWN})
        self.unread = (*unread, *nameless, *(key for key in others if key not in read), *undeclared)
        self._even: dict[int, Array] | None = None
        words = read_words(self.root, self.info, self._locations)
        self.episodes = tuple(
            EpisodeInfo(at.length, task, self.info.fps, self._success(at), segments)
            for at, (task, segments) in zip(self._locations, words, strict=True)
        )
        self.facts = {name: text for name, text in self._facts(numbers) if text}

    @property
    def numbers(self) -> list[int]:
        """The `episode_index` of each episode; episodes that were removed leave gaps."""
        return [location.number for location in self._locations]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the content of the metadata, and the name, size and version of every other file."""
        digest = hashlib.sha256(repr([location.number for location in self._locations]).encode())
        for path in sorted(p for p in (self.root / "meta").rglob("*") if p.is_file()):
            digest.update(path.relative_to(self.root).as_posix().encode() + read_bytes(path))
        for path in [*self._media, *sorted((self.root / "images").rglob("*.*"))]:
            _, size, _ = file_key(path)
            digest.update(f"{path.relative_to(self.root)}|{size}|{version(path)}|".encode())
        return digest.hexdigest()

    def findings(self) -> Iterator[BadInputError]:
        """Yield the cameras whose images have another size than `meta/info.json` says."""
        for name, key in self._keys.items():
            with suppress(BadInputError):  # reported where every frame is decoded
                _, height, width, _ = self.frames(0, np.array([0]), name).shape
                found, shape = f"{key!r} of shape {list(self.info.features[key].shape)}", self.info.features[key].shape
                if not {height, width} <= {*shape}:
                    where, expected = self.root / layout.INFO, f"{height} x {width}, as its images have"
                    yield BadInputError(where, found, expected, "correct its shape in meta/info.json")

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]; see `Reader.frames`."""
        short = {key: name for name, key in self._keys.items()}
        return super().frames(episode, indices, camera if camera in self._keys else short.get(camera or "", camera))

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3], from a video or from images in the parquet file."""
        at, key = self._locations[episode], self._keys[camera]
        if key in at.videos:
            video, (least, most) = self._span(at, key), at.videos[key].frames
            count = probe_video(video.path).frames
            require(least <= count <= most, video.path, f"{count} frames", f"{least}, as the metadata say", HINT)
            return read_frames(video.path, video.first + steps)
        return stack_images((where, decode_image(where, image)) for where, image in self._images(at, key, steps))

    def _span(self, at: EpisodeLocation, key: str) -> VideoSpan:
        """Return an episode's frames in a video; refuse a start between two frames, which may be the neighbour's."""
        video, fps = at.videos[key], self.info.fps
        error = start_error(str(video.path), at.number, video.start, fps)
        if error and video.start * fps - video.first > layout.BETWEEN:
            raise error
        return video

    def read_depth(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the distances [N, H, W] from images in the parquet file, uint16 or float32 as stored."""
        at, key = self._locations[episode], self._depth[camera]
        images = stack_images((where, decode_depth(where, image)) for where, image in self._images(at, key, steps))
        unit = self._unit(key)
        good, found = UNITS.get(unit, images.dtype) == images.dtype, f"{images.dtype} images in the unit {unit!r}"
        where, hint = f"{at.data}, {key}", "correct depth_unit in meta/info.json"
        require(good, where, found, "uint16 in 'mm' or float32 in 'm'", hint)
        return images

    def recorded(self, episode: int, name: str) -> Array:
        """Return one of `columns`, [T, *shape]; see `Reader.recorded`."""
        try:
            return self._recorded(episode, name)
        except BadInputError as error:
            hint = f"{error.hint}; or leave the column out: --drop {name}"
            raise BadInputError(error.where, error.found, error.expected, hint) from error

    def _recorded(self, episode: int, name: str) -> Array:
        at, key, shape = self._locations[episode], self._sources[name], self.columns[name].shape
        table = self._rows(at, [key], 0, at.length)
        if self.columns[name].dtype == "string":
            with reading(at.data, f"texts in {key!r}"):
                texts = np.empty((at.length, 1), object)
                texts[:, 0] = table[key].cast(pa.string()).to_pylist()
                return texts
        values, found = as_matrix(at.data, table, key), f"{key!r} of another shape"
        require(values.shape[1] == math.prod(shape), at.data, found, f"{list(shape)}, as in info.json", HINT)
        return values.reshape(at.length, *(shape or (1,)))

    def is_lossless(self, camera: str) -> bool:
        """Return whether a camera is stored as images and not as video."""
        return self.info.features[self._keys[camera]].dtype == "image"

    def cut_videos(self, episode: int, folder: Path) -> dict[str, Path]:
        """Copy an episode's videos, without encoding them again, to `FOLDER/CAMERA.mp4`; return each camera's file."""
        at = self._locations[episode]
        spans = {name: self._span(at, key) for name, key in self._keys.items() if key in at.videos}
        for name, span in spans.items():
            cut_out(span.path, span.first, at.length, folder / f"{name}.mp4")
        return {name: folder / f"{name}.mp4" for name in spans}

    def timestamps(self, episode: int) -> Array:
        """Return frame_index / fps, float64 [T], in seconds; stored timestamps must step by 1/fps within 1e-4 s."""
        if self._even is not None:
            return self._even[episode]
        at = self._locations[episode]
        error = clock_error(self.root, str(self.names[episode]), self._clock(at), self.info.fps)
        if error:
            raise error
        return super().timestamps(episode)

    def retime(self, fps: float | None = None) -> float:
        """Replace the timestamps of all episodes by frame_index / rate, for clocks that jitter.

        Args:
            fps: The rate, required if the stored timestamps and `meta/info.json` contradict each other; by default the
                rate in `meta/info.json`.

        Returns:
            The largest change of a timestamp, in seconds.

        Raises:
            BadInputError: When a frame is missing or the rate is in doubt.
        """
        times, moves = {}, [0.0]
        for number, at in enumerate(self._locations):
            where = str(self.names[number])
            times[number], moved = even_times(self.root, where, self._clock(at), self.info.fps, told=fps)
            moves.append(moved)
        self._even = times
        rate = self.info.fps if fps is None else float(fps)
        self.episodes = tuple(replace(info, fps=rate) for info in self.episodes)
        return max(moves)

    def _clock(self, at: EpisodeLocation) -> Array:
        stored: Array = self._checked(at, "timestamp")["timestamp"][:, 0].astype(np.float64)
        return stored

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions, a state or rewards, joined from their features; `None` if the data set lacks them."""
        at, keys = self._locations[episode], self._roles.get(name)
        if keys is None:
            return None

        def read() -> tuple[Array, int]:
            columns = self._checked(at, *keys)
            values = np.concatenate([columns[key] for key in keys], axis=1) if keys[1:] else columns[keys[0]]
            return values, values.nbytes

        return _vectors.get((file_key(at.data), at.number, keys), read)

    def _sort_cameras(self) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Return the keys of the colour cameras and of the depth cameras by name, and the names of unread features."""
        colour, depth, unread = self.info.cameras, dict[str, str](), list[str]()
        for key, name in self.info.camera_names.items():
            feature, deep = self.info.features[key], self.info.features[key].dtype == "image" and self._is_deep(key)
            if deep or feature.is_depth:
                colour.pop(name, None)
                depth |= {name: key} if deep else {}
                unread += [] if deep else [name]
            elif {2, 4} & {*feature.shape[:1], *feature.shape[-1:]}:
                unread.append(f"{name}.alpha")
        return colour, depth, unread

    def _is_deep(self, key: str) -> bool:
        """Return whether a camera's first image holds depth; if it cannot be read, the mark of the feature decides."""
        try:
            first = [image for at in self._locations[:1] for _, image in self._images(at, key, np.array([0]))]
            return any(map(is_depth, first))
        except BadInputError:
            return self.info.features[key].is_depth

    def _unit(self, key: str) -> str:
        """Return the unit of a depth camera, `depth_unit` in its feature's `info`; empty if there is none."""
        return str((self.info.features[key].notes.get("info") or {}).get("depth_unit", ""))

    def _images(self, at: EpisodeLocation, key: str, steps: Array) -> list[tuple[str | Path, bytes]]:
        """Return encoded images of a camera at ascending steps, each with its place for errors."""
        start = int(steps[0])
        column = self._rows(at, [key], start, int(steps[-1]) + 1 - start)[key]
        found_at = partial(layout.image_file, self.root)
        return encoded(f"{at.data}, {key}", [column[step].as_py() for step in (steps - start).tolist()], found_at)

    def _checked(self, at: EpisodeLocation, *wanted: str) -> dict[str, Array]:
        """Return columns of an episode, after checking that the rows belong to the episode."""
        known = [key for source in ("actions", "state") for key in self._roles.get(source, ())]
        places = "frame_index", "episode_index"
        # The same columns in the same order, whichever of them are wanted, so that a row group is read and kept once.
        names = list(dict.fromkeys([*known, "timestamp", *places, *wanted]))
        table = self._rows(at, names, 0, at.length)
        columns = {name: as_matrix(at.data, table, name) for name in (*wanted, *places)}
        own, found = (columns["episode_index"] == at.number).all(), f"other rows where episode {at.number} should be"
        require(own, at.data, found, f"{at.length} rows from row {at.row}", HINT)
        counted = columns["frame_index"][:, 0] == np.arange(at.length)
        found, hint = f"frame_index that does not count the steps of episode {at.number}", "write 0, 1, 2 and so on"
        require(counted.all(), at.data, found, f"0 to {at.length - 1}", f"{hint} into it, if no row is missing")
        return columns

    def _rows(self, at: EpisodeLocation, names: list[str], first: int, count: int) -> pa.Table:
        rows = count_rows(at.data)
        require(rows == at.rows, at.data, f"{rows} rows", f"{at.rows}, as the metadata say", HINT)
        return read_rows(at.data, at.row + first, count, names)

    def _success(self, at: EpisodeLocation) -> bool | None:
        if at.success is not None or layout.SUCCESS not in self.info.features:
            return at.success
        return bool(as_matrix(at.data, self._rows(at, [layout.SUCCESS], 0, at.length), layout.SUCCESS).any())

    def _in_split(self, locations: list[EpisodeLocation], split: str | None) -> list[EpisodeLocation]:
        """Return the episodes whose numbers are in the split's range."""
        if split is None:
            return locations
        known, where, stop = self.info.splits, self.root / layout.INFO, locations[-1].number + 1
        require_split(self.root, split, known)
        first, last = known[split]
        own = [at for at in locations if first <= at.number < last]
        good, found = own and last <= max(stop, self.info.episodes), f"split {split!r} as {first}:{last}"
        require(good, where, found, f"episodes that exist, of 0 to {stop - 1}", "correct splits, or leave --split out")
        return own

    def _facts(self, numbers: list[int]) -> Iterator[tuple[str, str]]:
        """Yield facts for `data info`: gaps in the episodes' numbers, segments, features with unusual names."""
        missing = sorted(set(range(numbers[-1])) - set(numbers))
        listed = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
        yield "episodes removed", f"{len(missing)}: {listed}; the others keep their numbers" if missing else ""
        several = [info.segments for info in self.episodes if info.segments]
        count = sum(map(len, several))
        yield "segments", f"{count} with tasks of their own, in {len(several)} episodes" if several else ""
        roles = self._roles.items()
        yield "read as", ", ".join(f"{role} from {' and '.join(k)}" for role, k in roles if k != layout.ROLES[role][0])
        yield "colour images named depth", ", ".join(name for name in self.cameras if "depth" in name.lower())

    @cached_property
    def _media(self) -> list[Path]:
        """The parquet and media files of the chosen episodes."""
        videos = {video.path for location in self._locations for video in location.videos.values()}
        return sorted({location.data for location in self._locations} | videos)
