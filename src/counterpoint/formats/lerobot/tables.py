"""Columns of LeRobot's parquet tables as arrays and images, and back.

Tables are read one row group at a time. The row groups and files used last are kept up to a limit that does not depend
on the size of the data set.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import MOST_BYTES, parsing, require_size
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.remote import opened, read_whole

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_PIECE = 256  # rows of a column that are read at a time
UNITS = {"mm": np.uint16, "m": np.float32}
"""Unit of distances -> dtype of depth images in that unit."""
HINT = "copy or download the data set again"
CHECKED = {"write_page_checksum": True}
"""Options for writing parquet files: pages get checksums, which are verified on reading if they exist."""


def damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    """Return the error for files that contradict themselves or each other."""
    return BadInputError(where, found, expected, HINT)


def reading(path: Path, expected: str = "a whole parquet file") -> AbstractContextManager[None]:
    """Turn every error that damaged content of a file causes into `BadInputError`."""
    return parsing(path, expected, HINT)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a whole parquet file, or only the `columns` that it has."""
    with reading(path), pq.ParquetFile(opened(path), page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        present = names if columns is None else [name for name in columns if name in names]
        _check_sizes(path, file.metadata, range(file.num_row_groups), len(present))
        return file.read(columns=present, use_threads=False)


def read_cells(path: Path, column: str, rows: Sequence[int]) -> dict[int, object]:
    """Return the values of a column at some rows, by row; it is read in pieces, since values may be large and repeated.

    If the file or the column is missing, the result is empty.
    """
    found: dict[int, object] = {}
    if not path.is_file():
        return found
    wanted, start = np.unique(np.asarray(rows, np.int64)), 0
    with reading(path), pq.ParquetFile(opened(path), page_checksum_verification=True) as file:
        if column in file.schema_arrow.names:
            for piece in file.iter_batches(_PIECE, columns=[column], use_threads=False):
                inside = wanted[(wanted >= start) & (wanted < start + len(piece))]
                found |= {int(row): piece[0][int(row) - start].as_py() for row in inside}
                start += len(piece)
    return found


def _check_sizes(path: Path, metadata: pq.FileMetaData, groups: Iterable[int], columns: int) -> None:
    """Refuse row groups that claim more than can be read at once; a small page can claim much by repeating a value.

    Sizes of single columns would be exact, but pyarrow ends the process when it reads them from a damaged footer.
    """
    rows = 0
    for group in map(metadata.row_group, groups):
        require_size(path, group.total_byte_size, 2 * MOST_BYTES)
        rows += group.num_rows
    require_size(path, 8 * rows * columns)


def count_rows(path: Path) -> int:
    """Return the number of rows of a parquet file, from its footer."""
    return int(_own(file_key(path)).starts[-1])


def column_names(path: Path) -> frozenset[str]:
    """Return the names of the columns of a parquet file, from its footer."""
    return _own(file_key(path)).columns


def read_rows(path: Path, first: int, count: int, columns: Sequence[str]) -> pa.Table:
    """Read rows `first` to `first + count - 1` of some columns."""
    key = file_key(path)
    opened = _own(key)
    rows, missing = int(opened.starts[-1]), sorted(set(columns) - opened.columns)
    require(first + count <= rows, path, f"{rows} rows", f"at least {first + count}, as the metadata say", HINT)
    require(not missing, path, f"no column {', '.join(map(repr, missing))}", "the features of meta/info.json", HINT)
    start, stop = np.searchsorted(opened.starts, [first, first + count - 1], side="right") - 1
    groups = [_group(key, group, tuple(columns)) for group in range(start, stop + 1)]
    return pa.concat_tables(groups).slice(first - int(opened.starts[start]), count)


FileKey = tuple[str, int, int]


def file_key(path: Path) -> FileKey:
    """Return path, size and modification time, so that a rewritten file has another key."""
    with reading(path):
        status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class _Opened:
    """An open file, its columns, the number of rows before each row group, and the total number of rows."""

    file: pq.ParquetFile
    columns: frozenset[str]
    starts: Array


def _own(key: FileKey) -> _Opened:
    """Return a file opened by this thread, because threads that share an open parquet file crash."""
    return _opened(key, threading.get_ident())


@lru_cache(maxsize=32)
def _opened(key: FileKey, thread: int) -> _Opened:
    with reading(Path(key[0])):
        file = pq.ParquetFile(opened(key[0]), page_checksum_verification=True)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        return _Opened(file, frozenset(file.schema_arrow.names), np.cumsum([0, *sizes]))


_groups: LRUCache[pa.Table] = LRUCache(limit=256 * 1024**2)


def _group(key: FileKey, group: int, columns: tuple[str, ...]) -> pa.Table:
    def read() -> tuple[pa.Table, int]:
        with reading(Path(key[0])):
            file = _own(key).file
            _check_sizes(Path(key[0]), file.metadata, [group], len(columns))
            table = file.read_row_group(group, columns=list(columns), use_threads=False)
        return table, table.nbytes

    return _groups.get((key, group, columns), read)


def as_column(values: Array) -> pa.Array:
    """Return [T, *shape] as LeRobot stores it: nested lists of fixed length, or plain values where the shape is [1]."""
    column = pa.array(values.ravel())
    for length in reversed(values.shape[1:] if values.shape[1:] != (1,) else ()):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column


def as_matrix(where: Path, table: pa.Table, name: str) -> Array:
    """Return (nested) lists of numbers, all of the same length, as an array [T, n]: the reverse of `as_column`."""
    with reading(where, f"lists of numbers in {name!r}"):
        values = table[name].combine_chunks()
        while pa.types.is_nested(values.type):
            lengths = pc.list_value_length(values)
            same = not values.null_count and len(pc.unique(lengths)) <= 1
            require(same, where, f"lists of several lengths in {name!r}", "one length", HINT)
            values = values.flatten()
        kind = values.type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        require(numbers, where, f"{kind} in {name!r}", "numbers", HINT)
        require(not values.null_count, where, f"{values.null_count} missing values in {name!r}", "none", HINT)
        return as_array(values).reshape(len(table), -1)


def as_array(column: pa.Array | pa.ChunkedArray) -> Array:
    """Return a column of numbers or booleans, none of them missing, as an array [T]."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(values.type):
        return cast(Array, values.to_numpy(zero_copy_only=False))
    return np.from_dlpack(values)  # `to_numpy` would import pandas, which takes a third of a second


def as_png(frames: Array) -> pa.Array:
    """Return uint8 [T, H, W, 3] as the struct of bytes and path that `datasets` reads as an image."""
    rows = []
    for number, frame in enumerate(frames):
        png = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(frame)).save(png, format="png", compress_level=1)
        rows.append({"bytes": png.getvalue(), "path": f"frame-{number:06d}.png"})
    return pa.array(rows, type=_IMAGE)


def as_depth(frames: Array) -> pa.Array:
    """Return depth images [T, H, W] as encoded images: uint16 as PNG of 16 bits, float32 as TIFF; see `as_png`."""
    kind = "png" if frames.dtype == np.uint16 else "tiff"
    rows = []
    for number, frame in enumerate(frames):
        content = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(frame)).save(content, format=kind)
        rows.append({"bytes": content.getvalue(), "path": f"frame-{number:06d}.{kind}"})
    return pa.array(rows, type=_IMAGE)


def encoded(where: str, images: list[Any], found_at: Callable[[str], Path]) -> list[tuple[str | Path, bytes]]:
    """Return images as they are stored, each with its place for errors: the reverse of `as_png` and `as_depth`.

    Args:
        where: The place, for errors, of images that the table itself holds.
        images: T dictionaries with encoded bytes or a path, or texts that are paths.
        found_at: Function that returns the file at a path and refuses a path outside the data set's folder.
    """
    found: list[tuple[str | Path, bytes]] = []
    for entry in images:
        parts = entry if isinstance(entry, dict) else {"path": entry}
        content, path = parts.get("bytes"), parts.get("path")
        if content is None and isinstance(path, str) and path:
            file = found_at(path)
            found.append((file, read_whole(file)))
        elif isinstance(content, bytes):
            found.append((where, content))
        else:
            raise damaged(where, "an image without bytes", "images inside the parquet file, or their paths")
    return found
