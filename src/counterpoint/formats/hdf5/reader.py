"""The reader of demonstrations in HDF5, in any of `DIALECTS`: a file, or a folder of files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_alike, require_split, rows_of, stack_images
from counterpoint.formats.boundary import decode_image, parsing
from counterpoint.formats.hdf5.files import (
    FileLayout,
    demo_place,
    instruction_from_name,
    instruction_of,
    obs_key,
    read_masks,
    scan,
)
from counterpoint.formats.hdf5.opening import open_hdf5
from counterpoint.formats.recognition import hdf5_files

_OPEN = 64  # maximum number of files held open; LIBERO-90 has 90
_PART = re.compile(r"train|valid|val|test")  # the word in which masks differ that are to share no demonstration
_READING = Lock()  # opening a file may close another one that a second thread is reading


def hdf5_splits(path: Path) -> tuple[str, ...]:
    """Return the subsets of `mask` in a file or a folder of files; `train` and `valid` first."""
    names: list[str] = []
    for path_of_file in hdf5_files(path):
        with open_hdf5(path_of_file) as file, parsing(path_of_file, "a group mask"):
            names += read_masks(path_of_file, file)
    return _in_order(names)


class Hdf5Store(Reader):
    """Demonstrations of robomimic, LIBERO, IsaacLab or ALOHA, read from the disk on demand.

    The dialect says where the parts of a demonstration are and what they mean; see `Dialect`. Images are turned
    upright. A demonstration counts as a success if a reward reaches 1 (robomimic, LIBERO) or its attribute says so
    (IsaacLab); ALOHA records no success. Files in a folder that share an environment and record no instruction count
    as separate tasks, whose instructions are taken from the names of the files.

    Action t is the action taken on image t, as everywhere in this library. LIBERO's recorder took image t after action
    t (`scripts/create_dataset.py`), so T rows give T - 1 steps: images and state of rows 0 ... T-2 with actions and
    rewards of rows 1 ... T-1. The last image, which shows the finished task, has no action and is left out. LIBERO's
    own policies are trained on the file's rows, which pair an action with its result. In the other dialects, image t is
    taken before action t.

    Files are opened by the process that reads them, so a store may be used before and after a fork.

    Args:
        path: A file, or a folder of files (LIBERO has one file per task, ALOHA one per demonstration).
        split: A subset of `mask`; by default every demonstration.
        dialect: A name of `DIALECTS`; by default the dialect is recognised from the content of the file.
        on_bad_row: Called with the error of each file or demonstration that cannot be used and is left out; by default
            the first error is raised.

    Attributes:
        splits: For each subset, the numbers of its episodes in the store; `train` and `valid` first.

    Raises:
        BadInputError: When a file is damaged, refers to other files or has no recognisable dialect, lengths disagree,
            or files differ in their cameras or dialects.
        MissingExtraError: When `h5py` is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: str | None = None,
        dialect: str | None = None,
        on_bad_row: OnBadRow = raise_error,
    ) -> None:
        self.path, self.split = Path(path), split
        files, alike = hdf5_files(self.path), ("cameras", "state", "dialects")
        layouts = read_alike(files, lambda file: scan(file, on_bad_row, dialect), on_bad_row, *alike)
        subsets = _in_order(name for layout in layouts for name in layout.masks)
        require_split(path, split, subsets)
        every = [(layout, demo) for layout in layouts for demo in layout.demos]
        self._layouts = layouts
        self._demos = [(f, d) for f, d in every if split is None or d.name in f.masks.get(split, ())]
        self.cameras = layouts[0].cameras if layouts else ()
        words = _instructions(layouts)
        self.episodes = tuple(
            EpisodeInfo(demo.length - file.dialect.lead, demo.instruction or words[file.path], file.fps, demo.success)
            for file, demo in self._demos
        )
        self.splits = {
            name: tuple(n for n, (f, d) in enumerate(self._demos) if d.name in f.masks.get(name, ()))
            for name in subsets
        }
        self.names = [demo_place(file.path, demo.name) for file, demo in self._demos]
        self.files = [layout.path for layout in layouts]
        self.identity = split, [layout.dialect.lead for layout in layouts], *filter(None, [dialect])
        self.rate_recorded = all(layout.rate_recorded for layout in layouts)
        self._open: dict[Path, Any] = {}
        self._owner = os.getpid()
        if layouts:
            spoken, pictures = layouts[0].dialect, layouts[0].pictures
            self.unread = tuple(pictures)
            self.left_out = tuple(
                f"{name} ({pictures[name]})" if name in pictures else name for name in layouts[0].unread
            )
            reason = f"recognised by {'; '.join(layouts[0].facts)}" if layouts[0].facts else "named by the user"
            self.facts = {"dialect": f"{spoken.name}: {spoken.title} ({reason})", **_consequences(layouts)}

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3], upright."""
        layout = self._demos[episode][0]
        images = self._rows(episode, f"{layout.dialect.images}/{obs_key(camera)}", steps)
        if layout.dialect.packed and images.ndim < 3:
            where = f"{self.names[episode]}, {camera}"
            # Zeros fill each row up to the longest image. `compress_len` is not needed to find the end of an image, and
            # the recorders do not agree on the order of its cameras.
            rows = ((f"{where}, row {step}", row.tobytes()) for step, row in zip(steps, images, strict=True))
            images = stack_images((place, decode_image(place, content)) for place, content in rows)
            images = images[..., ::-1] if layout.dialect.packed == "bgr" else images
        elif images.ndim == 3 or images.shape[-1] == 1:  # grey, or a mask
            images = images.reshape(*images.shape[:3], 1).repeat(3, axis=-1)
        elif images.shape[-1] != 3:  # [N, 3, H, W]
            images = images.transpose(0, 2, 3, 1)
        if images.dtype.kind == "f":
            low, high = images.min(), images.max()
            good, found = low >= 0 and high <= 1, f"values from {low:.4g} to {high:.4g}"
            hint = "store them as uint8 in [0, 255]"
            require(good, f"{self.names[episode]}, {camera}", found, "floats in [0, 1], as in the first image", hint)
            images = np.rint(images.astype(np.float32) * 255).astype(np.uint8)
        return np.ascontiguousarray(images[:, ::-1] if layout.bottom_first else images)

    def sizes(self, camera: str) -> Counter[tuple[int, int]]:
        """Return each size (height, width) of a camera's images with its number of episodes."""
        found = Counter[tuple[int, int]]()
        for episode, (layout, _) in enumerate(self._demos):
            shape = self._read(episode, f"{layout.dialect.images}/{obs_key(camera)}", lambda rows: rows.shape)
            if len(shape) < 3:  # compressed images
                shape = self.frames(episode, np.zeros(1, np.int64), camera).shape
            found[shape[2:] if len(shape) == 4 and shape[-1] not in (1, 3) else shape[1:3]] += 1
        return found

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions or rewards of rows `lead` ... T-1, or one of both kinds of state of rows 0 ... T-1-`lead`."""
        layout, demo = self._demos[episode]
        dialect, seen = layout.dialect, demo.length - layout.dialect.lead
        if name == "state":
            parts = [self._rows(episode, f"{dialect.obs}/{key}")[:seen].reshape(seen, -1) for key in layout.state]
            return np.concatenate(parts, axis=1, dtype=np.float32) if parts else None
        if name == "environment_state":
            return self._rows(episode, f"{dialect.obs}/object")[:seen] if layout.objects else None
        if name == "rewards" and not demo.rewarded:
            return None
        return self._rows(episode, dialect.actions if name == "actions" else name)[dialect.lead :]

    def findings(self) -> Iterator[BadInputError]:
        """Yield names in `mask` that `data` lacks, and demonstrations in two masks that are to be apart.

        Such masks differ in one word: `train`, `valid` or `test`, as in `20_percent_train` and `20_percent_valid`.
        """
        for layout in self._layouts:
            for name, members in sorted(layout.masks.items()):
                for demo in sorted(members - layout.names):
                    hint = "remove the name from the mask, or restore the demonstration"
                    yield BadInputError(f"{layout.path}, mask/{name}", demo, "names of demonstrations in data", hint)
            for one, other in combinations(_in_order(layout.masks), 2):
                apart = _PART.sub("", one) == _PART.sub("", other) and _PART.search(one) and _PART.search(other)
                for demo in sorted(layout.masks[one] & layout.masks[other]) if apart else ():
                    found, hint = f"{demo} in both mask/{one} and mask/{other}", "remove it from one of them"
                    yield BadInputError(f"{layout.path}, mask", found, "no demonstration in both", hint)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open files."""
        return {**self.__dict__, "_open": {}}

    def _rows(self, episode: int, part: str, wanted: Array | None = None) -> Array:
        """Return a whole dataset, or its rows `wanted`, which ascend without repeats."""
        values: Array = self._read(episode, part, lambda rows: rows[()] if wanted is None else rows_of(rows, wanted))
        return values

    def _read(self, episode: int, part: str, read: Callable[[Any], Any]) -> Any:
        """Return what `read` takes from a dataset."""
        layout, demo = self._demos[episode]
        with _READING, parsing(f"{self.names[episode]}, {part}", "the whole file, unchanged since it was opened"):
            return read(self._file(layout.path)[f"data/{demo.name}/{part}" if demo.name else part])

    def _file(self, path: Path) -> Any:
        if self._owner != os.getpid():  # a forked process must not read from its parent's open files
            self._open, self._owner = {}, os.getpid()
        if path not in self._open:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = open_hdf5(path)
        return self._open[path]


def _instructions(layouts: list[FileLayout]) -> dict[Path, str]:
    """Return each file's instruction: its own, its environment's, or its name's if files share an environment."""
    unnamed = [layout.env_name for layout in layouts if not layout.instruction]
    return {
        layout.path: layout.instruction
        or (
            instruction_of(layout.env_name)
            if unnamed.count(layout.env_name) < 2
            else instruction_from_name(layout.path.stem)
        )
        for layout in layouts
    }


def _consequences(layouts: list[FileLayout]) -> dict[str, str]:
    """Return what the dialect implies, and the source of instructions that the files do not hold."""
    first = layouts[0]
    facts = first.dialect.facts
    if first.dialect.bottom_first and not all(layout.bottom_first for layout in layouts):
        facts["images"] += ", but where macros_image_convention is opencv"
    if not all(layout.cameras for layout in layouts):
        del facts["images"]
    sources = {"file": "the file's name", "folder": "the folder's name, since the files have none"}
    without = [layout for layout in layouts if not all(demo.instruction for demo in layout.demos)]
    if without and first.dialect.words in sources:
        facts["instructions from"] = sources[first.dialect.words]
    elif not all(layout.instruction for layout in without):
        facts["instructions from"] = "the environment's name, or the file's name in a folder; the files have none"
    return facts


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (name not in ("train", "valid"), name)))
