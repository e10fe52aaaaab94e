"""robomimic's and LIBERO's HDF5 data sets as an `EpisodeStore`: a file, or a folder of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.base import OnBadRow, raise_error
from counterpoint.data.formats.hdf5.files import FileLayout, obs_key, open_hdf5, scan
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["Hdf5Store", "hdf5_files", "hdf5_splits"]

_OPEN = 64  # files held open at a time; LIBERO-90 has 90


def hdf5_files(path: Path) -> list[Path]:
    """The file itself, or those in the folder; empty where there are none."""
    if path.is_file():
        return [path] if path.suffix in (".hdf5", ".h5") else []
    return sorted(file for ending in ("*.hdf5", "*.h5") for file in path.glob(ending))


def hdf5_splits(path: Path) -> tuple[str, ...]:
    """The subsets of `mask` in a file or a folder of files; `train` and `valid` first.

    Raises:
        BadInputError: When a file is damaged.
        MissingExtraError: When `h5py` is not installed.
    """
    names: list[str] = []
    for path_of_file in hdf5_files(path):
        with open_hdf5(path_of_file) as file:
            names += file.get("mask", ())
    return _in_order(names)


class Hdf5Store(EpisodeStore):
    """Demonstrations of robomimic or LIBERO, read from the disk when asked for.

    Pictures come out upright. State is the robot's own: hand position, quaternion and gripper joints
    (robomimic), gripper joints and joint angles (LIBERO). A demonstration succeeded where a reward reaches 1, as it
    does in both when the task is solved.

    Action t is what was done on seeing picture t, as everywhere here. robomimic's files have it so. LIBERO's recorder
    took picture t after action t (`scripts/create_dataset.py`), so of T rows come T - 1 steps: pictures and state of
    rows 0 ... T-2 with actions and rewards of rows 1 ... T-1. The last picture, of the task done, has no action and is
    left out. LIBERO's own policies are trained on the pairs as they stand in the file, an action beside what it led to.

    Files are opened by the process that reads them, so a store may be used before and after a fork.

    Args:
        path: A file, or a folder of files (LIBERO has one a task).
        split: A subset of `mask`; by default every demonstration.
        on_bad_row: Told of each file or demonstration that cannot be used, which is then left out; by default the
            first one raises.

    Raises:
        BadInputError: When a file is damaged, has no pictures, lengths disagree, or files differ in their cameras.
        MissingExtraError: When `h5py` is not installed.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        self.path, self.split = Path(path), split
        layouts: list[FileLayout] = []
        for file in hdf5_files(self.path):
            try:
                layouts.append(_alike(scan(file, on_bad_row), layouts))
            except BadInputError as error:
                on_bad_row(error)
        self._layouts = tuple(layouts)
        every = [(layout, demo) for layout in layouts for demo in layout.demos]
        self._demos = [(f, d) for f, d in every if split is None or d.name in f.masks.get(split, ())]
        self.cameras = layouts[0].cameras if layouts else ()
        self.episodes = tuple(
            EpisodeInfo(demo.length - layout.lead, demo.instruction, layout.fps, demo.success)
            for layout, demo in self._demos
        )
        self.splits = {
            name: tuple(n for n, (f, d) in enumerate(self._demos) if d.name in f.masks.get(name, ()))
            for name in _in_order(name for layout in layouts for name in layout.masks)
        }
        """Subset -> its episodes' numbers, of those in the store; `train` and `valid` first."""
        self._open: dict[Path, Any] = {}
        self._owner = os.getpid()

    @property
    def fingerprint(self) -> str:
        """Digest of each file's name, size and time of change, and of the split."""
        digest = hashlib.sha256(f"{self.split}".encode())
        for layout in self._layouts:
            stat = layout.path.stat()
            digest.update(f"{layout.path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            if layout.lead:  # training stores made of the file's own pairs are others
                digest.update(b"aligned\0")
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3], upright.

        Raises:
            BadInputError: When there is no such camera or the pictures cannot be read.
        """
        key = camera or self.cameras[0]
        if key not in self.cameras:
            raise BadInputError("camera", repr(key), f"one of {list(self.cameras)}", "name a camera the data has")
        layout, _ = self._demos[episode]
        wanted, places = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        pictures = self._read(episode, f"obs/{obs_key(key)}", wanted)
        if pictures.shape[-1] == 1:  # a mask
            pictures = pictures.repeat(3, axis=-1)
        return np.ascontiguousarray(pictures[places, ::-1] if layout.bottom_first else pictures[places])

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        info = self.episodes[episode]
        return np.arange(info.length) / info.fps

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A]."""
        return self._read(episode, "actions")[self._demos[episode][0].lead :].astype(np.float32)

    def state(self, episode: int) -> Array | None:
        """float32 [T, P], or `None` where the file has no proprioception."""
        length = self.episodes[episode].length
        parts = [self._read(episode, f"obs/{key}")[:length] for key in self._demos[episode][0].state]
        return np.concatenate(parts, axis=1, dtype=np.float32) if parts else None

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None` where the file has none."""
        layout, demo = self._demos[episode]
        if not demo.rewarded:
            return None
        return self._read(episode, "rewards")[layout.lead :].astype(np.float32).reshape(-1)

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay behind."""
        return {**self.__dict__, "_open": {}}

    def _read(self, episode: int, part: str, wanted: Array | None = None) -> Array:
        """All of a dataset, or its rows `wanted`, which ascend without repeats."""
        layout, demo = self._demos[episode]
        where = f"{layout.path}, {demo.name}, {part}"
        try:
            rows = self._file(layout.path)[f"data/{demo.name}/{part}"]
            if wanted is None:
                values: Array = rows[()]
            elif len(wanted) and wanted[-1] - wanted[0] < 2 * len(wanted):  # one stretch is read faster than rows
                values = rows[int(wanted[0]) : int(wanted[-1]) + 1][wanted - wanted[0]]
            else:
                values = rows[wanted]
        except (OSError, KeyError) as error:
            raise BadInputError(
                where,
                f"numbers that cannot be read ({next(iter(str(error).splitlines()), '')[:120]})",
                "the whole file, unchanged since it was opened",
                "download it again",
            ) from None
        return values

    def _file(self, path: Path) -> Any:
        if self._owner != os.getpid():  # a fork's copies of open files are not ours to read from
            self._open, self._owner = {}, os.getpid()
        if path not in self._open:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = open_hdf5(path)
        return self._open[path]


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name not in ("train", "valid"), name)))


def _alike(layout: FileLayout, before: list[FileLayout]) -> FileLayout:
    """The layout, if its cameras and proprioception are those of the first file."""
    for what in ("cameras", "state"):
        if before and getattr(layout, what) != getattr(before[0], what):
            raise BadInputError(
                layout.path,
                f"{what} {list(getattr(layout, what))}",
                f"{list(getattr(before[0], what))}, as in {before[0].path.name}",
                "keep files that have the same parts in a folder, or open this one by itself",
            )
    return layout
