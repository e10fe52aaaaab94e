"""Open HDF5 files that others wrote: damage that crashes HDF5, links out of the file and false sizes are refused.

HDF5 reads damaged files into crashes or endless loops, so a file's structure is first read in a separate process.
"""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError, MissingExtraError, require
from counterpoint.formats.boundary import MOST_BYTES, MOST_PIXELS, first_line, parsing, require_size
from counterpoint.formats.tar import indexed

_SECONDS = 15.0  # time to read the structure of a small file; larger files get a second more for each 10 MB
EXPECTED = "an HDF5 file of robomimic, LIBERO, IsaacLab or ALOHA"


def import_h5py() -> Any:
    """Import `h5py`, or raise `MissingExtraError`."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise MissingExtraError("h5py", "hdf5") from None
    return h5py


def open_hdf5(path: Path, expected: str = EXPECTED) -> Any:
    """Open an `h5py.File` for reading; refuse a file that is damaged, refers to another file or lacks claimed data."""
    h5py = import_h5py()
    if path.is_file():
        survives = indexed(path, "hdf5-1", lambda: _survives(path), keep=bool)
        found, hint = "damage that crashes or hangs the HDF5 library", "download or record it again"
        require(survives, path, found, expected, hint)
    try:
        stat = path.stat()
        file = h5py.File(path, "r")
    except OSError as error:
        found = f"no HDF5, or a damaged file ({first_line(error)})" if path.is_file() else "no file"
        raise BadInputError(path, found, expected, "check the path, or download the file again") from None
    with parsing(path, expected):
        _require_contained(path, stat.st_size, stat.st_mtime_ns)
    return file


_LOOK = """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    dict(file.attrs)
    file.visititems(lambda name, part: None if dict(part.attrs) else None)
"""


def _survives(path: Path) -> bool:
    """Return whether HDF5 can read a file's structure (all but the data); damage may crash or hang a trial process."""
    with suppress(subprocess.TimeoutExpired):
        seconds = _SECONDS + path.stat().st_size / 10e6
        looked = subprocess.run([sys.executable, "-c", _LOOK, str(path)], capture_output=True, timeout=seconds)
        return looked.returncode >= 0  # an exception is raised again, and caught, when this process opens the file
    return False


@lru_cache(maxsize=1024)
def _require_contained(path: Path, size: int, changed: int) -> None:
    """Raise an error if a link or a dataset refers to another file; without such links, soft links stay in the file."""
    h5py = import_h5py()

    def foreign(name: str, link: Any) -> str | None:
        if isinstance(link, h5py.ExternalLink):
            return f"an external link at {name}"
        part = file[name] if isinstance(link, h5py.HardLink) else None
        if not isinstance(part, h5py.Dataset):
            return None
        if part.external or part.is_virtual:
            return f"data kept in another file at {name}"
        _require_stored(f"{path}, {name}", part)
        return None

    with h5py.File(path, "r") as file:
        found = file.visititems_links(foreign)
    require(found is None, path, found, "data inside the file", "do not trust this file; copy the data into it")


def _require_stored(where: str, part: Any) -> None:
    """Raise an error if a dataset claims more than is stored (HDF5 would add zeros), or too much for one read."""
    if part.shape is None:  # an empty dataset
        return
    have, wanted = part.id.get_storage_size(), math.prod(part.shape) * part.dtype.itemsize
    if part.chunks:
        require_size(f"{where}, a chunk", math.prod(part.chunks) * part.dtype.itemsize, MOST_BYTES)
        wanted = math.prod(-(-length // chunk) for length, chunk in zip(part.shape, part.chunks, strict=True))
        have = part.id.get_num_chunks()
    unit, hint = "chunks" if part.chunks else "bytes", "download it again, or record it again with every value written"
    require(have >= wanted, where, f"{have} {unit} for the shape {part.shape}", f"{wanted}, all of them", hint)
    row = math.prod(part.shape[1:]) if part.ndim == 4 else math.prod(part.shape) * part.dtype.itemsize
    require_size(where, row, 3 * MOST_PIXELS if part.ndim == 4 else MOST_BYTES)
