"""DrQ-v2's replay buffers: a folder with one `TIME_NUMBER_LENGTH.npz` per episode; the format of Premier-TACO's data.

A file holds L + 1 rows of each array; row 0 is the reset, with a dummy action::

    row            0     1     2   ...   L
    observation    o0    o1    o2  ...   oL      uint8 [L + 1, 3 * stack, H, W], the newest image last
    action         -     a0    a1  ...   aL-1    [L + 1, A]: the action of row i led from o(i-1) to o(i)
    reward         -     r0    r1  ...   rL-1    of the action in the same row
    discount       1     1     1   ...           (not read)

So an episode has L steps: image t is the newest of row t; action and reward t come from row t + 1.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each
from counterpoint.formats.boundary import MOST_BYTES, array_headers, load_arrays, parsing, require_size
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.recognition import DRQ_NAME, drq_files

_FPS = 20.0  # an assumption: the files record no rate
_EXPECTED = "an .npz of a DrQ-v2 replay buffer"
_HINT = "record the episode again, or remove the file"
_ARRAYS = {"actions": "action", "rewards": "reward"}
_images: LRUCache[Array] = LRUCache(limit=128 * 1024**2)


class DrqReplayStore(Reader):
    """Episodes of a DrQ-v2 replay buffer: one camera, `camera`; actions and rewards, no state.

    The instruction is the folder's name in words: `walker_walk_replay` and `walker_walk` give "walker walk". The files
    do not record the time between steps: 1/20 s is assumed. Reading one image unpacks its whole episode, so training is
    many times faster from a training store.

    Args:
        path: The folder.
        on_bad_row: Called with the error of each file that cannot be used and is left out; by default the first error
            is raised.

    Raises:
        BadInputError: When a file is damaged, lacks an array, or its lengths disagree.
    """

    rate_recorded = False

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        text = self.path.resolve().name.removesuffix("_replay").replace("_", " ")
        lengths = dict(read_each(drq_files(self.path), _length, on_bad_row))
        self.names = self.files = list(lengths)
        self.episodes = tuple(EpisodeInfo(length, text, _FPS) for length in lengths.values())

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the newest image of each stack, uint8 [N, H, W, 3]."""
        file = self.files[episode]

        def unpack() -> tuple[Array, int]:
            images = np.ascontiguousarray(self._array(episode, "observation")[:-1, -3:].transpose(0, 2, 3, 1))
            return images, images.nbytes

        return _images.get((str(file), file.stat().st_mtime_ns), unpack)[steps]

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions or rewards. Action t leads from image t to image t + 1, and earns reward t."""
        return self._array(episode, _ARRAYS[name])[1:] if name in _ARRAYS else None

    def _array(self, episode: int, name: str) -> Array:
        with parsing(self.files[episode], _EXPECTED, _HINT):
            return load_arrays(self.files[episode], [name])[name]


def _length(file: Path) -> int:
    """Return the number of steps from the arrays' headers, without reading arrays; it must match the file's name."""
    with parsing(file, _EXPECTED, _HINT):
        shapes = array_headers(file)
        missing = sorted({"observation", "action", "reward"} - shapes.keys())
        require(not missing, file, f"no {', '.join(missing)}", "the arrays observation, action and reward", _HINT)
        shape, kind = shapes["observation"]
        good = kind == np.uint8 and len(shape) == 4 and shape[1] > 0 == shape[1] % 3
        require(good, f"{file}, observation", f"{kind} {shape}", "uint8 [L + 1, 3 stack, H, W]", _HINT)
        for name in ("observation", "action", "reward"):
            require_size(f"{file}, {name}", math.prod(shapes[name][0]) * shapes[name][1].itemsize, MOST_BYTES)
        require(len(shapes["action"][0]) == 2, f"{file}, action", shapes["action"][0], "[L + 1, A]", _HINT)
        named = DRQ_NAME.fullmatch(file.name)
        rows = int(named[2]) + 1 if named else shape[0]
        lengths = {name: shape[0] for name, (shape, _) in shapes.items() if shape}
        good, expected = rows > 1 and set(lengths.values()) == {rows}, f"{rows} rows, one more than the name says"
        require(good, file, f"lengths that disagree: {lengths}", expected, _HINT)
        return rows - 1
