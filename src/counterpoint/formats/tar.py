"""Find the members of uncompressed tars, and keep indexes of large files in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from counterpoint.errors import require
from counterpoint.files import cache_root, write_atomically
from counterpoint.formats.boundary import parsing
from counterpoint.formats.remote import Stream, opened

HINT = "download it again; a compressed tar has to be unpacked first: gunzip"


def members(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of every regular file in a tar; little but the headers of a remote tar is read.

    Raises:
        BadInputError: When the file is not an uncompressed tar, or is cut short.
    """
    with parsing(path, "an uncompressed tar", HINT):
        size, source = path.stat().st_size, opened(path, block=1 << 16)
        with tarfile.open(str(path), "r:", fileobj=source if isinstance(source, Stream) else None) as tar:
            archive: Any = tar
            while (member := archive.next()) is not None:
                archive.members.clear()  # `tarfile` would keep all members in memory
                if member.isreg():
                    ends = member.offset_data + member.size
                    require(0 <= member.size <= ends <= size, path, f"{size} bytes", f"at least {ends}", HINT)
                    yield member.name, member.offset_data, member.size
            _check_end(path, archive.fileobj, archive.offset)


def _check_end(path: Path, file: Any, offset: int) -> None:
    """Require zeros after the last member, because `tarfile` stops at a damaged header without an error."""
    file.seek(offset)
    found = file.read(tarfile.BLOCKSIZE)
    require(len(found) == tarfile.BLOCKSIZE, path, f"an end at byte {offset}", "a mark of the archive's end", HINT)
    while found:
        require(not any(found), path, f"a damaged header at byte {offset}", "another member, or the end", HINT)
        found = file.read(1 << 16)


def indexed(path: Path, kind: str, make: Callable[[], Any], keep: Callable[[Any], bool] = lambda index: True) -> Any:
    """Return an index of a file, which is a JSON value, from the cache or computed now.

    Args:
        path: The file; a file that has changed is indexed anew.
        kind: Name and version of the index.
        make: Function that computes the index.
        keep: Function that returns True if an index has no faults and may be cached.
    """
    with parsing(path, "a readable file"):
        stat = path.stat()
    about = [kind, str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    kept = cache_root() / "indexes" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):  # absent, or cut short
        return json.loads(kept.read_bytes())
    index = make()
    if keep(index):
        with suppress(OSError):  # a cache that cannot be written
            write_atomically(kept, json.dumps(index))
    return index
