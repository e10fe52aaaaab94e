"""Checkpoints: safetensors for tensors, JSON for the rest, no pickle.

    checkpoints/
      step-00000500/
        state.safetensors   every tensor of the state
        state.json          its shape: nested dicts and lists with tensors by name
        manifest.json       sha256 of the two, written last
      last                  the newest step's folder name, switched after the folder is in place

A checkpoint is written into a temporary folder, flushed to disk and renamed, so that a kill at any moment leaves the
older ones whole. Reading checks the hashes; when the newest is damaged the next older valid one is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.files import flush, sha256_of, write_atomically

PREFIX = "step-"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `state` as the checkpoint of `step` and drop all but the newest `keep`.

    Args:
        folder: The run's `checkpoints` folder; made when absent.
        step: Optimiser steps done.
        state: Nested dicts, lists and tuples of tensors, numbers, strings, booleans and `None`.
        keep: Number of checkpoints that stay.

    Returns:
        The checkpoint's folder.
    """
    final = folder / f"{PREFIX}{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        tensors: dict[str, Tensor] = {}
        skeleton = _take_tensors(state, "", tensors)
        save_file(tensors, temporary / "state.safetensors")
        (temporary / "state.json").write_text(json.dumps({"step": step, "state": skeleton}))
        hashes = {name: sha256_of(temporary / name) for name in ("state.safetensors", "state.json")}
        (temporary / "manifest.json").write_text(json.dumps(hashes, indent=1))
        for path in temporary.iterdir():
            flush(path)
    except (OSError, SafetensorError) as error:  # a full disk, which safetensors reports in its own way
        shutil.rmtree(temporary, ignore_errors=True)
        hint = f"free some space, then run the same command again; {last_good(folder)}"
        raise BadInputError(folder, f"no checkpoint could be written ({error})", "a disk with room", hint) from None
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    flush(folder)
    settle(folder, final, keep=keep)
    return final


def settle(folder: Path, path: Path, *, keep: int) -> None:
    """Name `path` the last checkpoint, and remove older ones, so that `keep` are left with it."""
    write_atomically(folder / "last", path.name)
    every = list_checkpoints(folder)
    for old in every[: max(0, every.index(path) + 1 - keep)]:
        hidden = old.with_name(f".{old.name}.{os.getpid()}")  # half of one would look whole to nobody, yet stay
        shutil.rmtree(hidden, ignore_errors=True)
        old.rename(hidden)
        shutil.rmtree(hidden)


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Return step and state of one checkpoint; its hashes are checked first.

    Raises:
        BadInputError: When a file is missing or does not match its hash.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        # Read into memory rather than mapped: a mapped tensor would change with a file that is written over.
        read = {name: (path / name).read_bytes() for name in ("state.safetensors", "state.json")}
        for name, content in read.items():
            found = hashlib.sha256(content).hexdigest()
            if found != manifest[name]:
                raise _damaged(path / name, f"sha256 {found[:12]}", f"{manifest[name][:12]}, as in manifest.json")
        tensors = load(read["state.safetensors"])
        skeleton = json.loads(read["state.json"])
        return skeleton["step"], _put_tensors(skeleton["state"], tensors)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        if isinstance(error, BadInputError):
            raise
        raise _damaged(path, f"{type(error).__name__}: {error}", "a whole checkpoint") from None


def newest_valid(folder: Path) -> tuple[Path, int, dict[str, Any], list[BadInputError]] | None:
    """Return the newest whole checkpoint and the errors of newer ones; `None` when there is none."""
    troubles: list[BadInputError] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            step, state = load_checkpoint(path)
        except BadInputError as trouble:
            troubles.append(trouble)
            continue
        return path, step, state, troubles
    if troubles:
        raise troubles[0]
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []


def last_good(folder: Path) -> str:
    """Return words on the newest checkpoint, for a run that cannot go on."""
    last = folder / "last"
    if not last.exists():
        return "none was saved yet"
    return f"the last good checkpoint is {folder / last.read_text()}"


def _damaged(path: Path, found: str, expected: str) -> BadInputError:
    return BadInputError(path, found, expected, "delete this checkpoint; training resumes from an older one")


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON form of `value`; its tensors go to `tensors` under their path."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _take_tensors(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_take_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {name})")


def _put_tensors(skeleton: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _put_tensors(item, tensors) for key, item in content}
    if kind == "list":
        return [_put_tensors(item, tensors) for item in content]
    if kind == "tuple":
        return tuple(_put_tensors(item, tensors) for item in content)
    return content
