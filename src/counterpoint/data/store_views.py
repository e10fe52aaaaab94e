"""Stores that are views of other stores: a part of a store, several stores as one, other cameras or other columns."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore, check_camera, uneven_frames
from counterpoint.errors import require

Integers = NDArray[np.int64]
Task = tuple[str, str]
"""The name of a domain (empty if there is only one domain), and an instruction."""

_BLOCK = 16  # samples copied at a time


class StoreView(EpisodeStore):
    """A view of episodes of other stores, under new numbers.

    Args:
        stores: The stores that hold the episodes.
        owner: int [E], the place in `stores` of the store that holds each episode.
        numbers: int [E], the number of each episode in that store.
    """

    def __init__(self, stores: Sequence[EpisodeStore], owner: Array, numbers: Array) -> None:
        self.stores = tuple(stores)
        self._owner, self._numbers = np.asarray(owner, np.int64), np.asarray(numbers, np.int64)
        self.cameras, self.depth_cameras = stores[0].cameras, stores[0].depth_cameras
        pairs = zip(self._owner.tolist(), self._numbers.tolist(), strict=True)
        self.episodes = tuple(stores[store].episodes[number] for store, number in pairs)

    @property
    def fingerprint(self) -> str:
        """The digest of the stores combined with the chosen episodes."""
        chosen = [store.fingerprint for store in self.stores], self._owner.tolist(), self._numbers.tolist()
        return hashlib.sha256(repr(chosen).encode()).hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        store = self.stores[int(self._owner[episode])]
        return store.frames(int(self._numbers[episode]), indices, self._camera(camera))

    def recording(self, episode: int) -> Hashable:
        """Return the number of the store that holds the episode, with the recording in that store."""
        owner = int(self._owner[episode])
        return owner, self.stores[owner].recording(int(self._numbers[episode]))

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W]; see `EpisodeStore.depth`."""
        store = self.stores[int(self._owner[episode])]
        return store.depth(int(self._numbers[episode]), indices, camera or next(iter(self.depth_cameras), None))

    def _values(self, source: str, episode: int) -> Any:
        return getattr(self.stores[int(self._owner[episode])], source)(int(self._numbers[episode]))

    def _camera(self, camera: str | None) -> str | None:
        return camera or self.cameras[0]

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read frames from the stores that hold them, and vectors from `column`."""
        if source != "frames":
            return super().gather(source, episodes, steps)
        camera = self._camera(camera)
        owner, numbers = self._owner[episodes], self._numbers[episodes]
        if len(self.stores) == 1:
            return self.stores[0].gather(source, numbers, steps, camera=camera, out=out)
        # The samples of one store are scattered in `out`: copy them through a block that fits the processor's cache.
        for index in np.unique(owner).tolist():
            rows = np.flatnonzero(owner == index)
            for some in np.split(rows, range(_BLOCK, len(rows), _BLOCK)):
                block = self.stores[index].gather(source, numbers[some], steps[some], camera=camera)
                out = np.empty((*steps.shape, *block.shape[-3:]), np.uint8) if out is None else out
                out[some] = block
        assert out is not None
        return out


class SubsetStore(StoreView):
    """Some episodes of another store, renumbered from 0: a split, a task, a leave-one-out fold.

    Args:
        store: The whole store; kept as the attribute `whole`.
        indices: Episodes of the store, in the order wanted.
    """

    def __init__(self, store: EpisodeStore, indices: Sequence[int]) -> None:
        self.whole, self.indices = store, tuple(int(index) for index in indices)
        super().__init__([store], np.zeros(len(self.indices)), np.array(self.indices, np.int64))

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the chosen episodes."""
        return hashlib.sha256(f"{self.whole.fingerprint}{self.indices}".encode()).hexdigest()


def with_column(store: EpisodeStore, source: str, values: Array) -> EpisodeStore:
    """Return a view of a store with one more vector, such as features; `values` has all steps: [all steps, ...]."""
    view = SubsetStore(store, range(len(store.episodes)))
    view._columns.update(store._columns | {source: values})
    return view


class StateStore(StoreView):
    """A view whose `state` joins one or more vectors of another store side by side.

    Args:
        store: The whole store.
        sources: `state`, `environment_state`, or both in the order wanted.

    Attributes:
        sources: The number of dimensions of each source, by its name.

    Raises:
        BadInputError: When an episode lacks one of the sources.
    """

    def __init__(self, store: EpisodeStore, sources: Sequence[str]) -> None:
        super().__init__([store], np.zeros(len(store.episodes)), np.arange(len(store.episodes)))
        self.sources = {source: int(store.column(source).shape[1]) for source in sources}

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the sources' names."""
        return hashlib.sha256(f"{self.stores[0].fingerprint}{list(self.sources)}".encode()).hexdigest()

    def _values(self, source: str, episode: int) -> Any:
        if source != "state":
            return super()._values(source, episode)
        return np.concatenate([super(StateStore, self)._values(part, episode) for part in self.sources], axis=1)


class OneCameraStore(StoreView):
    """A view of another store in which `camera` is the only colour camera, and therefore the default."""

    def __init__(self, store: EpisodeStore, camera: str) -> None:
        check_camera(camera, store)
        super().__init__([store], np.zeros(len(store.episodes)), np.arange(len(store.episodes)))
        self.cameras = (camera,)

    @property
    def fingerprint(self) -> str:
        """The digest of the whole store combined with the camera's name."""
        return hashlib.sha256(f"{self.stores[0].fingerprint}{self.cameras}".encode()).hexdigest()

    def _camera(self, camera: str | None) -> str:
        check_camera(camera or self.cameras[0], self)
        return self.cameras[0]


class CamerasApart(StoreView):
    """A view with one episode for each camera of each episode; all episodes of the first camera come first.

    Args:
        store: The whole store.
        cameras: Some cameras of the store.
    """

    def __init__(self, store: EpisodeStore, cameras: Sequence[str]) -> None:
        E, C = len(store.episodes), len(cameras)
        views = [OneCameraStore(store, camera) for camera in cameras]
        super().__init__(views, np.repeat(np.arange(C), E), np.tile(np.arange(E), C))
        self.cameras = ("camera",)

    @property
    def fingerprint(self) -> str:
        """The digest of the fingerprints of all the views, one per camera."""
        return hashlib.sha256("".join(view.fingerprint for view in self.stores).encode()).hexdigest()

    def _camera(self, camera: str | None) -> str | None:
        check_camera(camera or self.cameras[0], self)
        return None  # every episode of the view has one camera


class MultiTaskStore(StoreView):
    """Episodes of several domains, one after the other; actions are padded with zeros to the widest domain's width.

    Args:
        stores: The domains' stores. Their frames have one size, and they share at least one camera.
        names: The domains' names, all different.

    Attributes:
        domains: int64 [E], the domain of each episode.
        action_dims: The number of action dimensions of each domain; 0 for a domain without actions.

    Raises:
        BadInputError: When stores and names do not match, frame sizes differ, no camera is common, or action dimensions
            differ inside one domain.
    """

    def __init__(self, stores: Sequence[EpisodeStore], names: Sequence[str]) -> None:
        good, found = len(stores) == len(names) == len(set(names)) > 0, f"{len(stores)} stores named {list(names)}"
        require(good, "domains", found, "at least one store, each with its own name", "name every domain once")
        self.names, counts = tuple(names), [len(store.episodes) for store in stores]
        self.domains = np.repeat(np.arange(len(stores)), counts)
        super().__init__(stores, self.domains, np.concatenate([np.arange(count) for count in counts]))
        self.cameras = tuple(c for c in stores[0].cameras if all(c in other.cameras for other in stores))
        depth = stores[0].depth_cameras
        self.depth_cameras = tuple(c for c in depth if all(c in other.depth_cameras for other in stores))
        named = dict(zip(names, stores, strict=True))
        have = ", ".join(f"{list(store.cameras)} of {name}" for name, store in named.items())
        require(self.cameras, "cameras", have, "one that all domains have", "record the same camera names")
        sizes = {n: s.frames(0, np.zeros(1, np.int64), self.cameras[0]).shape[1:] for n, s in named.items()}
        for name, size in sizes.items():
            if size != sizes[names[0]]:
                raise uneven_frames(f"domain {name!r}", size, sizes[names[0]], repr(names[0]))
        self.action_dims = tuple(_action_dim(store, name) for name, store in named.items())

    @property
    def fingerprint(self) -> str:
        """The digest of the names and digests of all domains."""
        parts = [f"{name}={store.fingerprint}" for name, store in zip(self.names, self.stores, strict=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _values(self, source: str, episode: int) -> Any:
        values = super()._values(source, episode)
        padded = source == "actions" and values is not None
        return np.pad(values, [(0, 0), (0, max(self.action_dims) - values.shape[1])]) if padded else values


def join_domains(stores: Sequence[EpisodeStore], names: Sequence[str]) -> EpisodeStore:
    """Return a single store as it is, and several stores as the domains of a `MultiTaskStore`."""
    return stores[0] if len(stores) == 1 else MultiTaskStore(stores, names)


def _action_dim(store: EpisodeStore, name: str) -> int:
    dims = {0 if actions is None else actions.shape[1] for actions in map(store.actions, range(len(store.episodes)))}
    found, expected = f"actions of {sorted(dims)} dimensions (0: none)", "one number of dimensions inside a domain"
    require(len(dims) == 1, f"domain {name!r}", found, expected, "make a domain of each")
    return dims.pop()


def task_table(store: EpisodeStore, known: Mapping[Task, int] | None = None) -> dict[Task, int]:
    """Number the distinct pairs of domain and instruction in order of appearance.

    Args:
        store: Episodes.
        known: Tasks that already have numbers, such as those of the training episodes; further tasks are numbered after
            them.
    """
    table = dict(known or {})
    for task in _tasks(store):
        table.setdefault(task, len(table))
    return table


def task_numbers(store: EpisodeStore, known: Mapping[Task, int] | None = None) -> Int[Integers, " E"]:
    """Return each episode's number in `task_table`."""
    table = task_table(store, known)
    return np.array([table[task] for task in _tasks(store)], np.int64)


def action_mask(store: EpisodeStore, width: int) -> Bool[NDArray[np.bool_], "E A"]:
    """Return a mask of the action dimensions, out of `width`, that each episode has."""
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


def _resolved(store: EpisodeStore) -> tuple[EpisodeStore, Integers]:
    """Return the store behind any number of views, and the number of each episode in that store."""
    if not isinstance(store, StoreView) or isinstance(store, MultiTaskStore):
        return store, np.arange(len(store.episodes))
    whole, indices = _resolved(store.stores[0])
    return whole, indices[store._numbers]
