"""Frames of many episodes at once, copied straight into the batch.

A store that can do so has `gather_frames` (the training store, and stores made of others); of any other store the
frames are read episode by episode.

`EpisodeStore`: random access to many episodes, whatever they are kept in.

Every reader in `counterpoint.data.formats` and the training store in `counterpoint.data.cache` has this face;
samplers, loaders, rewards and reports know nothing else.

Several stores (domains) as one: actions padded to one width with a mask, tasks numbered.

A store reduced to one of its cameras.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy.typing import NDArray

from counterpoint.data.episode import Array, Episode, EpisodeInfo
from counterpoint.errors import BadInputError

__all__ = [
    "Buffers",
    "EpisodeStore",
    "GatheringStore",
    "MemoryStore",
    "MultiTaskStore",
    "OneCameraStore",
    "SubsetStore",
    "Task",
    "action_mask",
    "gather_frames",
    "other_size",
    "read_episode",
    "task_numbers",
    "task_table",
]


Places = NDArray[np.int64]
Pixels = NDArray[np.uint8]


@runtime_checkable
class GatheringStore(Protocol):
    """A store that reads many episodes in one call."""

    def gather_frames(self, episodes: Places, steps: Places, camera: str | None, out: Pixels) -> None:
        """See the function `gather_frames`."""


def gather_frames(
    store: EpisodeStore,
    episodes: Int[Places, " N"],
    steps: Int[Places, "N S"],
    camera: str | None,
    out: UInt8[Pixels, "N S H W 3"],
) -> None:
    """Read S frames of each of N episodes.

    Args:
        store: Where from.
        episodes: Which; any order, repeats allowed.
        steps: Which steps of each, in range.
        camera: Which camera; the store's first where `None`.
        out: Where to, contiguous.

    Raises:
        BadInputError: When an episode's frames are of another size than `out`.
    """
    if isinstance(store, GatheringStore):
        store.gather_frames(episodes, steps, camera, out)
        return
    order = np.argsort(episodes, kind="stable")
    firsts = np.flatnonzero(np.diff(episodes[order], prepend=-1))
    for rows in np.split(order, firsts[1:]):
        frames = store.frames(int(episodes[rows[0]]), steps[rows].reshape(-1), camera)
        if frames.shape[1:] != out.shape[2:]:
            raise other_size(int(episodes[rows[0]]), frames.shape[1:3], out.shape[2:4])
        out[rows] = frames.reshape(len(rows), *out.shape[1:])


def other_size(episode: int, found: tuple[int, ...], expected: tuple[int, ...]) -> BadInputError:
    """An episode with frames of another height and width than those before it."""
    return BadInputError(
        f"episode {episode}",
        f"frames of {found[0]} x {found[1]}",
        f"{expected[0]} x {expected[1]}, as in the other episodes",
        "make a training store of one size (`counterpoint.data.cache.cached`)",
    )


class Buffers:
    """Arrays for batches, given out again once nobody holds them.

    Fresh memory of a batch's size comes from the system page by page, which takes longer than the copying into it. A
    tensor made of an array holds it, and so does every view of either: an array without holders is free.
    """

    def __init__(self) -> None:
        self._arrays: list[Pixels] = []

    def get(self, shape: tuple[int, ...]) -> Pixels:
        """An array of this shape with anything in it."""
        for index in range(len(self._arrays)):
            # Two references: the list's, and the one `getrefcount` is called with.
            if sys.getrefcount(self._arrays[index]) == 2:
                if self._arrays[index].shape == shape:
                    return self._arrays[index]
                del self._arrays[index]
                break
        self._arrays = [array for array in self._arrays if array.shape == shape][-7:]
        self._arrays.append(np.empty(shape, np.uint8))
        return self._arrays[-1]

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        """Another process starts with none."""
        return Buffers, ()


@runtime_checkable
class EpisodeStore(Protocol):
    """Lengths first, pixels on demand."""

    @property
    def episodes(self) -> Sequence[EpisodeInfo]:
        """What is known of each episode, in order, with nothing decoded."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """Camera names; the first is the default."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the content behind the store does."""

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3] at the N step `indices` (in range, any order, repeats allowed)."""

    def timestamps(self, episode: int) -> Array:
        """float64 [T], seconds since the episode's start."""

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], the reward of each step's action, or `None`."""


def read_episode(store: EpisodeStore, episode: int) -> Episode:
    """Decode one whole episode."""
    info = store.episodes[episode]
    steps = np.arange(info.length)
    return Episode(
        frames={camera: store.frames(episode, steps, camera) for camera in store.cameras},
        instruction=info.instruction,
        timestamps=store.timestamps(episode),
        actions=store.actions(episode),
        state=store.state(episode),
        rewards=store.rewards(episode),
        success=info.success,
    )


class MemoryStore:
    """Episodes held in memory.

    Args:
        episodes: At least one episode; all with the same cameras.
        fps: Frames a second, told to whoever writes the episodes to disk.

    Raises:
        BadInputError: When there is no episode or the cameras differ.
    """

    def __init__(self, episodes: Sequence[Episode], fps: float = 10.0) -> None:
        if not episodes:
            raise BadInputError("episodes", "none", "at least one", "give some episodes")
        self._episodes = tuple(episodes)
        self.cameras = tuple(episodes[0].frames)
        for index, episode in enumerate(episodes):
            if tuple(episode.frames) != self.cameras:
                raise BadInputError(
                    f"episode {index}",
                    f"cameras {tuple(episode.frames)}",
                    f"{self.cameras}, as in episode 0",
                    "give every episode the same cameras in the same order",
                )
        self.episodes = tuple(EpisodeInfo(len(e), e.instruction, fps, e.success) for e in episodes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over frames, actions, state, rewards, times and instructions."""
        digest = hashlib.sha256()
        for episode in self._episodes:
            digest.update(episode.instruction.encode())
            vectors = (episode.timestamps, episode.actions, episode.state, episode.rewards)
            for array in (*episode.frames.values(), *vectors):
                if array is not None:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        selected: Array = self._episodes[episode].frames[camera or self.cameras[0]][indices]
        return selected

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self._episodes[episode].timestamps

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self._episodes[episode].actions

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self._episodes[episode].state

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self._episodes[episode].rewards


class SubsetStore:
    """Some episodes of another store, renumbered from 0: a split, a task, a leave-one-out fold.

    Args:
        store: The whole.
        indices: Which episodes, in the order wanted.

    Attributes:
        whole: The whole.
        indices: Each episode's number in it.
    """

    def __init__(self, store: EpisodeStore, indices: Sequence[int]) -> None:
        self.whole = store
        self.indices = tuple(int(i) for i in indices)
        self.cameras = store.cameras
        self.episodes = tuple(store.episodes[i] for i in self.indices)

    @property
    def fingerprint(self) -> str:
        """The whole's digest with the choice of episodes."""
        return hashlib.sha256(f"{self.whole.fingerprint}{self.indices}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        return self.whole.frames(self.indices[episode], indices, camera)

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self.whole.timestamps(self.indices[episode])

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self.whole.actions(self.indices[episode])

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self.whole.state(self.indices[episode])

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self.whole.rewards(self.indices[episode])

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """See `counterpoint.data.store`."""
        gather_frames(self.whole, np.array(self.indices)[episodes], steps, camera, out)


_BLOCK = 16  # observations

Task = tuple[str, str]
"""The name of a domain, empty where there is one alone, and an instruction."""


class MultiTaskStore:
    """Episodes of several domains, one after the other, numbered from 0.

    Actions have the width of the widest domain, with zeros behind a narrower domain's own.

    Args:
        stores: One a domain; frames of one size, and a common camera.
        names: The domains' names, all different.

    Attributes:
        domains: int64, the domain of each episode.
        action_dims: Each domain's own number of action dimensions; 0 where it has no actions.

    Raises:
        BadInputError: When names do not fit, frame sizes differ, no camera is common, or action dimensions differ
            inside one domain.
    """

    def __init__(self, stores: Sequence[EpisodeStore], names: Sequence[str]) -> None:
        if not stores or len(stores) != len(names) or len(set(names)) != len(names):
            raise BadInputError(
                "domains",
                f"{len(stores)} stores and the names {list(names)}",
                "at least one store, and a name of its own for each",
                "name every domain once",
            )
        self.stores, self.names = tuple(stores), tuple(names)
        self.cameras = tuple(c for c in stores[0].cameras if all(c in other.cameras for other in stores))
        if not self.cameras:
            raise BadInputError(
                "cameras",
                ", ".join(f"{list(s.cameras)} of {name}" for s, name in zip(stores, names, strict=True)),
                "one that all domains have",
                "record the same camera names",
            )
        _check_sizes(stores, names, self.cameras[0])
        self.episodes = tuple(info for store in stores for info in store.episodes)
        counts = [len(store.episodes) for store in stores]
        self.domains = np.repeat(np.arange(len(stores)), counts)
        self._firsts = np.cumsum([0, *counts])[:-1]
        self.action_dims = tuple(_action_dim(s, name) for s, name in zip(stores, names, strict=True))

    @property
    def fingerprint(self) -> str:
        """All domains' names and digests together."""
        parts = [f"{name}={store.fingerprint}" for name, store in zip(self.names, self.stores, strict=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        store, own = self._own(episode)
        return store.frames(own, indices, camera or self.cameras[0])

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        store, own = self._own(episode)
        return store.timestamps(own)

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A] of the widest domain's A, or `None`."""
        store, own = self._own(episode)
        actions = store.actions(own)
        if actions is None:
            return None
        padded: Array = np.pad(actions, [(0, 0), (0, max(self.action_dims) - actions.shape[1])])
        return padded

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        store, own = self._own(episode)
        return store.state(own)

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        store, own = self._own(episode)
        return store.rewards(own)

    def gather_frames(self, episodes: Places, steps: Places, camera: str | None, out: Pixels) -> None:
        """See `counterpoint.data.store`."""
        domains, camera = self.domains[episodes], camera or self.cameras[0]
        # Rows of a domain lie scattered in `out`: they go there by way of a block small enough for the cache.
        block = np.empty((min(_BLOCK, len(episodes)), *out.shape[1:]), np.uint8)
        for domain, store in enumerate(self.stores):
            rows = np.flatnonzero(domains == domain)
            for first in range(0, len(rows), _BLOCK):
                some = rows[first : first + _BLOCK]
                own = episodes[some] - self._firsts[domain]
                gather_frames(store, own, steps[some], camera, block[: len(some)])
                out[some] = block[: len(some)]

    def _own(self, episode: int) -> tuple[EpisodeStore, int]:
        domain = int(self.domains[episode])
        return self.stores[domain], int(episode - self._firsts[domain])


def task_table(store: EpisodeStore, known: Mapping[Task, int] | None = None) -> dict[Task, int]:
    """Task -> its number: the distinct instructions, told apart by domain, in order of appearance.

    Args:
        store: Episodes.
        known: Numbers given already, such as those of the training episodes; other tasks come after them.
    """
    table = dict(known or {})
    for task in _tasks(store):
        table.setdefault(task, len(table))
    return table


def task_numbers(store: EpisodeStore, known: Mapping[Task, int] | None = None) -> Int[NDArray[np.int64], " E"]:
    """Each episode's number in `task_table`, which says what the arguments are."""
    table = task_table(store, known)
    return np.array([table[task] for task in _tasks(store)], np.int64)


def action_mask(store: EpisodeStore, width: int) -> Bool[NDArray[np.bool_], "E A"]:
    """Which of `width` action dimensions are each episode's own."""
    whole, indices = _resolved(store)
    if not isinstance(whole, MultiTaskStore):
        return np.ones((len(indices), width), bool)
    dims = np.array(whole.action_dims)[whole.domains[indices]]
    mask: NDArray[np.bool_] = np.arange(width) < dims[:, None]
    return mask


def _tasks(store: EpisodeStore) -> list[Task]:
    whole, indices = _resolved(store)
    domains = [""] * len(indices)
    if isinstance(whole, MultiTaskStore):
        domains = [whole.names[domain] for domain in whole.domains[indices]]
    return [(domain, info.instruction) for domain, info in zip(domains, store.episodes, strict=True)]


def _resolved(store: EpisodeStore) -> tuple[EpisodeStore, Places]:
    """The store behind any number of `SubsetStore`s, and the places of this store's episodes in it."""
    if not isinstance(store, SubsetStore):
        return store, np.arange(len(store.episodes))
    whole, indices = _resolved(store.whole)
    return whole, indices[np.array(store.indices, np.int64)]


def _check_sizes(stores: Sequence[EpisodeStore], names: Sequence[str], camera: str) -> None:
    sizes = [store.frames(0, np.zeros(1, np.int64), camera).shape[1:3] for store in stores]
    for size, name in zip(sizes, names, strict=True):
        if size != sizes[0]:
            raise BadInputError(
                f"domain {name!r}",
                f"frames of {size[0]} x {size[1]}",
                f"{sizes[0][0]} x {sizes[0][1]}, as in {names[0]!r}",
                "make training stores of one size (`counterpoint.data.cache.cached`)",
            )


def _action_dim(store: EpisodeStore, name: str) -> int:
    dims = {0 if actions is None else actions.shape[1] for actions in map(store.actions, range(len(store.episodes)))}
    if len(dims) != 1:
        raise BadInputError(
            f"domain {name!r}",
            f"actions of {sorted(dims)} dimensions (0: none)",
            "one number of dimensions inside a domain",
            "make a domain of each",
        )
    return dims.pop()


class OneCameraStore:
    """Another store with `camera` as its only one, and so its default.

    Args:
        store: The whole.
        camera: The camera to keep.

    Raises:
        BadInputError: When the store has no such camera.
    """

    def __init__(self, store: EpisodeStore, camera: str) -> None:
        if camera not in store.cameras:
            raise BadInputError("camera", repr(camera), f"one of {list(store.cameras)}", "name a camera the data has")
        self._store = store
        self.cameras = (camera,)
        self.episodes = store.episodes

    @property
    def fingerprint(self) -> str:
        """The whole's digest with the camera's name."""
        return hashlib.sha256(f"{self._store.fingerprint}{self.cameras}".encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]."""
        self._check(camera)
        return self._store.frames(episode, indices, self.cameras[0])

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return self._store.timestamps(episode)

    def actions(self, episode: int) -> Array | None:
        """float32 [T, A], or `None`."""
        return self._store.actions(episode)

    def state(self, episode: int) -> Array | None:
        """float32 [T, S], or `None`."""
        return self._store.state(episode)

    def rewards(self, episode: int) -> Array | None:
        """float32 [T], or `None`."""
        return self._store.rewards(episode)

    def gather_frames(self, episodes: Array, steps: Array, camera: str | None, out: Array) -> None:
        """See `counterpoint.data.store`."""
        self._check(camera)
        gather_frames(self._store, episodes, steps, self.cameras[0], out)

    def _check(self, camera: str | None) -> None:
        if camera not in (None, *self.cameras):
            raise BadInputError("camera", repr(camera), f"{self.cameras[0]!r}", "leave the camera out")
