"""The reader of robomimic's and LIBERO's HDF5 data sets: a file, or a folder of files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_alike, require_split, rows_of
from counterpoint.formats.boundary import parsing
from counterpoint.formats.hdf5.files import instructions, obs_key, open_hdf5, read_masks, scan
from counterpoint.formats.kinds import hdf5_files

_OPEN = 64  # maximum number of files held open; LIBERO-90 has 90
_READING = Lock()  # opening one file may close another, which a second thread may be reading


def hdf5_splits(path: Path) -> tuple[str, ...]:
    """Return the subsets of `mask` in a file or a folder of files; `train` and `valid` first."""
    names: list[str] = []
    for path_of_file in hdf5_files(path):
        with open_hdf5(path_of_file) as file, parsing(path_of_file, "a group mask"):
            names += read_masks(path_of_file, file)
    return _in_order(names)


class Hdf5Store(Reader):
    """Demonstrations of robomimic or LIBERO, read from the disk on demand.

    Images are turned upright. State is the robot's own: end effector position, quaternion and gripper joints
    (robomimic), gripper joints and joint angles (LIBERO). A demonstration counts as a success if a reward reaches 1: in
    both, that happens when the task is solved. Files of a folder that share an environment and record no instruction
    are separate tasks; the instruction of each is taken from its file's name.

    Action t is the action taken on image t, as everywhere in this library. robomimic's files follow this rule. LIBERO's
    recorder took image t after action t (`scripts/create_dataset.py`), so T rows give T - 1 steps: images and state of
    rows 0 ... T-2 with actions and rewards of rows 1 ... T-1. The last image, which shows the finished task, has no
    action and is left out. LIBERO's own policies are trained on the file's rows, which pair an action with its result.

    Files are opened by the process that reads them, so a store may be used before and after a fork.

    Args:
        path: A file, or a folder of files (LIBERO has one file per task).
        split: A subset of `mask`; by default every demonstration.
        on_bad_row: Called for each file or demonstration that cannot be used and is left out; by default the first one
            raises.

    Attributes:
        splits: For each subset, the numbers of its episodes in the store; `train` and `valid` first.

    Raises:
        BadInputError: When a file is damaged, has no images, refers to other files, lengths disagree, or files differ
            in their cameras.
        MissingExtraError: When `h5py` is not installed.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        self.path, self.split = Path(path), split
        files = hdf5_files(self.path)
        layouts = read_alike(files, lambda file: scan(file, on_bad_row), on_bad_row, "cameras", "state")
        subsets = _in_order(name for layout in layouts for name in layout.masks)
        require_split(path, split, subsets)
        every = [(layout, demo) for layout in layouts for demo in layout.demos]
        self._demos = [(f, d) for f, d in every if split is None or d.name in f.masks.get(split, ())]
        self.cameras = layouts[0].cameras if layouts else ()
        words = instructions(layouts)
        self.episodes = tuple(
            EpisodeInfo(demo.length - file.lead, demo.instruction or words[file.path], file.fps, demo.success)
            for file, demo in self._demos
        )
        self.splits = {
            name: tuple(n for n, (f, d) in enumerate(self._demos) if d.name in f.masks.get(name, ()))
            for name in subsets
        }
        self.names = [f"{file.path}, {demo.name}" for file, demo in self._demos]
        self.files = [layout.path for layout in layouts]
        self.identity = split, [layout.lead for layout in layouts]
        self._open: dict[Path, Any] = {}
        self._owner = os.getpid()

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return uint8 [N, H, W, 3], upright."""
        images = self._rows(episode, f"obs/{obs_key(camera)}", steps)
        if images.shape[-1] == 1:  # a mask
            images = images.repeat(3, axis=-1)
        return np.ascontiguousarray(images[:, ::-1]) if self._demos[episode][0].bottom_first else images

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions and rewards of rows `lead` ... T-1, and both kinds of state of rows 0 ... T-1-`lead`."""
        layout, demo = self._demos[episode]
        if name == "state":
            parts = [self._rows(episode, f"obs/{key}")[: demo.length - layout.lead] for key in layout.state]
            return np.concatenate(parts, axis=1, dtype=np.float32) if parts else None
        if name == "environment_state":
            return self._rows(episode, "obs/object")[: demo.length - layout.lead] if layout.objects else None
        if name == "rewards" and not demo.rewarded:
            return None
        return self._rows(episode, name)[layout.lead :]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open files."""
        return {**self.__dict__, "_open": {}}

    def _rows(self, episode: int, part: str, wanted: Array | None = None) -> Array:
        """Return a whole dataset, or its rows `wanted`, which ascend without repeats."""
        layout, demo = self._demos[episode]
        with _READING, parsing(f"{self.names[episode]}, {part}", "the whole file, unchanged since it was opened"):
            rows = self._file(layout.path)[f"data/{demo.name}/{part}"]
            values: Array = rows[()] if wanted is None else rows_of(rows, wanted)
        return values

    def _file(self, path: Path) -> Any:
        if self._owner != os.getpid():  # a forked process must not read from its parent's open files
            self._open, self._owner = {}, os.getpid()
        if path not in self._open:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = open_hdf5(path)
        return self._open[path]


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name not in ("train", "valid"), name)))
