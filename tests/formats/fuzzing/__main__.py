"""Read thousands of damaged data sets: `python -m tests.formats.fuzzing [READER ...] --mutants 2000`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from tests.formats.fuzzing.mutations import Mutant
from tests.formats.fuzzing.sources import SOURCES
from tests.formats.fuzzing.trials import BYTE_NAMES, FAILURES, Outcome, Reader

Trial = tuple[Mutant, Outcome]
REASONS = {
    ".csv": "text has no checksum", ".json": "text has no checksum", ".jsonl": "text has no checksum",
    ".zarray": "text has no checksum", ".zgroup": "text has no checksum",
    ".jpg": "JPEG has no checksum", ".mp4": "MP4 has no checksum",
    ".mkv": "Matroska as these tools write it has no checksum",
    ".hdf5": "HDF5 as these tools write it has no checksum", ".pkl": "a pickle has no checksum",
    ".h5": "HDF5 as DROID writes it has no checksum", ".txt": "text has no checksum",
    ".mcap": "MCAP has a checksum of its chunks alone",
    ".tar": "tar has a checksum of its headers alone", ".parquet": "parquet has a checksum of its pages alone",
    "": "Blosc has no checksum",
}  # fmt: skip
"""Ending of a file's name -> why its reader cannot know that bytes changed."""
SOUND = "sound content of another meaning"
"""Why a reader cannot know that a part was replaced by its own format's rules."""


def reason(mutant: Mutant) -> str:
    """Return why a changed mutant is accepted; "" where there is no reason."""
    if mutant.how in ("delete", "folder", "link", "noise"):
        return "a missing or unreadable file that nothing else names"
    return REASONS.get(mutant.kind, "") if mutant.how in BYTE_NAMES else SOUND


def run(name: str, cases: Iterable[int], scratch: Path, workers: int, bar: ProgressBar) -> list[Trial]:
    """Return every trial of a reader."""
    reader = Reader(name, scratch)

    def one(case: int) -> Trial:
        trial = reader.try_case(case)
        bar.advance(1)
        if trial[1].kind in FAILURES:
            print(f"{name}, case {case}: {trial[0]} ended in {trial[1].kind}\n{trial[1].text}", file=sys.stderr)
        return trial

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, cases))


def counts(name: str, trials: list[Trial]) -> list[str]:
    """Return a row of the table of readers."""
    kinds = Counter(outcome.kind for _, outcome in trials)
    failed, peak = sum(kinds[kind] for kind in FAILURES), max(outcome.megabytes for _, outcome in trials)
    reported = sum(outcome.kind == "changed" and outcome.reported for _, outcome in trials)
    shown = (len(trials), kinds["refused"], kinds["same"], kinds["changed"], reported, failed, peak)
    return [name, *(f"{number:,}" for number in shown)]


def accepted(trials: list[Trial]) -> list[list[str]]:
    """Return a row for each kind of file, reason and difference of mutants that are accepted but differ."""
    rows = Counter((m.kind or "Zarr's chunks", reason(m), o.differs) for m, o in trials if o.kind == "changed")
    return [[kind, why, differs, f"{number:,}"] for (kind, why, differs), number in sorted(rows.items())]


def main() -> None:
    """Run the trials, print and write the tables; exit with 1 where a reading ended as it must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(SOURCES)}; all by default")
    parser.add_argument("--mutants", type=int, default=2000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the result file")
    given = parser.parse_args()
    names = given.readers or list(SOURCES)
    if unknown := set(names) - set(SOURCES):
        parser.error(f"unknown readers {sorted(unknown)}; known are {', '.join(SOURCES)}")
    found: dict[str, list[Trial]] = {}
    cases = range(given.first, given.first + given.mutants)
    with ProgressBar("Reading", len(names) * given.mutants, "mutants") as bar:
        for name in names:
            with tempfile.TemporaryDirectory() as scratch:
                found[name] = run(name, cases, Path(scratch), given.workers, bar)
    every = [trial for trials in found.values() for trial in trials]
    tables: dict[str, Any] = {
        "readers": {
            "head": ["reader", "mutants", "refused", "same", "changed", "of them reported", "failed", "peak MB"],
            "rows": [counts(name, trials) for name, trials in found.items()],
        },
        "accepted": {"head": ["file", "why", "differs in", "mutants"], "rows": accepted(every)},
    }
    for table in tables.values():
        print("\n".join(" | ".join(row) for row in [table["head"], *table["rows"]]), "\n")
    if given.out:
        command = f"python -m tests.formats.fuzzing {shlex.join(sys.argv[1:])}"
        about = {"command": command, "tables": tables, "provenance": provenance()}
        given.out.write_text(json.dumps(about, indent=1) + "\n")
    sys.exit(any(outcome.kind in FAILURES for _, outcome in every))


if __name__ == "__main__":
    main()
