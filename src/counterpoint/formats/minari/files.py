"""Find and open a Minari data set: a folder anywhere, an id below the local root, or a download.

    ROOT/D4RL/pointmaze/umaze-v2/data/metadata.json     next to main_data.hdf5, or to one folder per episode

ROOT is `MINARI_DATASETS_PATH`, by default `~/.minari/datasets`; a folder that is given by its path may lie anywhere.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats.boundary import first_line, parsing, read_bytes
from counterpoint.formats.hdf5.opening import open_hdf5

_MAIN = "main_data.hdf5"
ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")


def import_minari() -> Any:
    """Import `minari`, or raise `MissingExtraError`."""
    try:
        import minari
        import minari.dataset.minari_storage
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "minari", "minari") from None
    return minari


def is_minari(path: str | Path) -> bool:
    """Return whether a folder is a Minari data set."""
    try:
        metadata = json.loads(read_bytes(Path(path).expanduser() / "data" / "metadata.json"))
    except (ValueError, RecursionError):  # a `BadInputError` is a `ValueError`
        return False
    return isinstance(metadata, dict) and "data_format" in metadata


def open_minari(source: str | Path) -> Any:
    """Open a `minari.MinariDataset` by folder or by id; an id that is not yet on this disk is downloaded.

    Args:
        source: A data set's folder (the one that holds `data`), or an id such as "D4RL/pointmaze/umaze-v2".

    Raises:
        BadInputError: When the data set is missing and cannot be downloaded, is damaged, or has another version.
        MissingExtraError: When `minari`, or a package that it needs to read this format, is not installed.
    """
    minari = import_minari()
    folder = _find(minari, source)
    main = folder / "data" / _MAIN
    if main.is_file():  # refuse a file that refers to another file, or claims data that it does not hold
        open_hdf5(main, "the HDF5 file of a Minari data set").close()
    with reading(folder):
        try:
            return minari.MinariDataset(folder / "data")
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "minari[hdf5]", "minari") from None


def reading(where: str | Path) -> AbstractContextManager[None]:
    """Turn every error of minari on a damaged data set into `BadInputError`."""
    expected = "a whole Minari data set, of a version that the installed minari reads"
    hint = "download or record it again, or install the version of minari it needs"
    return parsing(where, expected, hint)


def _find(minari: Any, source: str | Path) -> Path:
    path, name = Path(source).expanduser(), str(source)
    if is_minari(path):
        return path
    if path.exists() or not ID.fullmatch(name):
        found = "a folder without data/metadata.json" if path.exists() else "nothing there"
        expected = "a Minari data set: its folder, or an id such as D4RL/pointmaze/umaze-v2"
        raise BadInputError(source, found, expected, "check the path or the id")
    root = Path(os.environ.get("MINARI_DATASETS_PATH", "~/.minari/datasets")).expanduser()
    if is_minari(root / name):
        return root / name
    print(f"Downloading the Minari data set {name}", file=sys.stderr, flush=True)
    client = logging.getLogger("huggingface_hub")
    before = client.level
    client.setLevel(logging.ERROR)  # its warnings of every attempt say no more than the error below
    try:
        minari.download_dataset(name)
        return Path(minari.load_dataset(name).spec.data_path).parent
    except Exception as error:  # no network, an unknown id, or a package missing for the download
        found = f"nothing in {root}, and no download ({type(error).__name__}: {first_line(error)})"
        hint = (
            f"where there is a network, run: pip install 'minari[hdf5,hf]' && minari download {name}; then copy "
            f"~/.minari/datasets/{name} to {root / name}, or give the folder's path"
        )
        raise BadInputError(f"Minari data set {name}", found, "a data set there, or a network", hint) from None
    finally:
        client.setLevel(before)
