"""Tables that people write by hand: CSV and JSON lines, read so that an error names the row.

Rows are numbered as an editor numbers lines: in a CSV the header is row 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, raise_error
from counterpoint.formats.boundary import read_bytes


@dataclass(frozen=True)
class Row:
    """A row of a table; its methods read a field, or raise an error that names the field."""

    path: Path
    number: int  # the row's line in the file, from 1
    fields: Mapping[str, object]  # text in a CSV, any JSON value in JSON lines

    @property
    def where(self) -> str:
        """The name of the file and row in errors."""
        return f"{self.path}, row {self.number}"

    def text(self, column: str) -> str:
        """Return a field that must be text and not blank, without surrounding space."""
        value = self.fields.get(column)
        if not isinstance(value, str) or not value.strip():
            raise self.error(column, value, "text that is not empty")
        return value.strip()

    def seconds(self, column: str) -> float | None:
        """Return a time that may be left out (`None`): finite, not negative."""
        value = self.fields.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
            if math.isfinite(number) and number >= 0:
                return number
        raise self.error(column, value, "seconds from the video's start, 0 or more")

    def frame(self, column: str) -> int:
        """Return a whole number, 0 or more."""
        value = self.fields.get(column)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
            return int(value)
        raise self.error(column, value, "a whole number")

    def error(self, column: str, value: object, expected: str) -> BadInputError:
        """Return the error to raise about one field."""
        found = f"nothing in column {column!r}" if value in (None, "") else f"{column} = {str(value)[:80]!r}"
        return BadInputError(self.where, found, expected, "correct this row, or remove it")


def read_table(path: str | Path, columns: Sequence[str], *, on_bad_row: OnBadRow = raise_error) -> list[Row]:
    """Read a .csv or .jsonl table.

    Args:
        path: The file; its ending decides how it is read.
        columns: Columns that every row must have; further columns are kept too.
        on_bad_row: Called for each malformed row, which is left out; by default the first one raises.

    Raises:
        BadInputError: When the file cannot be read as a table of this kind, lacks a column, or has no row.
    """
    path = Path(path)
    text = _read_text(path)
    read = _json_rows if path.suffix == ".jsonl" else _csv_rows
    rows = list(read(path, text, columns, on_bad_row))
    require(rows, path, "no rows to read", "at least one", "add a row for each episode")
    return rows


def _read_text(path: Path) -> str:
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x} at {error.start}, which is not UTF-8"
        raise BadInputError(f"{path}, row {row}", found, "UTF-8 text", "save the file as UTF-8") from error


def _csv_rows(path: Path, text: str, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        for column in columns:
            found = f"columns {', '.join(header)[:200] or '(none)'}"
            hint = f"name {', '.join(columns)}"
            require(header.count(column) == 1, f"{path}, row 1", found, f"column {column!r}, once", hint)
        for values in reader:
            if len(values) == len(header):
                yield Row(path, reader.line_num, dict(zip(header, values, strict=True)))
            elif values:  # an empty line is not a row
                where, hint = f"{path}, row {reader.line_num}", "put text with commas in double quotes"
                on_bad_row(BadInputError(where, f"{len(values)} fields", f"{len(header)}, as in the header", hint))
    except csv.Error as error:
        hint = "close every double quote, and write one inside text twice"
        raise BadInputError(f"{path}, row {reader.line_num}", str(error), "comma-separated values", hint) from error


def _json_rows(path: Path, text: str, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields, found = json.loads(line), line[:80]
        except (ValueError, RecursionError) as error:
            fields, found = None, f"no JSON ({error})"
        if isinstance(fields, dict) and all(column in fields for column in columns):
            yield Row(path, number, fields)
        else:
            expected = f"a JSON object with {' and '.join(columns)}"
            on_bad_row(BadInputError(f"{path}, row {number}", found, expected, "correct this row, or remove it"))
