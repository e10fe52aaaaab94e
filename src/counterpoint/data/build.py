"""Build a training store: episodes are decoded in parallel and written at their places; a stopped build can be resumed.

Lengths are known before anything is decoded and shapes after the first frame, so every file has its full length from
the start. The folder's journal has a line for each episode on the disk: one digest over all digests of the episode.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.resize import Fit, resize, resized_shape
from counterpoint.data.store import EpisodeStore, frames_in_chunks, vectors
from counterpoint.errors import require
from counterpoint.files import write_atomically
from counterpoint.folder import append, digests_of, seal
from counterpoint.progress import ProgressBar

LAYOUT = "counterpoint-store-5"
"""The version of the folder's layout; part of every key."""

DIGEST = hashlib.sha256().digest_size

STORE = "store.json"
_TOGETHER = 64 * 1024  # bytes that one digest covers; a larger row has its own digest
_CHUNK = 16  # frames a thread holds at their full size
_THREADS = 16  # more threads would exceed the number of decoders that stay open
_EVERY = 5.0  # seconds between two flushes


def digest_starts(lengths: Array, rows: int) -> Array:
    """Return the number of digests before each episode's own digests, and the total: int64 [E + 1]."""
    return np.concatenate([[0], np.cumsum(-(-lengths // rows))])


@dataclass(frozen=True)
class _Kind:
    """The form of one file: the dtype and shape of a step, and the number of steps that one digest covers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def step_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def rows(self) -> int:
        return max(1, _TOGETHER // max(1, self.step_bytes))

    @property
    def words(self) -> str:
        return f"{self.dtype.name} {self.shape} a step"


def build(
    store: EpisodeStore,
    folder: Path,
    *,
    key: str,
    size: int,
    fit: Fit,
    cameras: tuple[str, ...],
    progress: bool,
    threads: int | None = None,
) -> None:
    """Write the training store of `store` into `folder`, or continue an interrupted build.

    Args:
        store: The source.
        folder: The folder to write.
        key: The store's key.
        size: Training resolution in pixels.
        fit: The resize rule.
        cameras: The cameras to keep.
        progress: Show a progress bar on standard error.
        threads: Number of episodes decoded in parallel; by default one per processor core.

    Raises:
        BadInputError: When the disk is too small, episodes differ in parts or shapes, or the source is damaged.
    """
    kinds = _kinds(store, size, fit, cameras)
    folder.mkdir(exist_ok=True)
    _check_room(store, folder, kinds)
    lengths = store.lengths
    count = threads or min(_THREADS, os.cpu_count() or 1)
    with ExitStack() as stack:
        files = {name: _File(stack, folder, name, kind, store) for name, kind in kinds.items()}
        journal = _Journal(folder, files.values())
        views, before = max(1, len(cameras)), sum(int(lengths[episode]) for episode in journal.done)
        title = "Building the training store"
        bar = ProgressBar(title, int(lengths.sum()) * views, "frames", done=before * views) if progress else None
        bar = bar and stack.enter_context(bar)
        stop = Event()

        def write(episode: int) -> None:
            parts: dict[str, Iterable[Array]] = {name: [value] for name, value in vectors(store, episode).items()}
            for number, camera in enumerate(cameras):
                chunks = frames_in_chunks(store, episode, camera, count=_CHUNK)
                parts[f"frames-{number}"] = (resize(chunk, size, fit) for chunk in chunks)
            found, hint = f"the parts {sorted(parts)}", "keep only episodes that have the same parts"
            same, expected = parts.keys() == kinds.keys(), f"{sorted(kinds)}, as in episode 0"
            require(same, f"episode {episode}", found, expected, hint)
            for name, part in parts.items():
                files[name].write(episode, part, stop)

        pool = stack.enter_context(ThreadPoolExecutor(count))
        try:
            for episode in in_order(pool, [e for e in range(len(lengths)) if e not in journal.done], write, 2 * count):
                journal.add(episode)
                if bar is not None:
                    bar.advance(int(lengths[episode]) * views)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            journal.flush()
    _complete(store, folder, kinds, {"key": key, "size": size, "fit": fit, "cameras": cameras})


def _kinds(store: EpisodeStore, size: int, fit: Fit, cameras: tuple[str, ...]) -> dict[str, _Kind]:
    """Return the form of each file of a training store, taken from the first episode of `store`."""
    kinds = {name: _kind(value) for name, value in vectors(store, 0).items()}
    for number, camera in enumerate(cameras):
        shape = store.frames(0, np.zeros(1, np.int64), camera).shape
        kinds[f"frames-{number}"] = _Kind(np.dtype(np.uint8), (*resized_shape(shape[1], shape[2], size, fit), 3))
    return kinds


def _kind(values: Array) -> _Kind:
    return _Kind(values.dtype.newbyteorder("<"), values.shape[1:])


def _check_room(store: EpisodeStore, folder: Path, kinds: Mapping[str, _Kind]) -> None:
    needed = int(store.lengths.sum()) * sum(kind.step_bytes for kind in kinds.values())
    there = sum(file.stat().st_blocks * 512 for file in folder.iterdir())  # bytes of an interrupted build
    free = shutil.disk_usage(folder).free
    expected = f"{(needed - there) / 1e9:.1f} GB for the training store"
    hint = "set COUNTERPOINT_CACHE to a larger disk, or keep no store: --data.decode=always"
    require(needed - there <= free, folder.parent, f"{free / 1e9:.1f} GB free", expected, hint)


class _File:
    """The file of one part (such as actions) of all episodes end to end, and the file of its digests.

    Episodes may be written in any order.
    """

    def __init__(self, stack: ExitStack, folder: Path, name: str, kind: _Kind, store: EpisodeStore) -> None:
        self._name, self._kind, self._starts = name, kind, store._starts
        self._digest_starts = digest_starts(store.lengths, kind.rows)
        sizes = int(self._starts[-1]) * kind.step_bytes, int(self._digest_starts[-1]) * DIGEST
        self.descriptors: list[int] = []
        for path, size in zip((folder / f"{name}.bin", folder / f"{name}.digests"), sizes, strict=True):
            file = stack.enter_context(path.open("r+b" if path.exists() else "w+b", buffering=0))
            file.truncate(size)
            self.descriptors.append(file.fileno())

    def write(self, episode: int, chunks: Iterable[Array], stop: Event) -> None:
        """Write one episode; return early once `stop` is set: another episode has failed, and its error is raised."""
        kind, place = self._kind, int(self._starts[episode])
        data, digests = b"", list[bytes]()
        for rows in chunks:
            if stop.is_set():
                return
            own, where = _kind(rows), f"episode {episode}, {self._name}"
            expected, hint = f"{kind.words}, as in episode 0", "leave the episode out, or use fit='square'"
            require(own == kind, where, own.words, expected, hint)
            data += np.ascontiguousarray(rows, dtype=kind.dtype).tobytes()
            whole = len(data) // kind.step_bytes // kind.rows * kind.rows if kind.step_bytes else 0
            place += self._append(data, place, whole, digests)
            data = data[whole * kind.step_bytes :]
        self._append(data, place, int(self._starts[episode + 1]) - place, digests)
        _write_at(self.descriptors[1], b"".join(digests), int(self._digest_starts[episode]) * DIGEST)

    def digests(self, episode: int, *, computed: bool = False) -> bytes:
        """Return the digests of an episode's steps, read from the digests' file or computed from the steps."""
        kind, stop, place = self._kind, int(self._starts[episode + 1]), int(self._digest_starts[episode])
        if not computed:
            count = int(self._digest_starts[episode + 1]) - place
            return os.pread(self.descriptors[1], count * DIGEST, place * DIGEST)
        found = b""
        for step in range(int(self._starts[episode]), stop, kind.rows):
            size = (min(step + kind.rows, stop) - step) * kind.step_bytes
            found += hashlib.sha256(os.pread(self.descriptors[0], size, step * kind.step_bytes)).digest()
        return found

    def _append(self, data: bytes, place: int, steps: int, digests: list[bytes]) -> int:
        """Write `steps` steps, add one digest per block of steps to `digests`, and return `steps`."""
        size, rows = self._kind.step_bytes, self._kind.rows
        _write_at(self.descriptors[0], data[: steps * size], place * size)
        for first in range(0, steps, rows):
            digests.append(hashlib.sha256(data[first * size : min(first + rows, steps) * size]).digest())
        return steps


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


class _Journal:
    """The list of the episodes on the disk, also from an interrupted build; new episodes are noted in groups."""

    def __init__(self, folder: Path, files: Iterable[_File]) -> None:
        self._folder, self._files = folder, list(files)
        self._waiting, self._flushed = list[int](), time.monotonic()
        noted = {int(name): digest for name, digest in digests_of(folder).items() if name.isdecimal()}
        both = {episode: (self._digest(episode), self._digest(episode, computed=True)) for episode in noted}
        self.done = {episode for episode, digest in noted.items() if both[episode] == (digest, digest)}

    def add(self, episode: int) -> None:
        """Note that an episode is written."""
        self._waiting.append(episode)
        if time.monotonic() - self._flushed > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Flush the noted episodes to the disk, and then write their lines into the journal."""
        if self._waiting:
            for file in self._files:
                for descriptor in file.descriptors:
                    os.fsync(descriptor)
            append(self._folder, {str(episode): self._digest(episode) for episode in self._waiting})
        self._waiting, self._flushed = [], time.monotonic()

    def _digest(self, episode: int, *, computed: bool = False) -> str:
        return hashlib.sha256(b"".join(file.digests(episode, computed=computed) for file in self._files)).hexdigest()


def in_order(
    pool: ThreadPoolExecutor, episodes: Iterable[int], work: Callable[[int], None], ahead: int
) -> Iterator[int]:
    """Yield the episodes in order, each after its `work` has returned; up to `ahead` episodes are submitted at once."""
    running: deque[tuple[int, Future[None]]] = deque()
    for episode in episodes:
        running.append((episode, pool.submit(work, episode)))
        if len(running) >= ahead:
            first, result = running.popleft()
            result.result()
            yield first
    for first, result in running:
        result.result()
        yield first


def _complete(store: EpisodeStore, folder: Path, kinds: Mapping[str, _Kind], about: Mapping[str, Any]) -> None:
    """Write store.json, and seal it with the digests."""
    steps = int(store.lengths.sum())
    arrays = {
        name: {"dtype": kind.dtype.str, "shape": [steps, *kind.shape], "rows": kind.rows}
        for name, kind in kinds.items()
    }
    facts = [field.name for field in fields(EpisodeInfo)]
    infos = [{fact: getattr(info, fact) for fact in facts} for info in store.episodes]
    text = json.dumps({"layout": LAYOUT, **about, "arrays": arrays, "episodes": infos}).encode()
    write_atomically(folder / STORE, text)
    seal(folder, [STORE, *(f"{name}.digests" for name in kinds)])
