"""Data sets that many tests want alike: written once in a process, then copied."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Write = Callable[..., Any]


@functools.cache
def _originals() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="counterpoint-tests-")


def made_once(write: Write) -> Callable[..., Path]:
    """Let `write(root, ...)` work at its first call with the same arguments alone; return the root."""
    written: dict[str, Path] = {}

    @functools.wraps(write)
    def copied(root: Path, *arguments: Any, **settings: Any) -> Path:
        wanted = repr((arguments, settings))
        if wanted not in written:
            original = Path(_originals().name) / f"{write.__name__}-{len(written)}"
            write(original, *arguments, **settings)
            written[wanted] = original
        return shutil.copytree(written[wanted], root, dirs_exist_ok=True)

    return copied
