"""Read tables that people write by hand (CSV and JSON lines); errors name the row.

Rows are numbered as an editor numbers lines: in a CSV the header is row 1. Fields of a CSV are separated by commas,
semicolons, tabs or bars. A line such as `sep=;` above the header names the separator; without this line, the
separator is the one that splits the header into the required columns. The text is UTF-8, or UTF-16 with a byte-order
mark, as spreadsheets write it.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoint.data.episode import visible
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, raise_error
from counterpoint.formats.boundary import read_bytes


@dataclass(frozen=True)
class Row:
    """A row of a table; its methods read a field, or raise an error that names the field."""

    path: Path
    number: int  # the row's line in the file, from 1
    fields: Mapping[str, object]  # text in a CSV, any JSON value in JSON lines
    decimal: str = "."  # a comma if fields are separated by semicolons, as in spreadsheets with decimal commas

    @property
    def where(self) -> str:
        """The file and row, as errors name them."""
        return f"{self.path}, row {self.number}"

    def text(self, column: str) -> str:
        """Return a field that must be text and not blank, without the spaces around it."""
        value = self.fields.get(column)
        if not isinstance(value, str) or not visible(value):
            raise self.error(column, value, "text that is not empty")
        return visible(value)

    def seconds(self, column: str) -> float | None:
        """Return a time in seconds, finite and not negative; `None` if it is left out."""
        return self._number(column, "seconds from the video's start, 0 or more", lambda number: number >= 0)

    def rate(self, column: str) -> float | None:
        """Return a rate in frames per second; `None` if it is left out."""
        return self._number(column, "frames a second above 0", lambda number: number > 0 and math.isfinite(1 / number))

    def _number(self, column: str, expected: str, good: Callable[[float], bool]) -> float | None:
        value = self.fields.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                number = float(value.replace(self.decimal, ".") if isinstance(value, str) else value)
            except (ValueError, OverflowError):
                number = math.nan
            if math.isfinite(number) and good(number):
                return number
        raise self.error(column, value, expected)

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


def read_table(
    path: str | Path, columns: Sequence[str], *, hint: str = "", on_bad_row: OnBadRow = raise_error
) -> list[Row]:
    """Read a .csv, .tsv or .jsonl table.

    Args:
        path: The file; its ending decides how it is read.
        columns: Columns that every row must have; further columns are kept too.
        hint: Advice in the error about a missing column; by default it lists the columns.
        on_bad_row: Called with the error of each malformed row, which is left out; by default the first error is
            raised.

    Raises:
        BadInputError: When the file cannot be read as a table of this kind, lacks a column, or has no row.
    """
    path = Path(path)
    text = _read_text(path)
    if path.suffix == ".jsonl":
        rows = list(_json_rows(path, text, columns, on_bad_row))
    else:
        rows = list(_csv_rows(path, text, columns, hint or f"name {', '.join(columns)}", on_bad_row))
    require(rows, path, "no rows to read", "at least one", "add a row for each episode")
    return rows


def _read_text(path: Path) -> str:
    data = read_bytes(path)
    name = "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "UTF-8"
    try:
        return data.decode("utf-8-sig" if name == "UTF-8" else name)
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x} at {error.start}, which is not {name}"
        hint = "save the file as UTF-8; spreadsheets call it CSV UTF-8"
        raise BadInputError(f"{path}, row {row}", found, f"{name} text", hint) from error


_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_DECLARED = re.compile(r'"?sep=([,;|\t])"?\r?\n', re.IGNORECASE)  # a line that spreadsheets read and write


def _csv_rows(path: Path, text: str, columns: Sequence[str], hint: str, on_bad_row: OnBadRow) -> Iterator[Row]:
    declared = _DECLARED.match(text)
    above, text = (1, text[declared.end() :]) if declared else (0, text)
    headers = {one: _header(text, one) for one in (declared[1] if declared else _SEPARATORS)}
    lacks = {one: [column for column in columns if header.count(column) != 1] for one, header in headers.items()}
    separator = min(headers, key=lambda one: (len(lacks[one]), -len(headers[one])))
    reader, header, name = _reader(text, separator), headers[separator], _SEPARATORS.get(separator, repr(separator))
    try:
        next(reader, None)
        found = f"columns {', '.join(header)[:200] or '(none)'}"
        for column in lacks[separator]:
            raise BadInputError(f"{path}, row {1 + above}", found, f"column {column!r}, once", hint)
        for values in reader:
            number = reader.line_num + above
            if not any(values):  # a line that is empty or has only separators is not a row
                continue
            if len(values) == len(header):
                yield Row(path, number, dict(zip(header, values, strict=True)), "," if separator == ";" else ".")
            else:
                expected, quote = f"{len(header)}, as in the header", f"put text with a {name} in double quotes"
                if values[0].lstrip().startswith(("#", "//")):
                    quote = "remove comments"
                on_bad_row(BadInputError(f"{path}, row {number}", f"{len(values)} fields", expected, quote))
    except csv.Error as error:
        expected, quotes = f"{name}-separated values", "close every double quote, and write one inside text twice"
        raise BadInputError(f"{path}, row {reader.line_num + above}", str(error), expected, quotes) from error


def _reader(text: str, separator: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)


def _header(text: str, separator: str) -> list[str]:
    try:
        return [name.strip() for name in next(_reader(text, separator), [])]
    except csv.Error:  # a quoted name that ends before another separator
        return []


def _json_rows(path: Path, text: str, columns: Sequence[str], on_bad_row: OnBadRow) -> Iterator[Row]:
    code = f'import json; [print(json.dumps(row)) for row in json.load(open("{path.name}"))]'
    hint = f"python -c '{code}' > lines.jsonl"
    require(not text.lstrip().startswith("["), f"{path}, row 1", "a JSON list", "JSON lines: one object a line", hint)
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
