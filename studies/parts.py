"""What benchmarks made of parts share: a folder of their own, results whole or absent, logs, presets."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from counterpoint.config import Config, override, validate
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from studies.pool import Tick

__all__ = ["aloud", "claim_folder", "dump", "logged", "named_preset", "read_result", "spent"]


def claim_folder(out: Path, own: Mapping[str, Any]) -> None:
    """Make a folder one benchmark's: the same configuration goes on in it, any other is refused.

    Args:
        out: The folder.
        own: The configuration, as JSON values, without what may differ when it goes on.

    Raises:
        BadInputError: When it is a file, or holds something else.
    """
    if out.exists() and not out.is_dir():
        raise BadInputError(out, "a file", "a folder", "choose another --out")
    path = out / "config.json"
    try:
        begun = json.loads(path.read_text()) if path.exists() else own
    except ValueError:
        begun = None
    if begun != own:
        ours = isinstance(begun, dict) and own.keys() <= begun.keys()
        raise BadInputError(
            out,
            "a benchmark of another configuration" if ours else "a config.json of something else",
            "an empty folder, or one this configuration began",
            "choose another folder, or remove this one",
        )
    (out / "cells").mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_atomically(path, json.dumps(own, indent=1))


def read_result(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """What a finished part wrote.

    Args:
        path: Its file.
        keys: What it must hold.

    Raises:
        BadInputError: When it is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        missing = set(keys) - found.keys()
    except (ValueError, AttributeError):
        found, missing = {}, set(keys)
    if missing:
        raise BadInputError(
            path,
            f"a damaged result, without {', '.join(sorted(missing))}",
            "what a finished part wrote",
            "remove this file and start the same again: the part is then run once more",
        )
    return found


def spent(wall: float, processor: float) -> dict[str, float]:
    """Seconds since two clocks were read: `time.perf_counter()` and `time.process_time()`."""
    return {
        "seconds": round(time.perf_counter() - wall, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
    }


@contextmanager
def logged(out: Path, name: str) -> Iterator[None]:
    """What parts print goes to files: the terminal belongs to the progress of the whole."""
    folder = out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        yield


def aloud(tick: Tick) -> Tick:
    """A tick whose bar is shown where output went when this was called, also from inside `logged`."""
    out, error = sys.stdout, sys.stderr

    def tell(more: int) -> None:
        with redirect_stdout(out), redirect_stderr(error):
            tick(more)

    return tell


def dump(result: Mapping[str, Any]) -> str:
    """JSON to be read: lists of numbers on one line."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[\s\d.,eE+-]*\]", lambda found: re.sub(r"\s+", " ", found.group()), text) + "\n"


def named_preset(
    presets: Mapping[str, Callable[[], Config]], kind: type[Config], name: str, overrides: Mapping[str, Any]
) -> Config:
    """A preset with overrides, dotted keys and their values.

    Raises:
        BadInputError: When the name or a key is unknown.
    """
    if name not in presets:
        raise BadInputError(f"preset {name!r}", "no such preset", f"one of {', '.join(presets)}", "choose one")
    tree = override(presets[name]().model_dump(mode="json"), overrides)
    return validate(kind, tree, f"preset {name}")
