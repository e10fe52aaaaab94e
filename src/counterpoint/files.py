"""Files that are written whole: a reader sees the old or the new content, never a part."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a small file; its folder is made when absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}")  # two machines may share the folder
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Put a file or a folder's entries on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
