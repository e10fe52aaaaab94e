"""Numbers in the prose of the documentation: each comes from a table, and each table from a result file.

Three marks stand in a page around a number or a few words, all of them closed by `<!-- end -->`:

- `<!-- cell TABLE :: ROW :: COLUMN -->` is filled with the number of a table's cell and its interval;
- `<!-- number TABLE :: ROW :: COLUMN -->` is filled with the number alone;
- `<!-- stated: REASON -->` holds numbers that were not measured here, such as a paper's or a setting.

ROW is a whole cell of the row, or words that only one row has. The leading 0 of a decimal is left out, as it is in prose.
On a page of docs/results, a number outside the marks must stand in a generated table of this page, of a results page
that it links to, or in the table of claims; on the other pages that `unbacked` checks there is none outside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLAIMS = DOCS / "results" / "index.md"
TABLE = re.compile(r"<!-- table ([\w :]+) -->\n(.*?)<!-- end -->", re.S)
MARK = re.compile(r"<!--\s+(cell|number)\s+([^>]+?)\s+::\s+([^>]+?)\s+::\s+([^>]+?)\s+-->(.*?)<!-- end -->", re.S)
STATED = re.compile(r"<!--\s+stated:[^>]+-->.*?<!-- end -->", re.S)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))"
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
    """Return a page with the number of every mark written anew.

    Args:
        text: The page.
        table: Returns a table in Markdown by its name.

    Raises:
        ValueError: When a mark names no column, no row or several rows, or a cell without a number.
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
    """Return the measured numbers in a page's prose that neither a mark nor a table of a result file backs.

    A decimal, a percentage and "N times" count as measured; an estimate must stand in one cell with its interval, of
    either sign.
    """
    text = page.read_text()
    tables = "\n".join(body for source in sources(page) for _, body in TABLE.findall(source.read_text()))
    estimates = {values(found.groups()) for found in ESTIMATE.finditer(tables)}
    estimates |= {(-value, -high, -low) for value, low, high in estimates}
    numbers = {abs(value) for found in re.findall(rf"(?<![\w.]){NUMBER}", tables) for value in values([found])}
    for pattern in (TABLE, MARK, STATED, *IGNORED):
        text = pattern.sub(" ", text)
    missing = []

    def estimate(found: re.Match[str]) -> str:
        if values(found.groups()) not in estimates:
            missing.append(found[0])
        return " "

    for found in MEASURED.finditer(ESTIMATE.sub(estimate, text)):
        (value,) = values([found[0]])
        digits = len(found[0].partition(".")[2])
        if not any(abs(round(scale * number, digits) - abs(value)) < 1e-9 for number in numbers for scale in (1, 100)):
            missing.append(found[0])
    return missing


def sources(page: Path) -> set[Path]:
    """Return the pages whose tables back a page's numbers without a mark; none, for a page outside docs/results."""
    if page.parent != CLAIMS.parent:
        return set()
    linked = {(page.parent / link).resolve() for link in re.findall(r"\]\(([\w/.]+\.md)", page.read_text())}
    return {page, CLAIMS, *(link for link in linked if link.parent == CLAIMS.parent)}


def values(found: object) -> tuple[float, ...]:
    """Return written numbers as numbers."""
    return tuple(float(number.replace(",", "")) for number in found if number)  # type: ignore[attr-defined]
