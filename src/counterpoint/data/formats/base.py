"""The base class of all readers, the guard around what they parse, and checks that several formats share."""

from __future__ import annotations

import csv
import hashlib
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np
import pyarrow as pa
from PIL import Image

from counterpoint.data.episode import Array, EpisodeInfo, check_finite
from counterpoint.data.store import EpisodeStore, check_camera
from counterpoint.errors import BadInputError, MissingExtraError, require

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
    """Return `read(item)` of each item; one whose attributes `parts` differ from the first's is reported, too."""
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


DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError, SyntaxError),
    *(RuntimeError, SystemError, zlib.error, struct.error, csv.Error, zipfile.BadZipFile, tarfile.TarError),
    *(pickle.UnpicklingError, pa.ArrowException, av.FFmpegError, Image.DecompressionBombError),
)
"""The exceptions by which parsers report damaged content; Pillow raises `SyntaxError`, h5py `SystemError`, too.

`TypeError`, `AttributeError`, `NameError` and `AssertionError` are mistakes of ours, and surface.
"""
TREE = (TypeError, AttributeError)
"""What a block raises, too, that takes a parsed tree apart, in which anything may be a list, a text or nothing."""


@contextmanager
def parsing(
    where: str | Path, expected: str, hint: str = "download or record it again", also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn an exception that damaged or malicious content causes into a `BadInputError`.

    Args:
        where: The content.
        expected: What would be accepted.
        hint: An action that would solve the problem.
        also: Further exceptions, such as `TREE`; only of a block that calls another library or takes a tree apart.
    """
    try:
        yield
    except (BadInputError, MissingExtraError):
        raise
    except (*DAMAGE, *also) as error:
        found = f"damaged content ({type(error).__name__}: {first_line(error)})"
        raise BadInputError(where, found, expected, hint) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    return next(iter(str(error).strip().splitlines()), "")[:160]


def array_headers(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of each array of an .npz by name, without unpacking it."""
    headers = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            headers[member.removesuffix(".npy")] = (shape, dtype)
    return headers


def require_new(path: Path) -> None:
    """Raise a `BadInputError` when something exists at the path to write."""
    require(not path.exists(), path, "an existing path", "a new one", "give another name, or remove it")


class Reader(EpisodeStore):
    """An `EpisodeStore` over files; a format overrides what it has.

    Attributes:
        cameras: Camera names; the first is the default.
        episodes: Length, instruction, frame rate and success of each episode.
        names: Name of each episode in errors.
        files: Files whose name, size and modification time enter the fingerprint.
        identity: Further contents of the fingerprint, beside `episodes`.
        rate_recorded: False where the frame rate is assumed, because the format does not record it.
        left_out: Parts of the data set that are not read, in words for `counterpoint data info`.
    """

    cameras: tuple[str, ...] = ("camera",)
    episodes: tuple[EpisodeInfo, ...] = ()
    names: Sequence[object] = ()
    files: Sequence[Path] = ()
    identity: object = None
    rate_recorded: bool = True
    left_out: tuple[str, ...] = ()

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return uint8 [N, H, W, 3] at N steps in range."""
        raise NotImplementedError

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return one of `VECTORS` that are recorded as [T, n] or [T] of any numeric type, or `None`."""
        return None

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes whenever the content behind the store does."""
        digest = hashlib.sha256(repr((self.episodes, self.identity)).encode())
        for path in self.files:
            with parsing(path, "a readable file"):
                stat = path.stat()
            digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """Return uint8 [N, H, W, 3] at the N step `indices`; an unknown camera or step is refused."""
        name = camera or next(iter(self.cameras), "")
        check_camera(name, self.cameras)
        steps, length = np.asarray(indices, np.int64).reshape(-1), self.episodes[episode].length
        if len(steps) and not (steps.min() >= 0 and steps.max() < length):
            found, where = f"a request for steps {steps.min()} to {steps.max()}", str(self.names[episode])
            raise BadInputError(where, found, f"steps from 0 to {length - 1}", "read steps of the episode")
        images = self.read(episode, steps, name)
        good, found = images.dtype == np.uint8 and images.ndim == 4, f"images {images.dtype} {list(images.shape)}"
        require(
            good and images.shape[-1] == 3, str(self.names[episode]), found, "uint8 [N, H, W, 3]", "record it again"
        )
        return images

    def _values(self, source: str, episode: int) -> Array | None:
        if source == "features":  # computed, never recorded
            return None
        if source == "timestamps":
            return np.arange(self.episodes[episode].length) / self.episodes[episode].fps
        numbers = self._numbers(episode, source)
        return numbers[:, 0] if numbers is not None and source == "rewards" else numbers

    def _numbers(self, episode: int, name: str) -> Array | None:
        """Return finite float32 [T, n]."""
        where, length = f"{self.names[episode]}, {name}", self.episodes[episode].length
        with parsing(where, f"numbers for {length} steps"), np.errstate(over="ignore"):
            values = self.vectors(episode, name)
            if values is None:
                return None
            found = np.asarray(values)
            require(found.dtype.kind in "biuf", where, f"{found.dtype}", "numbers", "record it again")
            numbers: Array = found.astype(np.float32).reshape(length, -1)
        one = name != "rewards" or numbers.shape[1] == 1
        require(one, where, f"{numbers.shape[1]} numbers a step", "one", "record it again")
        check_finite(where, numbers)
        return numbers
