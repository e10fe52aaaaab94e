"""The training store: all frames, decoded once at training resolution, in memory-mapped files with digests.

A store is a folder named by its key, which is a digest of the source's fingerprint, the size, the resize rule, the
cameras and the version of this layout. It holds

    frames-0.bin ...    uint8 [steps, H, W, 3], one file per camera, all episodes end to end
    timestamps.bin      float64 [steps]
    actions.bin         float32 [steps, A], where the source has actions
    state.bin           float32 [steps, S], where the source has state; environment_state.bin too
    rewards.bin         float32 [steps], where the source has rewards
    *.digests           for each .bin file: SHA-256 of every 64 KiB of an episode, or of every step if steps are larger
    store.json          each episode's length, instruction, rate and success; the dtype and shape of each file, and
                        how many steps one digest covers
    SHA256SUMS          the digests of store.json and of the *.digests files, as `sha256sum --check` reads them

Opening a store checks the files in SHA256SUMS. Each block of steps is checked against its digest on first access;
blocks that are not read are not checked.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file, save

from counterpoint.data.build import DIGEST, LAYOUT, STORE, build, digest_starts, in_order
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.resize import Fit, ResizedStore
from counterpoint.data.store import EpisodeStore, check_camera, frames_in_chunks, spread
from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import BadInputError
from counterpoint.files import cache_root, remove
from counterpoint.folder import check_part, lock, mend, read_part, remove_unfinished, write_part
from counterpoint.progress import ProgressBar

Decode = Literal["once", "always"]
"""`once` decodes all frames into a training store; `always` decodes frames whenever a batch reads them."""


def prepared(
    store: EpisodeStore,
    *,
    decode: Decode,
    size: int,
    fit: Fit = "square",
    root: str | Path | None = None,
    cameras: Sequence[str] | None = None,
) -> EpisodeStore:
    """Return the store with its frames at training size, decoded as the recipe key `data.decode` says; see `cached`."""
    if decode == "always":
        return ResizedStore(store, size, fit, cameras)
    return cached(store, size=size, fit=fit, root=root or None, cameras=cameras)


def cached(
    store: EpisodeStore,
    *,
    size: int,
    fit: Fit = "square",
    root: str | Path | None = None,
    cameras: Sequence[str] | None = None,
    progress: bool = True,
) -> CachedStore:
    """Open the training store of `store` at `size`; build it first if it is missing or damaged.

    The store is built under a lock, in a folder of another name that is renamed when complete. A killed build leaves
    nothing that looks like a store, and the next call continues it. If several processes ask for a store at the same
    time, one process builds it while the rest wait.

    Args:
        store: The source.
        size: Training resolution in pixels.
        fit: The resize rule.
        root: Folder of all training stores; `cache_root()` by default.
        cameras: The cameras to keep, in order; all by default.
        progress: Show a progress bar on standard error while building.

    Raises:
        BadInputError: When a camera is unknown, the disk is too small, or the source itself is damaged.
    """
    names = tuple(store.cameras if cameras is None else cameras)
    for camera in names:
        check_camera(camera, store)
    if isinstance(store, CachedStore) and (store.size, store.fit, store.cameras) == (size, fit, names):
        return store
    key = hashlib.sha256(json.dumps([LAYOUT, store.fingerprint, size, fit, names]).encode()).hexdigest()

    def write(folder: Path) -> None:
        build(store, folder, key=key, size=size, fit=fit, cameras=names, progress=progress)

    return _built(Path(root or cache_root()).expanduser() / key, write)


def featured(
    store: EpisodeStore,
    embed: Callable[[int, Array], Array],
    *,
    digest: str,
    camera: str | None = None,
    root: str | Path | None = None,
    threads: int = 1,
) -> CachedStore:
    """Open a training store with the features of `store`; compute them first if they are missing or damaged.

    Each episode's features are written when they are done, so that an interrupted call can be continued.

    Args:
        store: The source; frames are read as recorded.
        embed: Takes an episode and frames uint8 [N, H, W, 3] and returns float32 [N, A, E], the same in every process.
        digest: Digest of all settings and weights on which the values of `embed` depend.
        camera: The camera; the store's first by default.
        root: Folder of all training stores; `cache_root()` by default.
        threads: Number of episodes that are decoded and embedded at the same time.

    Returns:
        A store with the source's vectors and `features` [T, A, E], without frames.

    Raises:
        BadInputError: When the disk is too small, or the source is damaged.
    """
    name = camera or store.cameras[0]
    key = hashlib.sha256(json.dumps([LAYOUT, store.fingerprint, digest, name]).encode()).hexdigest()
    folder = Path(root or cache_root()).expanduser() / key
    parts = folder.with_name(f"{key}.parts")

    def write(building: Path) -> None:
        parts.mkdir(exist_ok=True)
        whole = mend(parts)
        missing = [episode for episode in range(len(store.episodes)) if _part(episode) not in whole]
        total = int(store.lengths.sum())
        done = total - int(store.lengths[missing].sum())

        def compute(episode: int) -> None:
            rows = [embed(episode, chunk) for chunk in frames_in_chunks(store, episode, name)]
            write_part(parts, _part(episode), save({"features": np.concatenate(rows).astype(np.float32)}))

        bar = ProgressBar("Computing features", total, "frames", done=done)
        with bar, ThreadPoolExecutor(threads) as pool:
            for episode in in_order(pool, missing, compute, 2 * threads):
                bar.advance(store.episodes[episode].length)
        build(_WithParts(store, parts), building, key=key, size=0, fit="square", cameras=(), progress=False)

    found = _built(folder, write)
    shutil.rmtree(parts, ignore_errors=True)
    return found


class _WithParts(SubsetStore):
    """A store to which `features` are added, from a folder with one file per episode."""

    def __init__(self, store: EpisodeStore, parts: Path) -> None:
        super().__init__(store, range(len(store.episodes)))
        self._parts = parts

    def _values(self, source: str, episode: int) -> Any:
        if source == "features":
            return load_file(self._parts / _part(episode))["features"]
        return super()._values(source, episode)


def _part(episode: int) -> str:
    # Threads read the parts; the header of an .npy file is parsed by `ast`, which may fail in several threads at once
    # (Python 3.11: "SystemError: AST constructor recursion depth mismatch").
    return f"{episode}.safetensors"


def _built(folder: Path, write: Callable[[Path], None]) -> CachedStore:
    """Open a store; if it is missing or damaged, `write` first builds it in a folder of another name."""
    if sound := _open_sound(folder):  # needs no lock, so a read-only root works
        return sound
    with lock(folder.with_name(f"{folder.name}.lock"), "builds", wait=True):
        if sound := _open_sound(folder):
            return sound
        remove(folder)  # damaged
        building = folder.with_name(f"{folder.name}.building")  # continues a killed build: this process holds the lock
        try:
            if not _open_sound(building):
                write(building)
        except BadInputError:  # a repaired source has another key and cannot continue this build
            shutil.rmtree(building, ignore_errors=True)
            raise
        remove_unfinished(building)
        building.rename(folder)
    return CachedStore(folder)


class CachedStore(EpisodeStore):
    """A training store, read through the memory map.

    Args:
        path: A folder that `cached` built.

    Raises:
        BadInputError: When the folder is no training store, or store.json or a file's length has changed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._open(_read_meta(self.path))
        except BadInputError:
            raise
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _damage(self.path, f"damaged content ({error})", "a training store") from error

    def _open(self, meta: dict[str, Any]) -> None:
        self._key: str = meta["key"]
        self.cameras: tuple[str, ...] = tuple(meta["cameras"])
        self.size: int = meta["size"]
        self.fit: Fit = meta["fit"]
        facts = [field.name for field in fields(EpisodeInfo)]
        entries = [
            entry | {"segments": tuple(map(tuple, entry["segments"])), "wordings": tuple(entry.get("wordings", ()))}
            for entry in meta["episodes"]
        ]
        self.episodes = tuple(EpisodeInfo(*(entry[fact] for fact in facts)) for entry in entries)
        self._bounds: list[int] = self._starts.tolist()  # plain numbers index faster
        about = meta["arrays"]
        self._arrays = {name: self._map(f"{name}.bin", entry["dtype"], entry["shape"]) for name, entry in about.items()}
        self._digests = {name: _Digests(self, name, entry["rows"]) for name, entry in about.items()}
        self._names: dict[str | None, str] = {camera: f"frames-{number}" for number, camera in enumerate(self.cameras)}
        self._names[None] = "frames-0"

    @property
    def fingerprint(self) -> str:
        """The folder's key, which covers the source's fingerprint and how frames were resized."""
        return self._key

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by path: a worker process maps the files itself."""
        return CachedStore, (self.path,)

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]; refuse an unknown camera, and damaged bytes."""
        name = self._names.get(camera) or self._frames_name(camera)
        first, stop = self._bounds[episode], self._bounds[episode + 1]
        self._digests[name].check(episode, np.arange(stop - first)[indices])
        return self._arrays[name][first:stop][indices]

    def _values(self, source: str, episode: int) -> Array | None:
        if source not in self._arrays:
            return None
        self._digests[source].check(episode, np.arange(self.episodes[episode].length))
        values: Array = self._arrays[source][self._bounds[episode] : self._bounds[episode + 1]].copy()
        return values

    def column(self, source: str) -> Array:
        """Return one of `VECTORS` for all steps; if the store has it, the result is a memory map, not a copy."""
        if source not in self._arrays:
            return super().column(source)
        for episode, length in enumerate(self.lengths.tolist()):
            self._digests[source].check(episode, np.arange(length))
        return self._arrays[source]

    def gather(
        self, source: str, episodes: Array, steps: Array, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read steps of many episodes and copy each step once; refuse an unknown camera, and damaged bytes."""
        if source != "frames":
            return super().gather(source, episodes, steps)
        name = self._frames_name(camera)
        self._digests[name].check(spread(episodes, steps), steps)
        array = self._arrays[name]
        out = np.empty((*steps.shape, *array.shape[1:]), np.uint8) if out is None else out
        # The rows are in range; with mode "raise" numpy would copy twice.
        rows = spread(self._starts[episodes], steps) + steps
        return np.take(array, rows, axis=0, out=out, mode="clip")

    def verify(self) -> None:
        """Compare all bytes with their digests; raise an error that names file and episode of the first damage."""
        for damage in self.damage():
            raise damage

    def damage(self) -> list[BadInputError]:
        """Return an error for each file or episode that differs from its digest."""
        try:
            store = CachedStore(self.path)  # reopened: store.json and the lengths of files may have changed
        except BadInputError as error:
            return [error]
        found: list[BadInputError] = []
        for digests, episode in product(store._digests.values(), range(len(store.episodes))):
            try:
                digests.check(episode, np.arange(store.episodes[episode].length))
            except BadInputError as error:
                found.append(error)
        return found

    def _map(self, name: str, kind: str, shape: Sequence[int]) -> Array:
        path, dtype = self.path / name, np.dtype(kind)
        expected = dtype.itemsize * int(np.prod(shape))
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            raise _damage(path, "no file" if found is None else f"{found} bytes", f"{expected} bytes")
        if not expected:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        # As a plain view, because indexing a memmap object itself is slow.
        return np.asarray(np.memmap(path, dtype, mode="r", shape=tuple(shape)))

    def _frames_name(self, camera: str | None) -> str:
        name = self._names.get(camera, "")
        if name not in self._arrays:
            check_camera(str(camera), self)
        return name


class _Digests:
    """The digests of one file of a store, with a mark for each digest that has been checked.

    Args:
        store: The store.
        name: The file, without its ending.
        rows: Number of steps that one digest covers.
    """

    def __init__(self, store: CachedStore, name: str, rows: int) -> None:
        self._path, self._array = store.path / f"{name}.bin", store._arrays[name]
        self._rows, self._steps, self._firsts = rows, store._starts, digest_starts(store.lengths, rows)
        check_part(store.path, f"{name}.digests", _damage(store.path, "", "").hint)
        self._digests = store._map(f"{name}.digests", "u1", (int(self._firsts[-1]), DIGEST))
        # One byte per digest: 1 once its block has matched. A forked process shares these bytes until it writes.
        self._sound = np.zeros(len(self._digests), np.uint8)

    def check(self, episodes: int | Array, steps: Array) -> None:
        """Compare the blocks that hold these steps with their digests, except blocks that have been compared before.

        Args:
            episodes: The episode of each step; broadcasts with `steps`.
            steps: Steps inside their episodes.
        """
        numbers = self._firsts[episodes] + steps // self._rows
        if self._sound[numbers].all():
            return
        owners = np.broadcast_to(episodes, numbers.shape)
        new = self._sound[numbers] == 0
        for number, at in zip(*np.unique(numbers[new], return_index=True), strict=True):
            self._compare(int(number), int(owners[new][at]))

    def _compare(self, number: int, episode: int) -> None:
        first = int(self._steps[episode]) + (number - int(self._firsts[episode])) * self._rows
        part = self._array[first : min(first + self._rows, int(self._steps[episode + 1]))]
        found, expected = hashlib.sha256(part.data).hexdigest(), self._digests[number].tobytes().hex()
        if found != expected:
            raise _damage(self._path, f"SHA-256 {found[:12]}... of a part of episode {episode}", f"{expected[:12]}...")
        self._sound[number] = 1


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / STORE
    if not path.is_file():
        raise _damage(folder, f"no {STORE}", "a training store")
    meta: dict[str, Any] = json.loads(read_part(folder, STORE, _damage(path, "", "").hint))
    if meta["layout"] != LAYOUT:
        raise _damage(path, f"layout {meta['layout']!r}", f"layout {LAYOUT!r}")
    return meta


def _open_sound(folder: Path) -> CachedStore | None:
    """Open a store; return `None` if it is missing or damaged. Digests of the arrays are compared later, on access."""
    try:
        return CachedStore(folder) if folder.exists() else None
    except BadInputError:
        return None


def _damage(where: Path, found: str, expected: str) -> BadInputError:
    folder = where if where.is_dir() else where.parent
    return BadInputError(where, found, expected, f"delete {folder}: it is built again when next used")
