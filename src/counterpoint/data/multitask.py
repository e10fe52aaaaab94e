"""Several stores (domains) as one: actions padded to one width with a mask, tasks numbered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.data.gather import Pixels, Places, gather_frames
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.errors import BadInputError

_BLOCK = 16  # observations

__all__ = ["MultiTaskStore", "Task", "action_mask", "task_numbers", "task_table"]

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
                found=f"{len(stores)} stores and the names {list(names)}",
                expected="at least one store, and a name of its own for each",
                mend="name every domain once",
            )
        self.stores, self.names = tuple(stores), tuple(names)
        self.cameras = tuple(c for c in stores[0].cameras if all(c in other.cameras for other in stores))
        if not self.cameras:
            raise BadInputError(
                "cameras",
                found=", ".join(
                    f"{list(s.cameras)} of {name}" for s, name in zip(stores, names, strict=True)
                ),
                expected="one that all domains have",
                mend="record the same camera names",
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
        """See `counterpoint.data.gather`."""
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


def task_numbers(
    store: EpisodeStore, known: Mapping[Task, int] | None = None
) -> Int[NDArray[np.int64], " E"]:
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
                found=f"frames of {size[0]} x {size[1]}",
                expected=f"{sizes[0][0]} x {sizes[0][1]}, as in {names[0]!r}",
                mend="make training stores of one size (`counterpoint.data.cache.cached`)",
            )


def _action_dim(store: EpisodeStore, name: str) -> int:
    dims = {
        0 if actions is None else actions.shape[1]
        for actions in map(store.actions, range(len(store.episodes)))
    }
    if len(dims) != 1:
        raise BadInputError(
            f"domain {name!r}",
            found=f"actions of {sorted(dims)} dimensions (0: none)",
            expected="one number of dimensions inside a domain",
            mend="make a domain of each",
        )
    return dims.pop()
