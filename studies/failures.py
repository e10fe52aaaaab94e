"""Success detection against recorded failures: keeps the numbers of one `counterpoint compare`.

    python -m studies.failures runs/compared/compare.json

The videos are of scripted experts with noise of deviation 1 on their actions, cut after 120 steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from counterpoint.evaluation.compare import Comparison
from studies.harness import markdown

FILE = Path(__file__).parent / "results" / "failures.json"
COLUMNS = {
    "accuracy": "accuracy among 8",
    "voc": "VOC",
    "kendall_tau_b": "tau-b",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "f1": "F1",
}


def keep(path: Path) -> None:
    """Write the numbers of a comparison, `compare.json`, into the result file."""
    found = Comparison.from_json(path.read_text())
    rows = {
        row.name: {name: row.inputs["as recorded"][name] for name in COLUMNS if name in row.inputs["as recorded"]}
        for row in found.rows
    }
    tree = {
        "command": f"python -m studies.failures {path}",
        "videos": found.videos,
        "successes": found.successes,
        "threshold": found.threshold,
        "data": found.fingerprint,
        "seed": found.about["seed"],
        "rows": {
            name: {key: [one.value, one.low, one.high, one.n] for key, one in row.items()} for name, row in rows.items()
        },
        "provenance": found.about["provenance"],
    }
    FILE.write_text(json.dumps(tree, indent=1) + "\n")


def table() -> str:
    """Return the table of the page."""

    def cell(value: float, low: float, high: float, n: int) -> str:
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"

    rows = json.loads(FILE.read_text())["rows"]
    written = [[name, *(cell(*row[key]) for key in COLUMNS)] for name, row in rows.items()]
    return markdown(["reward", *COLUMNS.values()], written)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
