"""Tables that people write by hand: CSV and JSON lines, read so that an error names the row.

Rows are numbered as an editor numbers lines: in a CSV the header is row 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoint.errors import BadInputError

__all__ = ["OnBadRow", "Row", "raise_error", "read_table"]


@dataclass(frozen=True)
class Row:
    """One row of a table; the methods read a field or say what is wrong with it.

    Attributes:
        path: The table.
        number: Its line in the file, from 1.
        fields: Column -> value: text in a CSV, any JSON value in JSON lines.
    """

    path: Path
    number: int
    fields: Mapping[str, object]

    @property
    def where(self) -> str:
        """File and row, for messages."""
        return f"{self.path}, row {self.number}"

    def text(self, column: str) -> str:
        """A field that must be text and not blank, without surrounding space."""
        value = self.fields.get(column)
        if not isinstance(value, str) or not value.strip():
            raise self.error(column, value, "text that is not empty")
        return value.strip()

    def seconds(self, column: str) -> float | None:
        """A time that may be left out (`None`): finite, not negative."""
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
        """A whole number, 0 or more."""
        value = self.fields.get(column)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
            return int(value)
        raise self.error(column, value, "a whole number")

    def error(self, column: str, value: object, expected: str) -> BadInputError:
        """What to raise about one field."""
        found = f"nothing in column {column!r}" if value in (None, "") else f"{column} = {str(value)[:80]!r}"
        return BadInputError(self.where, found, expected, "correct this row, or remove it")


OnBadRow = Callable[[BadInputError], None]
"""Told of each row that cannot be used."""


def raise_error(error: BadInputError) -> None:
    """What a reader does about a bad row unless it is told otherwise."""
    raise error


def read_table(path: str | Path, columns: Sequence[str], *, on_bad_row: OnBadRow = raise_error) -> list[Row]:
    """Read a .csv or .jsonl table.

    Args:
        path: The file; its ending decides how it is read.
        columns: Columns that every row must have; others are kept too.
        on_bad_row: Told of each row that has another form, which is then left out; by default the first raises.

    Returns:
        At least one row.

    Raises:
        BadInputError: When the file cannot be read as such a table, lacks a column, or has no row.
    """
    path = Path(path)
    text = _read_text(path)
    read = _json_rows if path.suffix == ".jsonl" else _csv_rows
    rows = list(read(path, text, columns, on_bad_row))
    if not rows:
        raise BadInputError(path, "no rows to read", "at least one", "add a row for each episode")
    return rows


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(path, error.strerror or str(error), "a readable table", "check the path") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        raise BadInputError(
            f"{path}, row {row}",
            f"byte 0x{data[error.start]:02x} at {error.start}, which is not UTF-8",
            "UTF-8 text",
            "save the file as UTF-8",
        ) from error


def _csv_rows(path: Path, text: str, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [column for column in columns if header.count(column) != 1]
        if missing:
            raise BadInputError(
                f"{path}, row 1",
                f"columns {', '.join(header)[:200] or '(none)'}",
                f"column {missing[0]!r}, once",
                f"begin the file with a header that names {', '.join(columns)}",
            )
        for values in reader:
            if len(values) == len(header):
                yield Row(path, reader.line_num, dict(zip(header, values, strict=True)))
            elif values:  # an empty line is no row
                on_bad_row(
                    BadInputError(
                        f"{path}, row {reader.line_num}",
                        f"{len(values)} fields",
                        f"{len(header)}, as in the header",
                        "put text with commas in double quotes",
                    )
                )
    except csv.Error as error:
        raise BadInputError(
            f"{path}, row {reader.line_num}",
            str(error),
            "comma-separated values",
            "close every double quote, and write one inside text twice",
        ) from error


def _json_rows(path: Path, text: str, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            fields, found = None, f"no JSON ({error})"
        else:
            found = line[:80]
        if isinstance(fields, dict) and all(column in fields for column in columns):
            yield Row(path, number, fields)
        else:
            on_bad_row(
                BadInputError(
                    f"{path}, row {number}",
                    found,
                    f"a JSON object with {' and '.join(columns)}",
                    "correct this row, or remove it",
                )
            )
