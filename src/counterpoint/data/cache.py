"""The training store: every frame decoded once, at training resolution, memory-mapped, hashed.

A store is a folder named by its key, the digest of the source's fingerprint, the size, the resize rule, the
cameras and the version of this layout. It holds

    frames-0.bin ...    uint8 [steps, H, W, 3], one file a camera, all episodes end to end
    timestamps.bin      float64 [steps]
    actions.bin         float32 [steps, A], where the source has actions
    state.bin           float32 [steps, S], where the source has state; likewise environment_state.bin
    rewards.bin         float32 [steps], where the source has rewards
    store.json          each episode's length, instruction, rate and success, and SHA-256 digests of every
                        file and of each episode's part of it
    store.json.sha256   the digest of store.json, as `sha256sum --check` reads it

Each episode's bytes are compared with their digest when they are first touched after opening.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.resize import Fit, ResizedStore, resize
from counterpoint.data.store import EpisodeStore, check_camera, frames_in_chunks, spread, vectors
from counterpoint.data.views import SubsetStore
from counterpoint.errors import BadInputError, require
from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar

Decode = Literal["once", "always"]
"""`once` decodes every frame into a training store; `always` decodes the frames of a batch, again each time."""

LAYOUT = "counterpoint-store-2"
"""The version of the folder's layout; part of every key."""


def build(
    store: EpisodeStore, folder: Path, *, key: str, size: int, fit: Fit, cameras: tuple[str, ...], progress: bool
) -> None:
    """Write the training store of `store` into `folder`, which must not exist.

    Raises:
        BadInputError: When the disk is too small, episodes differ in parts or shapes, or the source is bad.
    """
    _check_room(store, folder.parent, size, cameras)
    folder.mkdir()
    episodes: list[dict[str, Any]] = []
    files: dict[str, Any] = {}
    whole: dict[str, Any] = {}  # the digest of each file
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}  # dtype and shape of one step of each file
    total = int(store.lengths.sum())
    with ExitStack() as stack:
        bar = ProgressBar("Building the training store", total * max(1, len(cameras)), "frames") if progress else None
        bar = bar and stack.enter_context(bar)
        for number, info in enumerate(store.episodes):
            parts: dict[str, Iterable[Array]] = {name: [value] for name, value in vectors(store, number).items()}
            parts |= {f"frames-{c}": frames_in_chunks(store, number, camera) for c, camera in enumerate(cameras)}
            found, hint = f"the parts {sorted(parts)}", "keep only episodes that have the same parts"
            same = not number or parts.keys() == files.keys()
            require(same, f"episode {number}", found, f"{sorted(files)}, as in episode 0", hint)
            digests = {name: hashlib.sha256() for name in parts}
            for name, chunks in parts.items():
                if not number:
                    files[name] = stack.enter_context((folder / f"{name}.bin").open("wb"))
                    whole[name] = hashlib.sha256()
                for chunk in chunks:
                    rows = resize(chunk, size, fit) if name.startswith("frames") else chunk
                    kind = rows.dtype.newbyteorder("<").str, rows.shape[1:]
                    expected = f"{kinds.setdefault(name, kind)}, as in the episodes before"
                    where, hint = f"episode {number}, {name}", "leave the episode out, or use fit='square'"
                    require(kind == kinds[name], where, f"{kind} a step", expected, hint)
                    data = np.ascontiguousarray(rows, dtype=kind[0]).tobytes()
                    for take in (whole[name].update, digests[name].update, files[name].write):
                        take(data)
                    if bar is not None and name.startswith("frames"):
                        bar.advance(len(rows))
            episodes.append(asdict(info) | {"sha256": {name: digest.hexdigest() for name, digest in digests.items()}})
        for file in files.values():
            _flush(file)
    arrays = {
        name: {"dtype": dtype, "shape": [total, *row], "sha256": whole[name].hexdigest()}
        for name, (dtype, row) in kinds.items()
    }
    meta = {"layout": LAYOUT, "key": key, "size": size, "fit": fit, "cameras": cameras, "arrays": arrays}
    text = json.dumps(meta | {"episodes": episodes}, indent=1).encode()
    for path, data in ((folder / "store.json", text), (folder / "store.json.sha256", digest_line(text))):
        with path.open("wb") as file:
            file.write(data)
            _flush(file)


def digest_line(text: bytes) -> bytes:
    """Return the content of store.json.sha256 for a store.json of these bytes; `sha256sum --check` reads it."""
    return f"{hashlib.sha256(text).hexdigest()}  store.json\n".encode()


def _flush(file: Any) -> None:
    """Write the bytes to the disk before a rename makes them a store."""
    file.flush()
    os.fsync(file.fileno())


def _check_room(store: EpisodeStore, root: Path, size: int, cameras: tuple[str, ...]) -> None:
    needed = sum(info.length for info in store.episodes) * size * size * 3 * len(cameras)
    free = shutil.disk_usage(root).free
    expected, hint = f"{needed / 1e9:.1f} GB for the training store", "set COUNTERPOINT_CACHE to a larger disk"
    require(needed <= free, root, f"{free / 1e9:.1f} GB free", expected, hint)


def cache_root() -> Path:
    """Return the folder of training stores: `COUNTERPOINT_CACHE`, or else `~/.cache/counterpoint`."""
    return Path(os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint")


def prepared(
    store: EpisodeStore,
    *,
    decode: Decode,
    size: int,
    fit: Fit = "square",
    root: str | Path | None = None,
    cameras: Sequence[str] | None = None,
) -> EpisodeStore:
    """Return the store with its frames at training size, as the recipes' key `data.decode` says; see `cached`."""
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
    """Open the training store of `store` at `size`, building it first where it is missing or damaged.

    It is built in a folder of another name and renamed when complete, under a lock: a killed build leaves
    nothing that looks like a store, and of several processes one builds and the others wait.

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
        check_camera(camera, store.cameras)
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
) -> CachedStore:
    """Open the store of `store`'s features, computing them first where they are missing or damaged.

    Each episode's features are written when they are done, so that an interrupted call continues.

    Args:
        store: The source; frames are read as recorded.
        embed: (episode, frames uint8 [N, H, W, 3]) -> float32 [N, A, E], in any process alike.
        digest: Digest of everything that decides what `embed` returns.
        camera: The view; the store's first by default.
        root: Folder of all training stores; `cache_root()` by default.

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
        with ProgressBar("Computing features", int(store.lengths.sum()), "frames") as bar:
            for episode, info in enumerate(store.episodes):
                part = parts / f"{episode}.npy"
                if not part.is_file():
                    rows = [embed(episode, chunk) for chunk in frames_in_chunks(store, episode, name)]
                    buffer = io.BytesIO()
                    np.save(buffer, np.concatenate(rows).astype(np.float32))
                    write_atomically(part, buffer.getvalue())
                bar.advance(info.length)
        build(_WithParts(store, parts), building, key=key, size=0, fit="square", cameras=(), progress=False)

    found = _built(folder, write)
    shutil.rmtree(parts, ignore_errors=True)
    return found


class _WithParts(SubsetStore):
    """A store with the features in a folder of parts."""

    def __init__(self, store: EpisodeStore, parts: Path) -> None:
        super().__init__(store, range(len(store.episodes)))
        self._parts = parts

    def _values(self, source: str, episode: int) -> Any:
        if source == "features":
            return np.load(self._parts / f"{episode}.npy")
        return super()._values(source, episode)


def _built(folder: Path, write: Callable[[Path], None]) -> CachedStore:
    """Open a store, which `write` first makes in a folder of another name where it is missing or damaged."""
    if sound := _open_sound(folder):  # needs no lock, so that a root that cannot be written serves
        return sound
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if sound := _open_sound(folder):
            return sound
        for leftover in folder.parent.glob(f"{folder.name}.building-*"):  # of a killed build: the lock is ours
            shutil.rmtree(leftover)
        if folder.exists():  # damaged
            shutil.rmtree(folder)
        building = folder.with_name(f"{folder.name}.building-{os.getpid()}")
        try:
            write(building)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)  # gone already when the build succeeded
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
        meta = _read_meta(self.path)
        self._key: str = meta["key"]
        self.cameras: tuple[str, ...] = tuple(meta["cameras"])
        self.size: int = meta["size"]
        self.fit: Fit = meta["fit"]
        facts = [field.name for field in fields(EpisodeInfo)]
        self.episodes = tuple(EpisodeInfo(*(entry[fact] for fact in facts)) for entry in meta["episodes"])
        self._bounds: list[int] = self._starts.tolist()  # plain numbers index faster
        self._arrays = {name: self._map(name, about) for name, about in meta["arrays"].items()}
        self._digests = {name: [e["sha256"][name] for e in meta["episodes"]] for name in self._arrays}
        # One byte an episode and array: 1 once its bytes were found equal to their digest.
        self._sound = {name: bytearray(len(self.episodes)) for name in self._arrays}
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
        """Return uint8 [N, H, W, 3]; refuse an unknown camera, and damaged bytes."""
        name = self._names.get(camera) or self._frames_name(camera)
        return self._part(name, episode)[indices]

    def _values(self, source: str, episode: int) -> Array | None:
        return self._part(source, episode).copy() if source in self._arrays else None

    def column(self, source: str) -> Array:
        """Return a vector of all steps through the memory map, where it is stored."""
        if source not in self._arrays:
            return super().column(source)
        for episode in range(len(self.episodes)):
            self._part(source, episode)
        return self._arrays[source]

    def gather(
        self, source: str, episodes: Array, steps: Array, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read steps of many episodes, each copied once; refuse an unknown camera, and damaged bytes."""
        if source != "frames":
            return super().gather(source, episodes, steps)
        name = self._frames_name(camera)
        sound = np.frombuffer(self._sound[name], np.uint8)
        for episode in np.unique(episodes[sound[episodes] == 0]).tolist():
            self._compare(name, episode)
        array = self._arrays[name]
        out = np.empty((*steps.shape, *array.shape[1:]), np.uint8) if out is None else out
        # The rows are in range; with mode "raise" numpy would copy twice.
        rows = spread(self._starts[episodes], steps) + steps
        return np.take(array, rows, axis=0, out=out, mode="clip")

    def verify(self) -> None:
        """Compare every byte with its digest, and raise the first damage, which names file and episode."""
        for damage in self.damage():
            raise damage

    def damage(self) -> list[BadInputError]:
        """Return everything that differs from its digest."""
        try:
            store = CachedStore(self.path)  # anew: store.json and the lengths of files may have changed
        except BadInputError as error:
            return [error]
        found: list[BadInputError] = []
        for name, episode in product(store._arrays, range(len(store.episodes))):
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
            check_camera(str(camera), self.cameras)
        return name

    def _part(self, name: str, episode: int) -> Array:
        if not self._sound[name][episode]:
            self._compare(name, episode)
        return self._arrays[name][self._bounds[episode] : self._bounds[episode + 1]]

    def _compare(self, name: str, episode: int) -> None:
        part = self._arrays[name][self._bounds[episode] : self._bounds[episode + 1]]
        found, expected = hashlib.sha256(part.data).hexdigest(), self._digests[name][episode]
        if found != expected:
            found = f"SHA-256 {found[:12]}... of episode {episode}"
            raise _damage(self.path / f"{name}.bin", found, f"{expected[:12]}...")
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
    """Open a complete store; digests of the arrays are compared later, episode by episode."""
    try:
        return CachedStore(folder) if folder.exists() else None
    except BadInputError:
        return None


def _damage(where: Path, found: str, expected: str) -> BadInputError:
    folder = where if where.is_dir() else where.parent
    return BadInputError(where, found, expected, f"delete {folder}: it is built again when next used")
