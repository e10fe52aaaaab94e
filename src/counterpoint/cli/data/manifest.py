"""The work of `counterpoint data manifest`: a manifest of videos from a table whose columns have other names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from counterpoint.errors import require, require_known
from counterpoint.files import write_atomically
from counterpoint.formats.base import require_new
from counterpoint.formats.table import Row, read_table

_TEXTS, _NUMBERS = ("video", "instruction"), ("start", "end", "fps")


def write_manifest(
    table: Positional[Annotated[Path, arg(metavar="TABLE")]],
    out: Positional[Annotated[Path, arg(metavar="OUT")]],
    *,
    columns: Annotated[Sequence[str], arg(metavar="COLUMN=NAME...")] = (),
) -> Path:
    """Write a manifest of videos from a table whose columns have other names; the table is not changed.

    Every command can read the manifest as a data set of videos. Other columns of the table are not written.

    Time: a second. Disk: about as much as the table.

    Args:
        table: A .csv, .tsv or .jsonl table with a row for each video. A .csv may be separated by commas,
            semicolons, tabs or bars.
        out: The manifest to write, such as manifest.csv. It must be a new .csv in the folder of the table, since the
            paths of videos are relative to this folder.
        columns: The table's names for `video`, `instruction`, `start`, `end` or `fps`, such as video=FILE
            instruction=TASK. A column that is not given has the same name in the table.

    Returns:
        The path of the manifest.

    Raises:
        BadInputError: When the table lacks a column, a row has no video or instruction, or `out` exists.
    """
    known, names = (*_TEXTS, *_NUMBERS), dict[str, str]()
    for given in columns:
        column, equals, name = given.partition("=")
        require(equals and name, "--columns", repr(given), "COLUMN=NAME", "write video=FILE, for example")
        require_known(column, known, "--columns")
        require(column not in names, "--columns", f"{column!r} twice", "each column once", "leave one out")
        names[column] = name
    good = out.suffix == ".csv" and out.parent.resolve() == table.parent.resolve()
    require(good, out, "another place or kind", f"a .csv in {table.parent}", f"write {table.parent / 'manifest.csv'}")
    require_new(out)
    needed = {column: names.get(column, column) for column in known if column in (*_TEXTS, *names)}
    hint = f"name them: --columns {' '.join(f'{column}=NAME' for column in _TEXTS)}"
    rows = read_table(table, tuple(needed.values()), hint=hint)
    optional = {column: column for column in _NUMBERS if column not in names and column in rows[0].fields}
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*needed, *optional])
    writer.writerows([_cell(row, column, name) for column, name in (needed | optional).items()] for row in rows)
    write_atomically(out, written.getvalue())
    return out


def _cell(row: Row, column: str, name: str) -> str:
    if column in _TEXTS:
        return row.text(name)
    value = row.rate(name) if column == "fps" else row.seconds(name)
    return "" if value is None else f"{value:.12g}"
