"""Numbers in the prose of the documentation: each comes from a table, and each table from a result file.

Four kinds of marks can enclose a number or a few words on a page; all are closed by `<!-- end -->`:

- `<!-- cell TABLE :: ROW :: COLUMN -->` is filled with the number of a table's cell and its interval;
- `<!-- number TABLE :: ROW :: COLUMN -->` is filled with only the number;
- `<!-- from RESULT -->` encloses numbers from a result file that no table shows, such as those of a curve;
- `<!-- stated: REASON -->` encloses numbers that we did not measure, such as a paper's number, a setting or an aim.

ROW is a whole cell of the row, or words that only one row has. The leading 0 of a decimal is left out, as in prose.

On a page of docs/results, a number outside the marks must also be in a generated table of the same section, or of a
results page that the section links to. For a section without tables, any table of the page will do. An estimate with
its interval may also be in another table of the page or in the table of claims. Other pages have no measured numbers
outside the marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.harness import RESULTS, read_rows

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLAIMS = DOCS / "results" / "index.md"
TABLE = re.compile(r"<!-- table ([\w :]+) -->\n(.*?)<!-- end -->", re.S)
MARK = re.compile(r"<!--\s+(cell|number)\s+([^>]+?)\s+::\s+([^>]+?)\s+::\s+([^>]+?)\s+-->(.*?)<!-- end -->", re.S)
FROM = re.compile(r"<!--\s+from (\w+)\s+-->(.*?)<!-- end -->", re.S)
STATED = re.compile(r"<!--\s+stated:[^>]+-->.*?<!-- end -->", re.S)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))"
LONE = rf"(?<![\w.]){NUMBER}"
ESTIMATE = re.compile(rf"(?<![\w.])({NUMBER})(?: times| %)? \[({NUMBER}), ({NUMBER})\]")
MEASURED = re.compile(rf"(?<![\w.,-])[-+]?(?:\d*\.\d+|{NUMBER}(?= ?%| times\b))(?![\w.]*\w)")
REFERENCE = r"\b(?:sections?|tables?|theorem|definition|appendix|app\.|figs?\.|equation) [A-Z]?\d[\d., and]*"
IGNORED = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"```.*?```", re.S),  # code
        (r"`[^`]*`", 0),
        (r"^#.*$", re.M),  # headings
        (r"(?<=\])\([^)]*\)", 0),  # where links lead
        (REFERENCE, re.I),  # in a paper
        (r"\b95 %", 0),  # the intervals
        (r"\b\d+\.\d+\.\d+\b|\bPython [\d.]+ to [\d.]+", 0),  # versions
    )
)


def rows(table: str) -> tuple[list[str], list[list[str]]]:
    """Return the head of a Markdown table and its rows, cell by cell."""
    lines = [[cell.strip() for cell in line.strip()[1:-1].split(" | ")] for line in table.strip().splitlines()]
    return lines[0], lines[2:]


def fill_marks(text: str, table: Callable[[str], str]) -> str:
    """Return a page with the number in every mark updated.

    Args:
        text: The page.
        table: Function that returns a table in Markdown by its name.

    Raises:
        ValueError: If a mark matches no column, no row or several rows, or a cell without a number.
    """

    def filled(found: re.Match[str]) -> str:
        kind, name, row, column = (" ".join(part.split()) for part in found.groups()[:4])
        head, body = rows(table(name))
        chosen = [cells for cells in body if row in cells] or [c for c in body if row in " | ".join(c)]
        if len(chosen) != 1 or head.count(column) != 1:
            raise ValueError(f"{name!r} has {len(chosen)} rows {row!r} and {head.count(column)} columns {column!r}")
        cell = chosen[0][head.index(column)]
        written = ESTIMATE.match(cell) or re.match(NUMBER, cell)
        if written is None or not written[0]:
            raise ValueError(f"{name!r}, {row!r}, {column!r}: no number in {cell!r}")
        number = written[0] if kind == "cell" else re.match(NUMBER, cell)[0]  # type: ignore[index]
        opening = found[0].partition("-->")[0]
        return f"{opening}-->{without_zeros(number)}<!-- end -->"

    return MARK.sub(filled, text)


def without_zeros(text: str) -> str:
    """Return text without the 0 before a decimal point."""
    return re.sub(r"(?<![\d.])0(?=\.\d)", "", text)


def unbacked(page: Path) -> list[str]:
    """Return the measured numbers in a page's prose that are neither in a mark nor in a table of a result file.

    A decimal, a percentage and "N times" count as measured.
    """
    text, result = page.read_text(), page.parent == CLAIMS.parent
    missing = []
    for found in FROM.finditer(text):
        rows, _ = read_rows(RESULTS / f"{found[1]}.parquet")
        missing += _unlike(found[2], {abs(value) for row in rows for value in _leaves(row)})
    whole = _tables(page, text) if result else ""
    estimates = _estimates(whole + "".join(body for _, body in TABLE.findall(CLAIMS.read_text()))) if result else set()
    for section in re.split(r"^(?=## )", text, flags=re.M):
        tables = (_tables(page, section) or whole) if result else ""
        prose = section
        for pattern in (TABLE, MARK, FROM, STATED, *IGNORED):
            prose = pattern.sub(" ", prose)
        missing += [found[0] for found in ESTIMATE.finditer(prose) if _numbers(*found.groups()) not in estimates]
        missing += _unlike(ESTIMATE.sub(" ", prose), {abs(n) for n in _numbers(*re.findall(LONE, tables))})
    return missing


def _tables(page: Path, section: str) -> str:
    """Return the tables of a section, and of the pages of docs/results that it links to."""
    linked = {(page.parent / link).resolve() for link in re.findall(r"\]\(([\w/.]+\.md)", section)}
    texts = [section, *(link.read_text() for link in linked if link.parent == CLAIMS.parent)]
    return "\n".join(body for text in texts for _, body in TABLE.findall(text))


def _estimates(tables: str) -> set[tuple[float, ...]]:
    """Return the estimates in tables with their intervals, with both signs (A minus B, and B minus A)."""
    found = {_numbers(*estimate.groups()) for estimate in ESTIMATE.finditer(tables)}
    return found | {(-value, -high, -low) for value, low, high in found}


def _unlike(prose: str, known: set[float]) -> list[str]:
    """Return the measured numbers in prose that are neither a known number, rounded, nor a known share in per cent."""
    missing = []
    for found in MEASURED.findall(prose):
        (value,), digits = _numbers(found), len(found.partition(".")[2])
        if not any(abs(round(scale * one, digits) - abs(value)) < 1e-9 for one in known for scale in (1, 100)):
            missing.append(found)
    return missing


def _numbers(*written: str) -> tuple[float, ...]:
    return tuple(float(number.replace(",", "")) for number in written if number)


def _leaves(tree: Any) -> list[float]:
    """Return the numbers in a tree of JSON values."""
    if isinstance(tree, dict | list):
        return [leaf for branch in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(branch)]
    return [float(tree)] if isinstance(tree, int | float) else []
