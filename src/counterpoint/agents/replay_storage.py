"""The rows of a replay buffer: arrays used as rings, in memory or in memory-mapped files.

Rows are numbered from 0 without end; row r lies at place r modulo the number of rows, so an episode may run over the
end of the arrays and go on at their beginning.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError

__all__ = ["Column", "Rows"]

LARGE = 1 << 20
"""Bytes from which on an output's memory is used again."""

SPARE = 8
"""How many outputs of each size wait to be used again at most."""


@dataclass(frozen=True)
class Column:
    """What one array holds in each row."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Rows:
    """Columns of equal length, written and read by row number.

    Args:
        columns: Name -> shape and type of a row.
        count: Rows.
        folder: Where the files go, one a column; `None` keeps the arrays in memory. Files that are there are kept, so
            that a buffer can be restored.

    Raises:
        BadInputError: When the arrays are larger than what is free, or the folder holds another buffer's files.
            Nothing was allocated then.
    """

    def __init__(self, columns: Mapping[str, Column], count: int, folder: Path | None) -> None:
        self.count = count
        self._columns, self._outputs = dict(columns), _Outputs()
        self._arrays: dict[str, NDArray[Any]] = {}
        need = count * sum(column.row_bytes for column in columns.values())
        if folder is None:
            _check_room("replay buffer", need, _free_memory(), "memory")
            self._arrays = {name: np.empty((count, *c.shape), c.dtype) for name, c in columns.items()}
        else:
            self._map(Path(folder), need)

    def _map(self, folder: Path, need: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        note, files = folder / "rows.json", {name: folder / f"{name}.bin" for name in self._columns}
        layout = {
            "rows": self.count,
            "columns": {name: [list(c.shape), c.dtype] for name, c in self._columns.items()},
        }
        if note.exists() and note.read_text() != json.dumps(layout):
            raise BadInputError(
                folder,
                found="the files of a replay buffer of other sizes",
                expected="an empty folder, or the files of this very buffer",
                mend="restore with the spaces, capacity and slack it was made with, or use another folder",
            )
        held = sum(file.stat().st_blocks * 512 for file in files.values() if file.exists())
        _check_room(folder, need - held, shutil.disk_usage(folder).free, "disk")
        for name, column in self._columns.items():
            with files[name].open("ab") as file:
                file.truncate(self.count * column.row_bytes)  # sparse: blocks are taken as rows are written
            self._arrays[name] = np.memmap(
                files[name], column.dtype, mode="r+", shape=(self.count, *column.shape)
            )
        if not note.exists():
            made = note.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps(layout))
            made.rename(note)

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Put `values` [n, ...] at rows `row` and after, n at most the number of rows."""
        place = row % self.count
        fit = min(len(values), self.count - place)
        self._arrays[name][place : place + fit] = values[:fit]
        self._arrays[name][: len(values) - fit] = values[fit:]

    def gather(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the rows asked for: [*rows.shape, ...]."""
        column, array = self._columns[name], self._arrays[name]
        places = (rows % self.count).reshape(-1)
        out = self._outputs.empty((rows.size, *column.shape), column.dtype)
        # Any mode but "raise" lets numpy copy straight into `out`; the remainder keeps every place in range.
        np.take(array, places, axis=0, out=out, mode="clip")
        return out.reshape(*rows.shape, *column.shape)

    def checksum(self, row: int, count: int) -> int:
        """CRC-32 over `count` rows of every column, from `row` on."""
        place = row % self.count
        fit = min(count, self.count - place)
        digest = 0
        for array in self._arrays.values():
            for piece in (array[place : place + fit], array[: count - fit]):
                digest = zlib.crc32(np.ascontiguousarray(piece).view(np.uint8).reshape(-1).data, digest)
        return digest

    def flush(self) -> None:
        """Have the operating system write what is in files to their disk."""
        for array in self._arrays.values():
            if isinstance(array, np.memmap):
                array.flush()


class _Outputs:
    """Memory for what is gathered. Large pieces are used again as soon as nobody holds them any longer.

    Fresh memory comes page by page, each at the price of a fault: for a batch of pictures more than the copy itself.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """As `np.empty`."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if need < LARGE:
            return np.empty(shape, dtype)
        free = self._free.setdefault(need, [])
        memory = free.pop() if free else bytearray(need)
        # Every array and tensor made of `flat` holds it, because its own memory is no array's.
        flat = np.frombuffer(memory, dtype)
        weakref.finalize(flat, _put_back, free, memory).atexit = False
        return flat.reshape(shape)


def _put_back(free: list[bytearray], memory: bytearray) -> None:
    if len(free) < SPARE:
        free.append(memory)


def _check_room(where: str | Path, need: int, free: int, what: str) -> None:
    if need > free:
        raise BadInputError(
            where,
            found=f"a need of {need / 1e9:.2f} GB, with {free / 1e9:.2f} GB of {what} free",
            expected=f"a replay buffer that fits into free {what}",
            mend="lower its capacity"
            + (" or give it a folder, to keep it in files" if what == "memory" else " or use another disk"),
        )


def _free_memory() -> int:
    """Bytes that can be had without swapping: caches of files count as free where the system tells them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
