"""DrQ-v2's replay buffers: a folder of `TIME_NUMBER_LENGTH.npz`, an episode each, as Premier-TACO's data are kept.

A file holds L + 1 rows of each array; row 0 is what the reset gave, with a dummy action::

    row            0     1     2   ...   L
    observation    o0    o1    o2  ...   oL      uint8 [L + 1, 3 * stack, H, W], the newest picture last
    action         -     a0    a1  ...   aL-1    [L + 1, A]: row i led from o(i-1) to o(i)
    reward         -     r0    r1  ...   rL-1    of those actions
    discount       1     1     1   ...           (not read)

So an episode has L steps: picture t is the newest of row t, and action and reward t are those of row t + 1. The
picture after the last action is left out, as no action follows it.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.table import OnBadRow, raise_error
from counterpoint.errors import BadInputError

__all__ = ["DrqReplayStore", "drq_files"]

_NAME = re.compile(r".*_(\d+)_(\d+)\.npz")
_FPS = 20.0  # the files do not say
_KEPT = 8  # episodes held unpacked by a process, about 10 MB each at 84 pixels


def drq_files(path: Path) -> list[Path]:
    """The folder's episodes in the order of their numbers; empty where there are none."""
    if not path.is_dir():
        return []
    numbered = [(_NAME.fullmatch(file.name), file) for file in path.glob("*.npz")]
    return [file for _, file in sorted((int(name[1]), file) for name, file in numbered if name)]


class DrqReplayStore:
    """Episodes of a DrQ-v2 replay buffer: one camera, `camera`; actions and rewards, no state.

    The instruction is the folder's name in words: `walker_walk_replay` and `walker_walk` give "walker walk". Files are
    packed whole, so reading one picture unpacks its episode; training many times over is faster from a training store.

    Args:
        path: The folder.
        on_bad_row: Told of each file that cannot be used, which is then left out; by default the first one raises.

    Raises:
        BadInputError: When a file is damaged, lacks an array, or its lengths disagree.
    """

    cameras = ("camera",)

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        name = self.path.resolve().name.removesuffix("_replay")
        self._files: list[Path] = []
        episodes: list[EpisodeInfo] = []
        for file in drq_files(self.path):
            try:
                episodes.append(EpisodeInfo(_length(file), name.replace("_", " "), _FPS))
            except BadInputError as error:
                on_bad_row(error)
                continue
            self._files.append(file)
        self.episodes = tuple(episodes)
        self._pictures: OrderedDict[int, Array] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        """Digest of each file's name, size and time of change."""
        digest = hashlib.sha256()
        for file in self._files:
            stat = file.stat()
            digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]: the newest picture of each stack."""
        if camera not in (None, *self.cameras):
            raise BadInputError("camera", repr(camera), f"{self.cameras[0]!r}", "leave the camera out")
        if episode not in self._pictures:
            stacks = self._array(episode, "observation")
            self._pictures[episode] = np.ascontiguousarray(stacks[:-1, -3:].transpose(0, 2, 3, 1))
            if len(self._pictures) > _KEPT:
                self._pictures.popitem(last=False)
        self._pictures.move_to_end(episode)
        selected: Array = self._pictures[episode][indices]
        return selected

    def timestamps(self, episode: int) -> Array:
        """float64 [T]; the files do not tell the time between steps, 1/20 s is taken."""
        return np.arange(self.episodes[episode].length) / _FPS

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], action t leading from picture t to picture t + 1."""
        return self._array(episode, "action")[1:].astype(np.float32)

    def state(self, episode: int) -> Array | None:
        """`None`."""
        return None

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], reward t being that of action t."""
        return self._array(episode, "reward")[1:].astype(np.float32).reshape(-1)

    def __getstate__(self) -> dict[str, Any]:
        """Unpacked pictures stay behind."""
        return {**self.__dict__, "_pictures": OrderedDict()}

    def _array(self, episode: int, name: str) -> Array:
        file = self._files[episode]
        try:
            with np.load(file) as arrays:
                values: Array = arrays[name]
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise _damaged(file, error) from None
        return values


def _length(file: Path) -> int:
    """Steps of an episode, told by the arrays' headers alone, which must agree with the file's name."""
    try:
        shapes = _shapes(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(file, error) from None
    missing = [name for name in ("observation", "action", "reward") if name not in shapes]
    if missing:
        raise _bad(file, f"no {', '.join(missing)}", "the arrays observation, action, reward and discount")
    (rows, *picture), dtype = shapes["observation"]
    if dtype != np.uint8 or len(picture) != 3 or picture[0] == 0 or picture[0] % 3:
        raise _bad(f"{file}, observation", f"{dtype} {(rows, *picture)}", "uint8 [L + 1, 3 * stack, H, W]")
    if len(shapes["action"][0]) != 2:
        raise _bad(f"{file}, action", f"{shapes['action'][0]}", "[L + 1, A]")
    lengths = {name: shape[0] for name, (shape, _) in shapes.items() if shape}
    name = _NAME.fullmatch(file.name)
    told = int(name[2]) + 1 if name else rows
    if any(length != told for length in lengths.values()) or told < 2:
        raise _bad(file, f"lengths that disagree: {lengths}", f"{told} rows, one more than the name tells")
    return told - 1


def _shapes(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each array, read without unpacking it."""
    shapes = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            shapes[member.removesuffix(".npy")] = (shape, dtype)
    return shapes


def _bad(where: str | Path, found: str, expected: str) -> BadInputError:
    return BadInputError(where, found, expected, "record the episode again, or remove the file")


def _damaged(file: Path, error: Exception) -> BadInputError:
    line = next(iter(str(error).splitlines()), "")[:120]
    return _bad(file, f"a damaged file ({type(error).__name__}: {line})", "an .npz of a DrQ-v2 replay buffer")
