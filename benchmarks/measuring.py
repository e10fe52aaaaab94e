"""Parts that the benchmarks share: timing in turns, and result files."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from counterpoint.provenance import provenance

Run = Callable[[], object]


def processor_ms(run: Run) -> float:
    """Return the processor milliseconds of a call, which are valid on a busy machine too."""
    started = time.process_time()
    run()
    return 1e3 * (time.process_time() - started)


def in_turns(rounds: int, runs: dict[str, Any], clock: Callable[[Run], Any] = processor_ms) -> dict[str, list[Any]]:
    """Return each candidate's time in every round, by name; candidates take turns, and a first round is not counted."""
    spent: dict[str, list[Any]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            reading = clock(run)
            if number:
                spent[name].append(reading)
    return spent


def medians(rounds: int, **runs: Run) -> dict[str, float]:
    """Return the median processor milliseconds of each candidate; candidates take turns."""
    return {name: median(times) for name, times in in_turns(rounds, runs).items()}


def parser(rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--out", type=Path, help="the result file; in benchmarks/results by default")
    return made


def write(name: str, found: dict[str, Any], out: Path | None = None) -> None:
    """Write and print a result with its command and provenance."""
    path = out or Path(__file__).parent / "results" / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"command": command, **found, "provenance": provenance()}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
