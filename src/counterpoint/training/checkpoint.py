"""Checkpoints: safetensors for tensors, JSON for the rest, no pickle.

    checkpoints/
      step-00000500/        sealed: see `counterpoint.folder`
        state.safetensors   every tensor of the state
        state.json          its shape: nested dicts and lists with tensors by name
        SHA256SUMS          the digests of the two
      last                  the newest step's folder name, switched after the folder is in place

A checkpoint is made beside its place and renamed, so that a kill at any moment leaves the older ones whole. Reading
compares the digests; when the newest is damaged the next older valid one is found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.files import Beside, flush, remove, write_atomically
from counterpoint.folder import read_part, seal

PREFIX = "step-"
STATE, SKELETON = "state.safetensors", "state.json"
_HINT = "delete this checkpoint; training resumes from an older one"


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
    try:
        with Beside(final) as beside:
            made = Path(beside) / final.name
            made.mkdir()
            tensors: dict[str, Tensor] = {}
            skeleton = _take_tensors(state, "", tensors)
            save_file(tensors, made / STATE)
            (made / SKELETON).write_text(json.dumps({"step": step, "state": skeleton}))
            seal(made, [STATE, SKELETON])
            remove(final)
            made.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:  # a full disk, which safetensors reports in its own way
        hint = f"free some space, then run the same command again; {last_good(folder)}"
        raise BadInputError(folder, f"no checkpoint could be written ({error})", "a disk with room", hint) from None
    settle(folder, final, keep=keep)
    return final


def settle(folder: Path, path: Path, *, keep: int) -> None:
    """Name `path` the last checkpoint, and remove older ones, so that `keep` are left with it."""
    write_atomically(folder / "last", path.name)
    every = list_checkpoints(folder)
    for old in every[: max(0, every.index(path) + 1 - keep)]:
        remove(old)


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Return step and state of one checkpoint; its hashes are checked first.

    Raises:
        BadInputError: When a file is missing or does not match its hash.
    """
    try:
        # Read into memory rather than mapped: a mapped tensor would change with a file that is written over.
        tensors = load(read_part(path, STATE, _HINT))
        skeleton = json.loads(read_part(path, SKELETON, _HINT))
        return skeleton["step"], _put_tensors(skeleton["state"], tensors)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(path, f"{type(error).__name__}: {error}", "a whole checkpoint", _HINT) from None


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
