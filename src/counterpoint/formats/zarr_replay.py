"""Diffusion Policy's replay buffers: a zarr group in a folder or a zip file, with all episodes end to end.

::

    meta/episode_ends      [E]: the step after the last step of each episode
    data/img, camera_0     images [N, H, W, 3] or [N, 3, H, W], uint8, or float in [0, 255]; uint8 with 1 or 4 channels
    data/camera_0_depth    depth [N, H, W], [N, H, W, 1] or [N, 1, H, W], uint16 in millimetres or float32 in metres
    data/action            [N, A]
    data/state, agent_pos, robot_eef_pose, robot0_eef_pos, ...     [N, S]
    data/timestamp         [N], seconds, of recordings of a real robot

(`diffusion_policy/common/replay_buffer.py`; UMI's data sets are `.zarr.zip` files of the same form.)
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo, check_finite
from counterpoint.errors import import_extra, require
from counterpoint.formats.base import Column, OnBadRow, Reader, raise_error, read_each, rows_of
from counterpoint.formats.boundary import MOST_BYTES, MOST_PIXELS, parsing, require_size
from counterpoint.formats.lerobot import layout
from counterpoint.formats.recognition import ZARR_ENDS

_FPS = 10.0  # Push-T's rate; only recordings of a real robot have timestamps
_EXPECTED = "a zarr replay buffer of Diffusion Policy"
_HINT = "download or record it again"
_STATE = re.compile(r"robot\d*_(eef_pos|eef_rot_axis_angle|eef_quat|eef_pose|gripper_width|gripper_qpos|joint)")
_CODECS = re.compile(r"blosc|zlib|gzip|lz4|zstd|bz2|lzma|shuffle|delta|imagecodecs_\w+")
_SMALLEST_SIDE = 8  # arrays of uint16 with shorter sides are not depth images
_SCALE_ROWS = 64  # rows searched for an image that is not black, to see the scale of floats
_MOST_CHUNKS = 10**8  # more chunks are treated as damage


class ZarrReplayStore(Reader):
    """Episodes of one of Diffusion Policy's replay buffers, read chunk by chunk on demand.

    - Cameras are the arrays of colour images. Images of floats are rounded and must be in [0, 255], as in Diffusion
      Policy; floats in [0, 1] are refused. Grey is repeated in three channels, and alpha is left out.
    - Depth cameras are arrays of one channel: of uint16, or of float32 if "depth" is in their name.
    - The state is `state` or `agent_pos`, or else the robot's pose, gripper and joints in the alphabetical order of
      their names.
    - The frame rate comes from `timestamp` if the buffer has it; otherwise Push-T's rate, 10 frames a second, is
      assumed.
    - All other arrays with a row for each step are in `columns`.
    - The instruction is the attribute `instruction` of the group (`.zattrs`) if it exists; the format itself has no
      text.

    A chunk that is not stored is read as the array's fill value, as zarr defines it; by default, zarr 3 does not store
    chunks that hold only the fill value. A lost chunk looks the same, so `facts` gives the number of chunks that are
    not stored. A camera without any chunk is refused.

    Args:
        path: The folder or the `.zarr.zip` file.
        on_bad_row: Called with the error of each episode that cannot be used and is left out; by default the first
            error is raised.

    Raises:
        BadInputError: When the buffer is damaged, incomplete, or its lengths disagree.
        MissingExtraError: When `zarr` is not installed.
    """

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        self._group: Any = None
        self._owner = 0
        self._unstored: dict[str, str] = {}
        with parsing(self.path, _EXPECTED, _HINT):
            group = self._open()
            names = sorted(map(str, group["data"].array_keys()))
            arrays = {name: self._array(f"data/{name}") for name in names}
            ends = self._whole(ZARR_ENDS)[()].astype(np.int64)
            instruction = dict(group.attrs).get("instruction", "")
        where, hint = f"{self.path}, attribute instruction", "write the task in words"
        require(isinstance(instruction, str), where, repr(instruction)[:80], "a text", hint)
        good = ends.ndim == 1 and len(ends) > 0 and ends[0] > 0 and bool((np.diff(ends) > 0).all())
        require(good, f"{self.path}, {ZARR_ENDS}", str(ends[:9]), "the ends of the episodes, ascending", _HINT)
        self._channels = {
            name: axis for name, array in arrays.items() if (axis := _channel_axis(name, array)) is not None
        }
        self.cameras = tuple(self._channels)
        self.depth_cameras = tuple(name for name, array in arrays.items() if _is_depth(name, array))
        vectors = [name for name, array in arrays.items() if len(array.shape) == 2]
        state = [name for name in vectors if name == ("state" if "state" in vectors else "agent_pos")]
        self._parts: dict[str, list[str]] = {
            "actions": [name for name in vectors if name == "action"],
            "state": state or [name for name in vectors if _STATE.fullmatch(name)],
            "timestamps": [name for name, array in arrays.items() if name == "timestamp" and len(array.shape) == 1],
        }
        folders = {part.name for part in self.path.glob("data/*/")}
        lost = sorted(folders - arrays.keys())
        require(not lost, f"{self.path}, data", f"{', '.join(lost)} without .zarray", "arrays", _HINT)
        seen = self.cameras or self._parts["state"]
        found = f"the arrays {', '.join(f'{name} {array.dtype} {array.shape}' for name, array in arrays.items())}"
        hint = "write images as uint8 [N, H, W, 3], and the state as state [N, S]"
        require(seen, f"{self.path}, data", found, "images or a state", hint)
        for name in (*self.cameras, *self.depth_cameras, *(name for names in self._parts.values() for name in names)):
            require_size(f"{self.path}, data/{name}", math.prod(arrays[name].shape[1:]), 3 * MOST_PIXELS)
            where, found = f"{self.path}, data/{name}", f"{arrays[name].shape[0]} steps"
            require(arrays[name].shape[0] == ends[-1], where, found, f"{ends[-1]}, as {ZARR_ENDS} says", _HINT)
            self._whole(f"data/{name}")
        for name in self.cameras:
            stored = f"data/{name}" not in self._unstored or arrays[name].nchunks_initialized
            require(stored, f"{self.path}, data/{name}", "no chunk at all", "images", _HINT)
            self._check_scale(name)
        if self._unstored:
            self.facts = {"chunks not stored": "; ".join(f"{name} {text}" for name, text in self._unstored.items())}
        self.columns, self._sources = self._kept_columns(arrays, int(ends[-1]))
        known = {*self.cameras, *self.depth_cameras, *self._sources.values()}
        alpha = [f"{name}.alpha" for name in self.cameras if arrays[name].shape[self._channels[name]] == 4]
        self.unread = (*alpha, *(name for name in arrays if name not in known))
        self.rate_recorded = bool(self._parts["timestamps"])
        self._spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1).tolist()
        kept = list(read_each(list(self._spans), self._rate, on_bad_row))
        self._spans = [span for span, _ in kept]
        self.episodes = tuple(EpisodeInfo(stop - first, instruction, fps) for (first, stop), fps in kept)
        self.names = [f"{self.path}, steps {first} to {stop - 1}" for first, stop in self._spans]
        self.files = [self.path] if self.path.is_file() else sorted(p for p in self.path.rglob("*") if p.is_file())

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        where = f"{self.names[episode]}, {camera}"
        images = self._rows(where, camera, steps + self._spans[episode][0])
        images = np.moveaxis(images, self._channels[camera], -1)
        images = np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images[..., :3]
        if images.dtype != np.uint8:
            good = bool(((images >= 0) & (images <= 255)).all())
            require(good, where, "floats out of range", "floats in [0, 255]", "write images as uint8")
            images = np.rint(images).astype(np.uint8)
        return np.ascontiguousarray(images)

    def read_depth(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the distances [N, H, W], uint16 or float32."""
        images = self._rows(f"{self.names[episode]}, {camera}", camera, steps + self._spans[episode][0])
        return images if images.ndim == 3 else images.squeeze(-1 if images.shape[-1] == 1 else 1)

    def recorded(self, episode: int, name: str) -> Array:
        """Return an episode's values of the column `name`, [T, *shape]."""
        self._whole(f"data/{self._sources[name]}")
        values = self._steps(self._spans[episode], self._sources[name])
        return values.reshape(len(values), *self.columns[name].shape).astype(values.dtype.newbyteorder("="))

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return the actions or the state as recorded; the buffer has no rewards."""
        parts = [self._steps(self._spans[episode], part) for part in self._parts.get(name, ())]
        return np.concatenate(parts, axis=1) if parts else None

    def timestamps(self, episode: int) -> Array:
        """Return the time of each step, float64 [T], in seconds since the episode's first step."""
        for name in self._parts["timestamps"]:
            times = self._steps(self._spans[episode], name).astype(np.float64)
            return cast(Array, times - times[0])
        return super().timestamps(episode)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open files."""
        return {**self.__dict__, "_group": None}

    def _kept_columns(self, arrays: dict[str, Any], length: int) -> tuple[dict[str, Column], dict[str, str]]:
        """Return `columns`, and the array of each column, by their names in a LeRobot data set.

        Columns are the arrays with a row for each step, except images. Arrays with the names of LeRobot's own counters
        and times are renamed.
        """
        images = {*self.cameras, *self.depth_cameras}
        roles = ((layout.ROLES[source][0][0], self._parts[source]) for source in ("actions", "state"))
        renamed = {parts[0]: name for name, parts in roles if len(parts) == 1}
        columns, sources = {}, {}
        for name, array in arrays.items():
            if name not in images and array.shape[:1] == (length,) and 0 not in array.shape:
                written = renamed.get(name, f"recorded_{name}" if name in layout.OWN else name)
                columns[written], sources[written] = Column(array.dtype.name, array.shape[1:] or (1,)), name
        return columns, sources

    def _rate(self, span: tuple[int, int]) -> float:
        """Return the frame rate of an episode, in frames per second."""
        for name in self._parts["timestamps"]:
            times = self._steps(span, name).astype(np.float64)
            check_finite(f"{self.path}, {name}", times)
            steps = np.diff(times)
            where, expected = f"{self.path}, steps {span[0]} to {span[1] - 1}, {name}", "seconds, ascending"
            require(steps.ndim == 1 and bool((steps > 0).all()), where, "times that do not ascend", expected, _HINT)
            return float(1 / steps.mean()) if len(steps) else _FPS
        return _FPS

    def _check_scale(self, camera: str) -> None:
        """Refuse a camera whose floats seem to lie in [0, 1]."""
        count = self._array(f"data/{camera}").shape[0]
        rows = np.unique(np.linspace(0, count - 1, _SCALE_ROWS, dtype=np.int64))[:, None]
        images = (self._rows(f"{self.path}, {camera}", camera, row) for row in rows)
        first = next((image for image in images if image.dtype == np.uint8 or image.any()), np.zeros(1, np.uint8))
        require(
            first.dtype == np.uint8 or not 0 < float(first.max()) <= 1,
            f"{self.path}, data/{camera}",
            f"floats of at most {first.max():.3g} in an image",
            "uint8, or floats in [0, 255]",
            "multiply them by 255, and write them as uint8",
        )

    def _steps(self, span: tuple[int, int], name: str) -> Array:
        return self._rows(f"{self.path}, {name}", name, np.arange(*span))

    def _rows(self, where: str, name: str, wanted: Array) -> Array:
        """Return the rows `wanted`, which ascend without repeats, of an array of `data`."""
        with parsing(where, "whole chunks", _HINT):
            return rows_of(self._array(f"data/{name}"), wanted)

    def _array(self, name: str) -> Any:
        """Return an array of numbers; refuse other arrays, because a codec could run code that comes with the data."""
        group = self._open()
        with parsing(f"{self.path}, {name}", _EXPECTED, _HINT):
            array = group[name]
        is_array = isinstance(array, import_extra("zarr", "zarr").Array)
        require(is_array, f"{self.path}, {name}", "a group", "an array", _HINT)
        codecs = [str(getattr(codec, "codec_id", "zlib")) for codec in (*array.filters, *array.compressors)]
        bad = next((codec for codec in codecs if not _CODECS.fullmatch(codec)), None)
        where, hint = f"{self.path}, {name}", "do not trust this file; write it with another compressor"
        require(bad is None, where, f"the codec {bad!r}", "one that compresses numbers", hint)
        require(array.dtype.kind in "biuf", where, f"{array.dtype}", "numbers", _HINT)
        require_size(f"{where}, a chunk", math.prod(array.chunks) * array.dtype.itemsize, MOST_BYTES)
        return array

    def _whole(self, name: str) -> Any:
        """Return an array whose stored chunks all have their full length, and note how many are not stored.

        Blosc would read beyond the end of a chunk that is cut short.
        """
        where, array = f"{self.path}, {name}", self._array(name)
        with parsing(where, "a whole array", _HINT):
            expected = array.nchunks
            require(expected < _MOST_CHUNKS, where, f"{expected} chunks", f"fewer than {_MOST_CHUNKS}", _HINT)
            count, fill = array.nchunks_initialized, array.fill_value
            if count < expected:
                lost = f"{count} chunks and no fill value for the others"
                require(fill is not None, where, lost, f"{expected} chunks, or a fill value", _HINT)
                self._unstored[name] = f"{expected - count} of {expected}, read as {fill}"
            packed = any(getattr(codec, "codec_id", "") == "blosc" for codec in array.compressors)
            for chunk in (self.path / name).glob("[0-9]*") if packed and self.path.is_dir() else ():
                with chunk.open("rb") as file:
                    size, found = int.from_bytes(file.read(16)[12:], "little"), chunk.stat().st_size
                require(found == size, f"{where}, chunk {chunk.name}", f"{found} bytes", f"{size}", _HINT)
        return array

    def _open(self) -> Any:
        """Return the group; each process opens its own."""
        if self._group is None or self._owner != os.getpid():
            zarr = import_extra("zarr", "zarr")
            with contextlib.suppress(ImportError):  # the codecs of UMI's images
                import_module("imagecodecs.numcodecs").register_codecs(verbose=False)
            source = zarr.storage.ZipStore(self.path, mode="r") if self.path.is_file() else str(self.path)
            with parsing(self.path, _EXPECTED, _HINT):
                self._group, self._owner = zarr.open_group(source, mode="r"), os.getpid()
        return self._group


def _channel_axis(name: str, array: Any) -> int | None:
    """Return the axis of the channels of colour or grey images; `None` for any other array."""
    shape, kind = array.shape, array.dtype
    if len(shape) != 4 or 0 in shape:
        return None
    grey = () if "depth" in name else (1,)  # the unit of depth in 8 bits is not known
    channels = (3, 4, *grey) if kind == np.uint8 else (3,) if kind.kind == "f" else ()
    return next((axis for count in channels for axis in (-1, 1) if shape[axis] == count), None)


def _is_depth(name: str, array: Any) -> bool:
    """Return whether an array holds depth images."""
    shape, kind = array.shape, array.dtype
    alone = len(shape) == 3 or (len(shape) == 4 and 1 in (shape[1], shape[-1]))
    large = alone and sorted(shape[1:])[-2] >= _SMALLEST_SIDE
    return large and 0 not in shape and bool(kind == np.uint16 or (kind == np.float32 and "depth" in name))
