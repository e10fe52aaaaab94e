"""The training store: every frame decoded once, at training resolution, memory-mapped, hashed.

A store is a folder named by its key, the digest of the source's fingerprint, the size, the resize rule, the
cameras and the version of this layout; so a changed source finds no store and one is built. It holds

    frames-0.bin ...    uint8 [steps, H, W, 3], one file a camera, all episodes end to end
    timestamps.bin      float64 [steps]
    actions.bin         float32 [steps, A], where the source has actions
    state.bin           float32 [steps, S], where the source has state
    rewards.bin         float32 [steps], where the source has rewards
    store.json          each episode's length, instruction, rate and success, and SHA-256 digests of every
                        file and of each episode's part of it
    store.json.sha256   the digest of store.json, as `sha256sum --check` reads it

Each episode's bytes are compared with their digest when they are first touched after opening, and not again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from counterpoint.data.cache_build import LAYOUT, Fit, build, digest_line
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["CachedStore", "cache_root", "cached"]


def cache_root() -> Path:
    """Where training stores are kept: `COUNTERPOINT_CACHE`, or else `~/.cache/counterpoint`."""
    return Path(os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint")


def cached(
    store: EpisodeStore,
    *,
    size: int,
    fit: Fit = "square",
    root: str | Path | None = None,
    cameras: Sequence[str] | None = None,
    progress: bool = True,
) -> CachedStore:
    """Open the training store of `store` at `size`, building it first where it is missing or damaged.

    It is built in a folder beside its place and renamed when complete, under a lock: a killed build leaves
    nothing that looks like a store, and of several processes that ask at once one builds and the others wait.

    Args:
        store: The source.
        size: Training resolution in pixels.
        fit: How frames come to that size: `square` squeezes them to size x size, `shorter` keeps the aspect.
        root: Folder of all training stores; `cache_root()` by default.
        cameras: Which cameras to keep, in order; all by default.
        progress: Show a progress bar on standard error while building.

    Raises:
        BadInputError: When a camera is unknown, the disk is too small, or the source itself is damaged.
    """
    names = tuple(store.cameras if cameras is None else cameras)
    for camera in names:
        if camera not in store.cameras:
            raise _unknown_camera(camera, store.cameras)
    if isinstance(store, CachedStore) and (store.size, store.fit, store.cameras) == (size, fit, names):
        return store
    key = hashlib.sha256(json.dumps([LAYOUT, store.fingerprint, size, fit, names]).encode()).hexdigest()
    folder = Path(root or cache_root()).expanduser() / key
    sound = _open_sound(folder)  # needs no lock, so that a root that cannot be written serves
    if sound:
        return sound
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{key}.lock")):
        sound = _open_sound(folder)
        if sound:
            return sound
        for leftover in folder.parent.glob(f"{key}.building-*"):  # of a killed build: the lock is ours
            shutil.rmtree(leftover)
        if folder.exists():  # damaged
            shutil.rmtree(folder)
        building = folder.with_name(f"{key}.building-{os.getpid()}")
        try:
            build(store, building, key=key, size=size, fit=fit, cameras=names, progress=progress)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)  # gone already when the build succeeded
    return CachedStore(folder)


class CachedStore:
    """A training store, read through the memory map.

    Args:
        path: A folder that `cached` built.

    Raises:
        BadInputError: When the folder is no training store, or store.json or a file's length has changed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        meta = _read_meta(self.path)
        self.fingerprint: str = meta["key"]
        self.cameras: tuple[str, ...] = tuple(meta["cameras"])
        self.size: int = meta["size"]
        self.fit: Fit = meta["fit"]
        self.episodes = tuple(
            EpisodeInfo(e["length"], e["instruction"], e["fps"], e["success"]) for e in meta["episodes"]
        )
        self._starts = [0, *np.cumsum([info.length for info in self.episodes]).tolist()]
        self._firsts = np.array(self._starts[:-1], np.int64)
        self._arrays = {name: self._map(name, about) for name, about in meta["arrays"].items()}
        self._digests = {name: [e["sha256"][name] for e in meta["episodes"]] for name in self._arrays}
        # One byte an episode and array: 1 once its bytes were found equal to their digest.
        self._sound = {name: bytearray(len(self.episodes)) for name in self._arrays}
        self._names: dict[str | None, str] = {
            camera: f"frames-{number}" for number, camera in enumerate(self.cameras)
        }
        self._names[None] = "frames-0"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by path: a worker process maps the files itself."""
        return CachedStore, (self.path,)

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3].

        Raises:
            BadInputError: When the camera is unknown, or the episode's bytes are damaged.
        """
        frames: Array = self._part(self._frames_name(camera), episode)[indices]
        return frames

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self._part("timestamps", episode).copy()

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self._part("actions", episode).copy() if "actions" in self._arrays else None

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self._part("state", episode).copy() if "state" in self._arrays else None

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self._part("rewards", episode).copy() if "rewards" in self._arrays else None

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """Frames of many episodes, each copied once: see `counterpoint.data.gather`.

        Raises:
            BadInputError: When the camera is unknown, or the bytes of one of the episodes are damaged.
        """
        name = self._frames_name(camera)
        sound = np.frombuffer(self._sound[name], np.uint8)
        for episode in np.unique(episodes[sound[episodes] == 0]).tolist():
            self._compare(name, episode)
        rows = self._firsts[episodes][:, None] + steps
        # The rows are in range; told to look, numpy would copy twice.
        np.take(self._arrays[name], rows, axis=0, out=out, mode="clip")

    def verify(self) -> None:
        """Compare every byte with its digest, whatever was touched before.

        Raises:
            BadInputError: At the first damage, naming file and episode.
        """
        for damage in self.damage():
            raise damage

    def damage(self) -> list[BadInputError]:
        """Everything that differs from what was written; nothing where the store is whole."""
        try:
            store = CachedStore(self.path)  # anew: store.json and the lengths of files may have changed
        except BadInputError as error:
            return [error]
        found: list[BadInputError] = []
        for name in store._arrays:
            for episode in range(len(store.episodes)):
                try:
                    store._compare(name, episode)
                except BadInputError as error:
                    found.append(error)
        return found

    def _map(self, name: str, about: Mapping[str, Any]) -> Array:
        path, dtype, shape = self.path / f"{name}.bin", np.dtype(about["dtype"]), tuple(about["shape"])
        expected = dtype.itemsize * int(np.prod(shape))
        found = path.stat().st_size if path.is_file() else None
        if found != expected:
            raise _damage(path, "no file" if found is None else f"{found} bytes", f"{expected} bytes")
        if not expected:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        # As a plain view, because indexing a memmap object itself is slow.
        return np.asarray(np.memmap(path, dtype, mode="r", shape=shape))

    def _frames_name(self, camera: str | None) -> str:
        name = self._names.get(camera, "")
        if name not in self._arrays:
            raise _unknown_camera(str(camera), self.cameras)
        return name

    def _part(self, name: str, episode: int) -> Array:
        if not self._sound[name][episode]:
            self._compare(name, episode)
        return self._arrays[name][self._starts[episode] : self._starts[episode + 1]]

    def _compare(self, name: str, episode: int) -> None:
        part = self._arrays[name][self._starts[episode] : self._starts[episode + 1]]
        found, expected = hashlib.sha256(part.data).hexdigest(), self._digests[name][episode]
        if found != expected:
            raise _damage(
                self.path / f"{name}.bin",
                f"SHA-256 {found[:12]}... of episode {episode}",
                f"{expected[:12]}...",
            )
        self._sound[name][episode] = 1


def _read_meta(folder: Path) -> dict[str, Any]:
    path, sidecar = folder / "store.json", folder / "store.json.sha256"
    if not path.is_file() or not sidecar.is_file():
        raise _damage(folder, "store.json or store.json.sha256 missing", "a training store")
    text = path.read_bytes()
    if sidecar.read_bytes() != digest_line(text):
        raise _damage(path, "bytes that disagree with store.json.sha256", "what was written")
    meta: dict[str, Any] = json.loads(text)
    if meta["layout"] != LAYOUT:
        raise _damage(path, f"layout {meta['layout']!r}", f"layout {LAYOUT!r}")
    return meta


def _open_sound(folder: Path) -> CachedStore | None:
    """The store where it stands complete; digests of the arrays are compared later, episode by episode."""
    if not folder.exists():
        return None
    try:
        return CachedStore(folder)
    except BadInputError:
        return None


def _damage(where: Path, found: str, expected: str) -> BadInputError:
    folder = where if where.is_dir() else where.parent
    return BadInputError(
        where, found=found, expected=expected, mend=f"delete {folder}: it is built again when next used"
    )


def _unknown_camera(camera: str, known: Sequence[str]) -> BadInputError:
    return BadInputError(
        "camera", found=repr(camera), expected=f"one of {list(known)}", mend="name a camera the data has"
    )
