"""The base class of all readers, and checks that several formats share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo, check_finite, visible
from counterpoint.data.store import EpisodeStore, check_camera
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.formats.boundary import as_numbers, parsing
from counterpoint.formats.remote import version

SAMPLE = "sample"
"""The instruction key that draws one of an episode's texts for each sample of a batch."""

Item = TypeVar("Item")
Result = TypeVar("Result")
OnBadRow = Callable[[BadInputError], None]
"""A function called with the error of each row, file or episode that cannot be used."""


def raise_error(error: BadInputError) -> None:
    """Raise `error`: the default `OnBadRow`."""
    raise error


def read_each(
    items: Iterable[Item], read: Callable[[Item], Result], on_bad_row: OnBadRow
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with `read(item)`; items that raise `BadInputError` are reported and left out."""
    for item in items:
        try:
            result = read(item)
        except BadInputError as error:
            on_bad_row(error)
        else:
            yield item, result


def read_alike(
    items: Iterable[Path], read: Callable[[Path], Result], on_bad_row: OnBadRow, *parts: str
) -> list[Result]:
    """Return `read(item)` for each item, as `read_each` does; also report results that differ in `parts`.

    `parts` are the names of attributes that must be equal in all results.
    """
    kept: list[tuple[Path, Result]] = []

    def alike(item: Path) -> Result:
        result = read(item)
        where, first = (kept or [(item, result)])[0]
        for part in parts:
            found, wanted = getattr(result, part), getattr(first, part)
            expected, hint = f"{list(wanted)}, as in {where.name}", "keep data of the same parts together"
            require(found == wanted, item, f"{part} {list(found)}", expected, hint)
        return result

    for item, result in read_each(items, alike, on_bad_row):
        kept.append((item, result))
    return [result for _, result in kept]


def require_split(path: str | Path, split: str | None, names: Iterable[str]) -> None:
    """Raise a `BadInputError` if the data set does not have the requested split."""
    known, hint = list(names), "name one of these, or leave it out for all"
    expected = "one of {}" if known else "none: this data set has no splits"
    if split is not None:
        require_known(split, known, f"split of {path}", expected=expected, hint=hint)


def first_text(texts: Iterable[str]) -> str:
    """Return the first text that shows anything, or an empty text."""
    return next(filter(visible, texts), "")


def require_new(path: Path) -> None:
    """Raise a `BadInputError` if the path to write exists."""
    require(not path.exists(), path, "an existing path", "a new one", "give another name, or remove it")


def stack_images(images: Iterable[tuple[str | Path, Array]]) -> Array:
    """Stack one or more images [H, W, ...] into one array [N, H, W, ...]; errors name the place given with each image.

    Raises:
        BadInputError: An image differs in size from those before it; the error names the first such image.
    """
    found: list[Array] = []
    for where, image in images:
        found.append(image)
        sizes, first = f"images of several sizes: {image.shape}", found[0].shape
        require(image.shape == first, where, sizes, f"{first}, as before it", "download or record it again")
    return np.stack(found)


def rows_of(source: Any, wanted: Array) -> Array:
    """Return the rows `wanted`, which ascend without repeats, of an HDF5 dataset or a zarr array."""
    first, last = int(wanted[0]), int(wanted[-1]) + 1
    if last - first <= 2 * len(wanted):  # reading one range is faster than reading single rows
        values: Array = source[first:last][wanted - first]
    else:
        values = getattr(source, "oindex", source)[wanted]
    return values


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a data set, with one value per step.

    Attributes:
        dtype: Type of the values: a numpy name, or "string".
        shape: Shape of one step's value.
        notes: Further facts, as LeRobot keeps them in `meta/info.json`: `names` of the dimensions, units.
    """

    dtype: str
    shape: tuple[int, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)


class Reader(EpisodeStore):
    """An `EpisodeStore` over files; a format overrides the methods for the data that it has.

    Attributes:
        cameras: Camera names; the first is the default.
        episodes: Length, instruction, frame rate and success of each episode.
        names: The name of each episode in error messages.
        files: Files whose name, size and version enter the fingerprint.
        identity: Further values that enter the fingerprint, in addition to `episodes`.
        rate_recorded: False where the frame rate is assumed, because the format does not record it.
        pads_cameras: True if the format gives black images to the episodes that lack a camera of other episodes.
        left_out: Parts of the data set that are not read, as texts for `counterpoint data info`: the name of the part,
            if it has one, with remarks in brackets.
        columns: Columns that `counterpoint data convert` keeps as they are, by their names in the converted data set.
            The columns of actions, state and rewards may be among them.
        unread: Names of columns and cameras that are not read and that `counterpoint data convert` asks to drop;
            `left_out` may say more about them.
        facts: Further facts that `counterpoint data info` prints, by their titles.
        instructions: For data with several instructions per episode: under each key, the text of every episode, empty
            where it is missing.
    """

    cameras: tuple[str, ...] = ("camera",)
    episodes: tuple[EpisodeInfo, ...] = ()
    names: Sequence[object] = ()
    files: Sequence[Path] = ()
    identity: object = None
    rate_recorded: bool = True
    pads_cameras: bool = False
    left_out: tuple[str, ...] = ()
    columns: Mapping[str, Column] = MappingProxyType({})
    unread: tuple[str, ...] = ()
    facts: Mapping[str, str] = MappingProxyType({})
    instructions: Mapping[str, Sequence[str]] = MappingProxyType({})

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images of a camera, uint8 [N, H, W, 3], at N >= 1 valid steps, which ascend without repeats."""
        raise NotImplementedError

    def read_depth(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the distances [N, H, W], uint16 or float32, of a depth camera at N >= 1 steps; see `read`."""
        raise NotImplementedError

    def recorded(self, episode: int, name: str) -> Array:
        """Return the values of one of `columns` as recorded, [T, *shape]; texts as an array of objects."""
        raise NotImplementedError

    def findings(self) -> Iterator[BadInputError]:
        """Yield contradictions in the data set that reading does not refuse, for `counterpoint data doctor`."""
        yield from ()

    def instructed(self, key: str) -> Self:
        """Return the same store with the instructions that are recorded under a key of `instructions`.

        With the key `sample`, episodes get all their texts as `wordings`.
        """
        hint = "name one of these, or leave it out for the first that is not empty"
        if not self.instructions:
            hint = "leave it out"
        expected = "one of {}" if self.instructions else "none: these data have one instruction an episode"
        require_known(key, [*self.instructions, SAMPLE], "instruction_key", expected=expected, hint=hint)
        store = copy(self)
        if key == SAMPLE:
            every = [
                tuple(dict.fromkeys(text for text in texts if visible(text)))
                for texts in zip(*self.instructions.values(), strict=True)
            ]
            store.episodes = tuple(replace(info, wordings=one) for info, one in zip(self.episodes, every, strict=True))
            store.identity = self.identity, every
            return store
        texts = self.instructions[key]
        store.episodes = tuple(replace(info, instruction=text) for info, text in zip(self.episodes, texts, strict=True))
        return store

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return one of `VECTORS` as recorded, [T, n] or [T] of any numeric type; `None` if it is not recorded."""
        return None

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the store's content changes."""
        digest = hashlib.sha256(repr((self.episodes, self.identity)).encode())
        for path in self.files:
            with parsing(path, "a readable file"):
                digest.update(f"{path.name}\0{path.stat().st_size}\0{version(path)}\0".encode())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the images, uint8 [N, H, W, 3], at the N step `indices`; refuse an unknown camera or step."""
        name = camera or next(iter(self.cameras), "")
        check_camera(name, self)
        images = self._at(self.read, episode, indices, name)
        good, found = images.dtype == np.uint8 and images.ndim == 4, f"images {images.dtype} {list(images.shape)}"
        good, where = good and images.shape[-1] == 3, str(self.names[episode])
        require(good, where, found, "uint8 [N, H, W, 3]", "record it again")
        return images

    def depth(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return the distances [N, H, W], uint16 in millimetres or float32 in metres; see `EpisodeStore.depth`."""
        name = camera or next(iter(self.depth_cameras), "")
        require_known(name, self.depth_cameras, "camera", hint="name a depth camera that the data have")
        return self._at(self.read_depth, episode, indices, name)

    def _at(self, read: Callable[[int, Array, str], Array], episode: int, indices: Array, camera: str) -> Array:
        """Return a camera's images at steps in any order; `read` gets ascending steps. Refuse an unknown step."""
        steps, length = np.asarray(indices, np.int64).reshape(-1), self.episodes[episode].length
        if len(steps) and not (steps.min() >= 0 and steps.max() < length):
            found, where = f"a request for steps {steps.min()} to {steps.max()}", str(self.names[episode])
            raise BadInputError(where, found, f"steps from 0 to {length - 1}", "read steps of the episode")
        wanted, rows = np.unique(steps, return_inverse=True)
        with parsing(f"{self.names[episode]}, {camera}", "images"):
            images = read(episode, wanted if len(steps) else np.zeros(1, np.int64), camera)
        return images if np.array_equal(wanted, steps) and len(steps) else images[rows]

    def _values(self, source: str, episode: int) -> Array | None:
        if source == "features":  # features are computed, never recorded
            return None
        if source == "timestamps":
            return np.arange(self.episodes[episode].length) / self.episodes[episode].fps
        found = self._numbers(episode, source)
        return found[:, 0] if found is not None and source == "rewards" else found

    def _numbers(self, episode: int, name: str) -> Array | None:
        """Return a vector as finite float32 [T, n]; `None` if it is not recorded."""
        where, length = f"{self.names[episode]}, {name}", self.episodes[episode].length
        with parsing(where, f"numbers for {length} steps"), np.errstate(over="ignore"):
            values = self.vectors(episode, name)
            if values is None:
                return None
            found: Array = as_numbers(values).astype(np.float32).reshape(length, -1)
        one = name != "rewards" or found.shape[1] == 1
        require(one, where, f"{found.shape[1]} numbers a step", "one", "record it again")
        check_finite(where, found)
        return found
