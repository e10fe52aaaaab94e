"""Random access to many episodes, in memory or in files of any format."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.episode import Array, Episode, EpisodeInfo
from counterpoint.errors import BadInputError, require, require_known

Integers = NDArray[np.int64]

Cameras = str | Sequence[str] | None
"""One camera, several cameras in the order wanted, or `None` for the store's first camera."""


VECTORS = ("timestamps", "actions", "state", "environment_state", "rewards", "features")
"""The sources that an episode may have in addition to frames, each with one vector per step."""


class EpisodeStore:
    """The base class of all stores: the lengths of episodes are known at once, and pixels are read on demand.

    A store implements `frames`, and either `_values` or the methods (`actions`, `state`, ...) for which it has data.

    Attributes:
        episodes: Descriptions of the episodes, in order, read without decoding anything.
        cameras: Names of the colour cameras; the first is the default.
        depth_cameras: Names of the depth cameras, whose images are read by `depth`; the first is the default.
        version: For a store that grows, a number that changes whenever its episodes change.
    """

    episodes: Sequence[EpisodeInfo]
    cameras: tuple[str, ...]
    depth_cameras: tuple[str, ...] = ()
    version = 0

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the store's content changes."""
        raise NotImplementedError

    @cached_property
    def lengths(self) -> Integers:
        """The length T of every episode, int64 [E]."""
        return np.array([info.length for info in self.episodes], np.int64)

    @cached_property
    def _starts(self) -> Integers:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def _columns(self) -> dict[str, Array]:
        return {}

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3], at the N step `indices` (in range, any order, repeats allowed)."""
        raise NotImplementedError

    def sizes(self, camera: str) -> Counter[tuple[int, int]]:
        """Return each size (height, width) of a camera's images with its number of episodes.

        A store whose images may differ between episodes says so if it need not decode them; others look at the first.
        """
        height, width = self.frames(0, np.zeros(1, np.int64), camera).shape[1:3]
        return Counter({(int(height), int(width)): len(self.episodes)})

    def recording(self, episode: int) -> Hashable:
        """Return the recording that an episode belongs to: the episode itself, or a file with several episodes."""
        return episode

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W] that a depth camera measured at the N step `indices`.

        The dtype gives the unit: uint16 is in millimetres, float32 in metres. Most sensors give 0 for "not measured".

        Raises:
            BadInputError: When the depth camera does not exist, or its images are damaged.
        """
        raise NotImplementedError

    def _values(self, source: str, episode: int) -> Any:
        return None

    def timestamps(self, episode: int) -> Array:
        """Return the time of each step, float64 [T], in seconds since the episode's start."""
        return cast(Array, self._values("timestamps", episode))

    def actions(self, episode: int) -> Array | None:
        """Return the actions, float32 [T, A], or `None`."""
        return cast(Array | None, self._values("actions", episode))

    def state(self, episode: int) -> Array | None:
        """Return the proprioception, float32 [T, S], or `None`."""
        return cast(Array | None, self._values("state", episode))

    def environment_state(self, episode: int) -> Array | None:
        """Return the state of the surroundings, float32 [T, E], or `None`."""
        return cast(Array | None, self._values("environment_state", episode))

    def rewards(self, episode: int) -> Array | None:
        """Return the reward of each step's action, float32 [T], or `None`."""
        return cast(Array | None, self._values("rewards", episode))

    def features(self, episode: int) -> Array | None:
        """Return a frozen network's features of each frame, float32 [T, A, E], or `None`.

        The first of the A rows belongs to the unchanged frame, the other rows to augmented frames.
        """
        return cast(Array | None, self._values("features", episode))

    def column(self, source: str) -> Array:
        """Return the vectors named `source` of all steps of all episodes, concatenated; the array is kept in memory.

        Raises:
            BadInputError: When an episode lacks the vector, or the vector has other dimensions than in episode 0.
        """
        if source not in self._columns:
            parts = [getattr(self, source)(episode) for episode in range(len(self.episodes))]
            for episode, part in enumerate(parts):
                where, hint = f"episode {episode}", "leave it out"
                hint = "join other robots in a MultiTaskStore" if source == "actions" else hint
                require(part is not None, where, f"no {source}", source, "use data that have it")
                same, found = part.shape[1:] == parts[0].shape[1:], f"{source} of {part.shape[-1]} dimensions"
                require(same, where, found, f"{parts[0].shape[-1]}, as in episode 0", hint)
            self._columns[source] = np.concatenate(parts)
        return self._columns[source]

    def gather(
        self, source: str, episodes: Integers, steps: Integers, *, camera: str | None = None, out: Array | None = None
    ) -> Array:
        """Read steps of many episodes at once.

        Args:
            source: `frames`, or one of `VECTORS`.
            episodes: The episode of each sample, [B], in any order; repeats allowed.
            steps: Steps of each sample's episode, [B, ...].
            camera: Camera of `frames`; the store's first by default.
            out: Contiguous array that receives `frames`; by default a new one.

        Returns:
            The values, [B, ..., *shape of one step].

        Raises:
            BadInputError: When the data lack the source, or frames or vectors differ in size between episodes.
        """
        if source != "frames":
            return self.column(source)[spread(self._starts[episodes], steps) + steps]
        order = np.argsort(episodes, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(episodes[order])) + 1)
        for group in groups:
            frames = self.frames(int(episodes[group[0]]), steps[group].reshape(-1), camera)
            out = np.empty((*steps.shape, *frames.shape[1:]), np.uint8) if out is None else out
            if frames.shape[1:] != out.shape[-3:]:
                where = f"episode {episodes[group[0]]}"
                raise uneven_frames(where, frames.shape[1:], out.shape[-3:])
            out[group] = frames.reshape(len(group), *out.shape[1:])
        assert out is not None
        return out


def spread(values: Array, steps: Integers) -> Array:
    """Give `values` [B] as many axes as `steps` [B, ...]."""
    return values if steps.ndim == 1 else values.reshape(-1, *[1] * (steps.ndim - 1))


def uneven_frames(where: str, found: Sequence[int], size: Sequence[int], others: str = "") -> BadInputError:
    """Return the error for frames whose height and width differ from the frames before them."""
    sizes = f"frames of {found[0]} x {found[1]}", f"{size[0]} x {size[1]}, as in {others or 'the other episodes'}"
    return BadInputError(where, *sizes, "make training stores of one size (`counterpoint.data.cache.cached`)")


def vectors(store: EpisodeStore, episode: int) -> dict[str, Array]:
    """Return an episode's vectors by name, for the names in `VECTORS`; vectors that the episode lacks are left out."""
    parts = {name: getattr(store, name)(episode) for name in VECTORS}
    return {name: value for name, value in parts.items() if value is not None}


def camera_names(
    camera: Cameras, store: EpisodeStore, count: int | None = None, *, known: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the chosen colour cameras.

    Args:
        camera: The user's choice.
        store: The store.
        count: Number of cameras that an encoder needs, 0 for none. If `camera` is `None`, the first `count` are taken.
        known: The cameras to choose from; by default all cameras of the store.

    Raises:
        BadInputError: When the store has no images, a camera is unknown, measures depth or is named twice, or the
            number of cameras is not `count`.
    """
    known = store.cameras if known is None else known
    if count == 0 and not camera:
        return ()
    if not camera:
        _require_images(known)
    chosen = known[: count or 1] if camera is None else camera
    names = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    for name in names:
        check_camera(name, store, known)
    good = names and len(set(names)) == len(names) == (count or len(names))
    expected = f"{count or 'some'} of {', '.join(known)}"
    require(good, "camera", ", ".join(names) or "none", expected, "name as many as encoder.cameras, each once")
    return names


def check_camera(camera: str, store: EpisodeStore, known: Sequence[str] | None = None) -> None:
    """Refuse a camera that is not one of `known`, by default the store's colour cameras."""
    known = store.cameras if known is None else known
    if camera in store.depth_cameras:
        expected = f"one of the colour cameras: {', '.join(known) or 'none'}"
        hint = "encoders take colour images; read depth from Python by `store.depth`"
        raise BadInputError("camera", f"{camera!r}, a depth camera", expected, hint)
    _require_images(known)
    require_known(camera, known, "camera", hint="name a camera that the data have")


def _require_images(known: Sequence[str]) -> None:
    hint = "to learn from states alone, train diff_c-robosuite-state or an agent; for images, record them, or render "
    hint += "robomimic's with its dataset_states_to_obs.py"
    require(known, "camera", "data without images", "at least one camera", hint)


def frames_in_chunks(
    store: EpisodeStore,
    episode: int,
    camera: str,
    steps: Array | None = None,
    count: int = 64,
    *,
    read: Callable[[int, Array, str], Array] | None = None,
) -> Iterator[Array]:
    """Yield the frames of an episode (all, or those at `steps`), `count` at a time, which bounds memory.

    Args:
        store: The store.
        episode: The episode.
        camera: The camera.
        steps: The steps to read; by default all.
        count: The number of frames in a chunk.
        read: `store.depth` for the images of a depth camera; by default `store.frames`.

    Yields:
        Images uint8 [n, H, W, 3], or the distances [n, H, W] of a depth camera.
    """
    read = store.frames if read is None else read
    wanted = np.arange(store.episodes[episode].length) if steps is None else steps
    for first in range(0, len(wanted), count):
        yield read(episode, wanted[first : first + count], camera)


@dataclass(frozen=True)
class FrameBatch:
    """Frames of one or more episodes, all of one size, which are encoded at once.

    Attributes:
        frames: Images, uint8 [N, H, W, 3].
        state: The robot's state at each image, float32 [N, S], if the encoder reads it.
        owners: One (episode, index of the camera, n) for each n consecutive images of one episode and camera, in order.
    """

    frames: Array
    state: Array | None
    owners: Sequence[tuple[int, int, int]]


def frame_batches(
    store: EpisodeStore, episodes: Sequence[int], cameras: Sequence[str], count: int, *, with_state: bool = False
) -> Iterator[FrameBatch]:
    """Read whole episodes, each camera in one pass, and yield batches of `count` frames, which may span episodes.

    A batch is smaller if it is the last one, or if the next frames have another size.

    Args:
        store: The store.
        episodes: The episodes, in order.
        cameras: The cameras, which follow each other within an episode.
        count: Number of frames of a batch.
        with_state: True to read the robot's state too.

    Raises:
        BadInputError: If an episode has no state and `with_state` is true.
    """
    parts: list[tuple[Array, Array | None]] = []
    owners: list[tuple[int, int, int]] = []
    room = count

    def batch() -> FrameBatch:
        states = [state for _, state in parts if state is not None]
        return FrameBatch(
            np.concatenate([frames for frames, _ in parts]), np.concatenate(states) if states else None, owners
        )

    for episode in episodes:
        state, length = states_of(store, episode) if with_state else None, store.episodes[episode].length
        for view, camera in enumerate(cameras):
            start = 0
            while start < length:
                steps = np.arange(start, min(length, start + room))
                frames = store.frames(episode, steps, camera)
                if parts and frames.shape[1:] != parts[0][0].shape[1:]:
                    yield batch()
                    parts, owners, room = [], [], count
                parts.append((frames, None if state is None else state[steps]))
                owners.append((episode, view, len(frames)))
                start, room = start + len(frames), room - len(frames)
                if not room:
                    yield batch()
                    parts, owners, room = [], [], count
    if parts:
        yield batch()


def states_of(store: EpisodeStore, episode: int) -> Array:
    """Return the states of an episode, float32 [T, S], for a model that reads them; raise an error if it has none."""
    state = store.state(episode)
    expected, hint = "the robot's state, which the model reads", "take data that have it (observation.state)"
    require(state is not None, f"episode {episode}", "no state", expected, hint)
    assert state is not None
    return state


def camera_images(store: EpisodeStore, episode: int, indices: Array, cameras: Sequence[str]) -> Array:
    """Read the images of several cameras at the same N steps: uint8 [N, C, H, W, 3]."""
    return np.stack([store.frames(episode, indices, camera) for camera in cameras], 1)


class MemoryStore(EpisodeStore):
    """Episodes held in memory.

    Args:
        episodes: One or more episodes, all with the same cameras and depth cameras in the same order.
        fps: Frames a second.
    """

    def __init__(self, episodes: Sequence[Episode], fps: float = 10.0) -> None:
        require(episodes, "episodes", "none", "at least one", "give some episodes")
        self._episodes = tuple(episodes)
        self.cameras = tuple(episodes[0].frames)
        self.depth_cameras = tuple(episodes[0].depth)
        first = self.cameras + self.depth_cameras
        for index, names in enumerate((*episode.frames, *episode.depth) for episode in episodes):
            found, expected = f"cameras {names}", f"{first}, as in episode 0"
            require(names == first, f"episode {index}", found, expected, "use the same ones")
        self.episodes = tuple(EpisodeInfo(len(e), e.instruction, fps, e.success, e.segments) for e in episodes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over frames, depth, actions, state, rewards, times and instructions."""
        digest = hashlib.sha256()
        for episode in self._episodes:
            digest.update(episode.instruction.encode())
            digest.update(repr(episode.segments).encode() if episode.segments else b"")
            vectors = (episode.timestamps, episode.actions, episode.state, episode.rewards, episode.environment_state)
            for array in (*episode.frames.values(), *episode.depth.values(), *vectors):
                if array is not None:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return self._episodes[episode].frames[camera or self.cameras[0]][indices]

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W]; see `EpisodeStore.depth`."""
        return self._episodes[episode].depth[camera or self.depth_cameras[0]][indices]

    def _values(self, source: str, episode: int) -> Any:
        return getattr(self._episodes[episode], source, None)


class OutputPool:
    """A pool of memory for batches: a large piece is reused once no array or tensor refers to it.

    Fresh memory costs a page fault per page; for a batch of images, the faults take longer than the copy.

    Attributes:
        large: Size in bytes from which on pieces are reused.
        spare: Maximum number of unused pieces kept of each size.
    """

    large, spare = 1 << 20, 8

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
        """Return an uninitialised array, as `np.empty` does."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if need < self.large:
            return np.empty(shape, dtype)
        free = self._free.setdefault(need, [])
        memory = free.pop() if free else bytearray(need)
        # Every array and tensor made from `flat` keeps a reference to it, because its memory belongs to no other array.
        flat = np.frombuffer(memory, dtype)
        weakref.finalize(flat, self._put_back, free, memory).atexit = False
        return flat.reshape(shape)

    @classmethod
    def _put_back(cls, free: list[bytearray], memory: bytearray) -> None:
        if len(free) < cls.spare:
            free.append(memory)

    def __reduce__(self) -> tuple[type[OutputPool], tuple[()]]:  # another process starts with an empty pool
        return OutputPool, ()
