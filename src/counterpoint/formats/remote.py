"""Read data sets by their id on the Hub, or at a URL that fsspec supports, such as `s3://bucket/set`.

A data set of the Hub, ORG/NAME or ORG/NAME@REVISION, is downloaded whole into the Hub's cache. A URL is mirrored by a
folder in the user's cache. Metadata and tables are copied; any other file is an empty (sparse) file of the same length,
whose bytes are read from the URL by ranges. `opened` and `read_ranges` read such files, and also local ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.spec import AbstractBufferedFile

from counterpoint.errors import BadInputError, MissingExtraError, import_extra, require
from counterpoint.files import cache_root, write_atomically
from counterpoint.folder import lock
from counterpoint.formats.boundary import parsing, read_bytes, require_size
from counterpoint.repositories import cached_content, data_folder, hub_id

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")  # a path object turns two slashes into one
_COMMIT = re.compile(r"[0-9a-f]{40}")
_COPIED = (".json", ".jsonl", ".csv", ".tsv")
_ABOUT = ".remote.json"
_EXTRAS = {"s3": "remote", "s3a": "remote"}
_KEPT = 16  # number of blocks that a stream keeps


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, such as a member of a tar; `name` is for errors."""

    path: Path
    offset: int
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}, {self.name}"


def url_of(path: str | Path) -> str | None:
    """Return the URL that a path stands for; `None` for a local path."""
    found = _URL.fullmatch(str(path))
    if found is None:
        return None
    return f"file:///{found[2]}" if found[1] == "file" else f"{found[1]}://{found[2].rstrip('/')}"


def absolute(path: str | Path) -> str:
    """Return a path that always means the same data: the URL, the Hub id with its commit, or the absolute path."""
    if (named := hub_id(path)) is not None:
        name, revision = named
        return f"{name}@{revision if _COMMIT.fullmatch(revision or '') else data_folder(name, revision).name}"
    return url_of(path) or str(Path(path).resolve())


def may_exist(path: str | Path) -> bool:
    """Return whether a path exists, or is a URL or a Hub id, which are looked up only when they are read."""
    return bool(url_of(path) or hub_id(path)) or Path(path).exists()


def reachable(path: str | Path) -> bool:
    """Return whether there is something at a path, a URL or a Hub id now."""
    try:
        return located(path).exists()
    except BadInputError:
        return False


def located(path: str | Path) -> Path:
    """Return the local folder or file of a path, a URL (its mirror) or a Hub id (its download).

    Each process asks for a URL or an id only once.

    Raises:
        BadInputError: When the URL or the Hub cannot be reached, or there is nothing of that name.
        MissingExtraError: When the package that reads URLs of this kind is not installed.
    """
    if (named := hub_id(path)) is not None:
        return data_folder(*named)
    url = url_of(path)
    if url is None:
        return Path(path)
    return Path(url.removeprefix("file://")) if url.startswith("file://") else _mirrored(url, cache_root())


def whole(path: str | Path) -> Path:
    """Return the local folder of a data set whose files are copied as they are.

    Raises:
        BadInputError: When the data set is at a URL, so that its files are not here.
    """
    folder = located(path)
    require(not is_remote(folder / "x"), path, "a data set at a URL", "one on this machine", "download it first")
    return folder


def version(file: Path) -> str:
    """Return a text that changes with a file's content: the content's name in the Hub's cache, or the file's time.

    Raises:
        OSError: When the file does not exist.
    """
    return cached_content(file) or str(file.stat().st_mtime_ns)


def is_remote(path: str | Path) -> bool:
    """Return whether a local path is the mirror of a remote file or folder."""
    return _remote(path) is not None


def opened(source: str | Path | Part, block: int = 1 << 18) -> str | Stream:
    """Return a file as libraries open it: the path of a local file, or a stream that fetches `block` bytes at once."""
    whole = not isinstance(source, Part)
    return str(source) if whole and not is_remote(str(source)) else Stream(source, block)


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each (offset, size) of a file; the ranges of a remote file are fetched in parallel.

    Raises:
        BadInputError: When the file cannot be read, or is too short.
    """
    url = _remote(path)
    require_size(path, sum(size for _, size in ranges))
    if url is None:
        with (
            parsing(path, "a readable file", "check the path"),
            path.open("rb") as file,
        ):  # opened anew, so that forked workers share no file position
            found = [os.pread(file.fileno(), size, offset) for offset, size in ranges]
    else:
        with _reaching(url):
            system, place = _system(url)
            starts, ends = [offset for offset, _ in ranges], [offset + size for offset, size in ranges]
            if system.async_impl:
                found = system.cat_ranges([place] * len(ranges), starts, ends, on_error="raise")
            else:  # by default, a file system like this would read far ahead
                spans = zip(starts, ends, strict=True)
                found = [system.cat_file(place, start, end, cache_type="none") for start, end in spans]
    for data, (offset, size) in zip(found, ranges, strict=True):
        expected, hint = f"{size} bytes from {offset}", "the file was cut short or replaced: open the data again"
        require(len(data) == size, url or path, f"{len(data)} bytes", expected, hint)
    return found


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file, local or remote."""
    return read_ranges(path, [(0, path.stat().st_size)])[0] if is_remote(path) else read_bytes(path)


class Stream(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A file or a part of a file, read by ranges; the blocks read last are kept.

    Args:
        source: A file of a mirror, or a part of any file.
        block: Bytes fetched at a time.
    """

    def __init__(self, source: str | Path | Part, block: int) -> None:
        part = source if isinstance(source, Part) else Part(Path(source), 0, Path(source).stat().st_size, "")
        self._part, kept = part, {"maxblocks": _KEPT}
        super().__init__(None, str(part), block_size=block, cache_type="blockcache", cache_options=kept, size=part.size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        size = min(end, self._part.size) - start  # the last block may be shorter
        return read_ranges(self._part.path, [(self._part.offset + start, size)])[0]


@lru_cache
def _mirrored(url: str, root: Path) -> Path:
    """Update the local copy of the data at a URL, and return its folder."""
    with _reaching(url):
        system, place = _system(url)
        found = system.find(place, detail=True)
    hint = "check the address: a data set is a folder"
    require(found, url, "nothing there", "the files of a data set", hint)
    alone = set(found) == {place}
    # The name helps to understand errors about files in the folder.
    name = f"{re.sub('[^A-Za-z0-9]+', '-', url)[:60]}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    folder = (root / "remote" / name).resolve()
    files = {place.rpartition("/")[2] if alone else key.removeprefix(f"{place}/"): one for key, one in found.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_name(f"{name}.lock"), "copies", wait=True):
        if alone:
            url = url.rpartition("/")[0]
        write_atomically(folder / _ABOUT, json.dumps({"url": url}))
        for old in [path for path in folder.rglob("*") if path.is_file() and path.name != _ABOUT]:
            if old.relative_to(folder).as_posix() not in files:
                old.unlink()
        for key, entry in files.items():
            if entry["type"] == "file":
                _mirror_file(system, url, folder, key, entry)
    return folder / next(iter(files)) if alone else folder


def _mirror_file(system: Any, url: str, folder: Path, key: str, entry: dict[str, Any]) -> None:
    """Copy a small file, or make an empty file as long as a large one; the modification time encodes the version."""
    where, parts = f"{url}/{key}", PurePosixPath(key).parts
    plain = bool(parts) and ".." not in parts and not key.startswith("/") and key != _ABOUT
    require(plain, where, "a name that leaves the folder", "a path inside it", "do not use this data set")
    version = [str(entry.get(name)) for name in ("etag", "ETag", "blob_id", "md5", "mtime", "LastModified", "created")]
    size = entry["size"]
    stamp = int.from_bytes(hashlib.sha256(repr((size, version)).encode()).digest()[:8]) % 10**18
    path = folder / key
    if path.is_file() and (path.stat().st_size, path.stat().st_mtime_ns) == (size, stamp):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if parts[0] == "meta" or path.suffix in _COPIED:
        with _reaching(where):
            write_atomically(path, system.cat_file(entry["name"]))
    else:
        with path.open("wb") as file:
            file.truncate(size)
    os.utime(path, ns=(stamp, stamp))


def _remote(path: str | Path) -> str | None:
    """Return the URL of a file in a mirror; `None` for any other file."""
    root = _mirrors(cache_root())
    if not str(path).startswith(root):
        return None
    folder, _, key = str(path)[len(root) :].partition("/")
    return f"{_url_behind(root + folder)}/{key}"


@lru_cache
def _mirrors(root: Path) -> str:
    return f"{(root / 'remote').resolve()}/"


@lru_cache
def _url_behind(folder: str) -> str:
    return str(json.loads((Path(folder) / _ABOUT).read_text())["url"])


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL (one per process) and the path in it."""
    system, place = import_extra("fsspec.core", "remote").url_to_fs(url)
    return system, place.rstrip("/")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turn every error of a server, or of the library that accesses it, into a short error of this library."""
    try:
        yield
    except (BadInputError, MissingExtraError):
        raise
    except FileNotFoundError:
        raise BadInputError(url, "nothing there", "the files of a data set", "check the address") from None
    except ImportError as error:
        protocol = url.partition(":")[0]
        if protocol in _EXTRAS:
            raise MissingExtraError("s3fs", _EXTRAS[protocol]) from error
        raise BadInputError(url, str(error), "an installed file system of fsspec", "install it") from error
    except Exception as error:  # each file system has its own exceptions
        found = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:160]}"
        hint = "check the address, the network and the credentials"
        raise BadInputError(url, found, "a data set that can be reached", hint) from error
