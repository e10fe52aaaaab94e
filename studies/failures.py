"""Success detection on recorded failures: stores the numbers of one run of `counterpoint compare`.

    python -m studies.failures runs/compared/compare.json

The videos show scripted experts with noise of standard deviation 1 on their actions, and end after 120 steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from counterpoint.evaluation.comparison import Comparison
from studies.harness import RESULTS, kept, markdown, write_rows

COLUMNS = {
    "accuracy": "accuracy among 8",
    "voc": "VOC",
    "kendall_tau_b": "tau-b",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "f1": "F1",
}
"""Column of the result file -> heading."""
METRICS = {name: name for name in COLUMNS} | {"kendall_tau_b": "ranking_tau_b"}
"""Column of the result file -> the bench's name."""


def keep(path: Path) -> None:
    """Write a comparison, `compare.json`, to the result file: one row per reward, [value, low, high, n] per number."""
    found = Comparison.from_json(path.read_text())
    rows = []
    for row in found.rows:
        given = row.inputs["as recorded"]
        numbers = {column: given[name] for column, name in METRICS.items() if name in given}
        rows.append({"row": row.name} | {key: [x.value, x.low, x.high, x.n] for key, x in numbers.items()})
    about = {
        "command": f"python -m studies.failures {path}",
        "videos": found.videos,
        "successes": found.successes,
        "threshold": found.threshold,
        "data": found.fingerprint,
        "seed": found.about["seed"],
        "provenance": found.about["provenance"],
    }
    write_rows(RESULTS / "failures.parquet", rows, about)


def table() -> str:
    """Return the table of the page."""

    def cell(value: float, low: float, high: float, n: int) -> str:
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"

    rows = kept("failures")["rows"]
    return markdown(
        ["reward", *COLUMNS.values()], [[row["row"], *(cell(*row[key]) for key in COLUMNS)] for row in rows]
    )


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
