"""Writing a training store: decode every frame once, resize it, put it on the disk with its digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["LAYOUT", "Fit", "build", "digest_line", "resize"]

Fit = Literal["square", "shorter"]
"""`square` squeezes the whole view to size x size; `shorter` keeps the aspect, the shorter side is `size`."""

LAYOUT = "counterpoint-store-2"
"""The version of the folder's layout; part of every key."""

_CHUNK = 64  # frames decoded at a time: bounds memory however long the video


def resize(frames: Array, size: int, fit: Fit = "square") -> Array:
    """Resize frames with Pillow's antialiased bicubic filter, CLIP's own; frames of that size pass untouched.

    Args:
        frames: uint8 [N, H, W, 3].
        size: Side of the square, or length of the shorter side, in pixels.
        fit: `square` or `shorter`.

    Returns:
        uint8 [N, H', W', 3].
    """
    height, width = frames.shape[1:3]
    scale = size / min(height, width)
    target = (size, size) if fit == "square" else (round(height * scale), round(width * scale))
    if target == (height, width):
        return frames

    def one(frame: Array) -> Array:
        return np.asarray(Image.fromarray(frame).resize((target[1], target[0]), Image.Resampling.BICUBIC))

    with ThreadPoolExecutor() as pool:  # Pillow resizes outside Python's lock
        return np.stack(list(pool.map(one, frames)))


def build(
    store: EpisodeStore,
    folder: Path,
    *,
    key: str,
    size: int,
    fit: Fit,
    cameras: tuple[str, ...],
    progress: bool,
) -> None:
    """Write the training store of `store` into `folder`, which must not exist. See `counterpoint.data.cache`.

    Raises:
        BadInputError: When the disk is too small, episodes differ in parts or shapes, or the source is bad.
    """
    _check_room(store, folder.parent, size, cameras)
    folder.mkdir()
    names = [*_vectors(store, 0), *(f"frames-{c}" for c in range(len(cameras)))]
    columns = {name: _Column(folder / f"{name}.bin") for name in names}
    episodes: list[dict[str, Any]] = []
    total = sum(info.length for info in store.episodes) * max(1, len(cameras))
    with ProgressBar("Building the training store", total, "frames") if progress else nullcontext() as bar:
        for number, info in enumerate(store.episodes):
            for name, rows in _parts(store, number, size=size, fit=fit, cameras=cameras):
                if name not in columns:
                    raise _uneven(number, f"has {name}")
                columns[name].append(rows, f"episode {number}, {name}")
                if bar is not None and name.startswith("frames"):
                    bar.advance(len(rows))
            if any(column.rows_of_episode != info.length for column in columns.values()):
                raise _uneven(number, "lacks actions, state or rewards")
            episodes.append(
                {
                    "length": info.length,
                    "instruction": info.instruction,
                    "fps": info.fps,
                    "success": info.success,
                    "sha256": {name: column.end_episode() for name, column in columns.items()},
                }
            )
    meta = {
        "layout": LAYOUT,
        "key": key,
        "size": size,
        "fit": fit,
        "cameras": cameras,
        "arrays": {name: column.close() for name, column in columns.items()},
        "episodes": episodes,
    }
    text = json.dumps(meta, indent=1).encode()
    for path, data in ((folder / "store.json", text), (folder / "store.json.sha256", digest_line(text))):
        with path.open("wb") as file:
            file.write(data)
            _flush(file)


def digest_line(text: bytes) -> bytes:
    """What store.json.sha256 holds for a store.json of these bytes; `sha256sum --check` reads it."""
    return f"{hashlib.sha256(text).hexdigest()}  store.json\n".encode()


class _Column:
    """One array being written, episodes end to end, with digests of each episode and of the whole."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._whole, self._episode = hashlib.sha256(), hashlib.sha256()
        self._rows, self.rows_of_episode = 0, 0
        self._kind: tuple[str, tuple[int, ...]] | None = None

    def append(self, rows: Array, where: str) -> None:
        kind = rows.dtype.newbyteorder("<").str, rows.shape[1:]
        self._kind = self._kind or kind
        if kind != self._kind:
            raise BadInputError(
                where,
                found=f"{kind} a step",
                expected=f"{self._kind}, as in the episodes before",
                mend="leave the episode out; for frames that differ in aspect, use fit='square'",
            )
        data = np.ascontiguousarray(rows, dtype=kind[0]).tobytes()
        self._whole.update(data)
        self._episode.update(data)
        self._file.write(data)
        self._rows += len(rows)
        self.rows_of_episode += len(rows)

    def end_episode(self) -> str:
        digest, self._episode, self.rows_of_episode = self._episode.hexdigest(), hashlib.sha256(), 0
        return digest

    def close(self) -> dict[str, Any]:
        assert self._kind is not None  # a store has at least one episode of at least one step
        _flush(self._file)
        self._file.close()
        dtype, row = self._kind
        return {"dtype": dtype, "shape": [self._rows, *row], "sha256": self._whole.hexdigest()}


def _vectors(store: EpisodeStore, episode: int) -> dict[str, Array]:
    parts = {
        "timestamps": store.timestamps(episode),
        "actions": store.actions(episode),
        "state": store.state(episode),
        "rewards": store.rewards(episode),
    }
    return {name: value for name, value in parts.items() if value is not None}


def _parts(
    store: EpisodeStore, episode: int, *, size: int, fit: Fit, cameras: tuple[str, ...]
) -> Iterator[tuple[str, Array]]:
    """Everything of an episode, by array name; frames come in chunks, in order."""
    yield from _vectors(store, episode).items()
    length = store.episodes[episode].length
    chunks = [np.arange(first, min(first + _CHUNK, length)) for first in range(0, length, _CHUNK)]
    for c, camera in enumerate(cameras):
        for steps in chunks:
            yield f"frames-{c}", resize(store.frames(episode, steps, camera), size, fit)


def _uneven(episode: int, found: str) -> BadInputError:
    return BadInputError(
        f"episode {episode}",
        found=f"an episode that {found}",
        expected="the same parts as in episode 0",
        mend="keep only episodes that have the same parts",
    )


def _flush(file: Any) -> None:
    """Put the bytes on the disk before a rename makes them a store."""
    file.flush()
    os.fsync(file.fileno())


def _check_room(store: EpisodeStore, root: Path, size: int, cameras: tuple[str, ...]) -> None:
    """Refuse at once what would fill the disk hours later."""
    needed = sum(info.length for info in store.episodes) * size * size * 3 * len(cameras)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise BadInputError(
            root,
            found=f"{free / 1e9:.1f} GB free",
            expected=f"at least {needed / 1e9:.1f} GB for the training store",
            mend="set COUNTERPOINT_CACHE to a larger disk, or use a smaller size or fewer cameras",
        )
