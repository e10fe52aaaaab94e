"""Write files and folders atomically: a reader sees the old or the new content, never a part."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from counterpoint.errors import BadInputError, require


def cache_root() -> Path:
    """Return the folder of training stores, indexes and mirrors: `COUNTERPOINT_CACHE` or `~/.cache/counterpoint`."""
    return Path(os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write or replace a small file; its folder is created if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _hidden(path)
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Beside(TemporaryDirectory[str]):
    """A temporary hidden folder next to a path, in which the path's content is prepared.

    Such folders that killed processes left behind are removed.

    Args:
        path: The path that the content will have; its parent folder is created if absent.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{path.name}.building-"
        for old in path.parent.glob(f"{glob.escape(prefix)}*"):
            with suppress(OSError):  # in use by a running process, already removed, or on a file system without locks
                lock = os.open(old, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(old)
                finally:
                    os.close(lock)
        super().__init__(dir=path.parent, prefix=prefix)
        self._held = os.open(self.name, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(self._held, fcntl.LOCK_SH)

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def remove(path: Path) -> None:
    """Rename a folder, if it exists, then delete it, so that a killed process leaves no partial folder at `path`."""
    hidden = _hidden(path)
    with suppress(FileNotFoundError):
        path.rename(hidden)
        shutil.rmtree(hidden)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_object(path: Path, expected: str, hint: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        BadInputError: If the file holds no object; the error has the given `expected` and `hint`.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInputError(path, f"no JSON object ({error})", expected, hint) from None
    require(isinstance(found, dict), path, f"no JSON object (a {type(found).__name__})", expected, hint)
    return dict(found)


def sha256_of(path: Path) -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hidden(path: Path) -> Path:
    """Return a hidden name next to a path; the name is random, because two machines may share the folder."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}")
