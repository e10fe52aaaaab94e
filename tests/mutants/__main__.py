"""Plant one defect after another and run the tests: `python -m tests.mutants [WORD ...]`, for those that hold a word.

A defect is caught when a test fails. The tests named beside it run first; the whole default run follows only where
they pass, since it takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.defects import DEFECTS, SRC, Defect

FAILED = 1  # pytest's exit code where tests ran and some failed
SUITE = ("-n", "auto", "--dist", "worksteal")


def run(src: Path, *arguments: str) -> tuple[int, str]:
    """Run the default tests over other sources; return pytest's exit code and the first test that failed."""
    words = ["-x", "-m", "not slow", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=SRC.parent, env=environment, capture_output=True, text=True
    )
    failed = (line for line in found.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    return found.returncode, next(failed, "").partition(" - ")[0]


def caught(defect: Defect) -> str:
    """Return the first test that fails with a defect; empty where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        src = Path(folder) / "src"
        shutil.copytree(SRC, src, ignore=shutil.ignore_patterns("__pycache__"))
        defect.plant(src)
        for tests in ((f"tests/{defect.tests}",), SUITE):
            code, failed = run(src, *tests)
            if code == FAILED:
                return failed
    return ""


def main(words: list[str]) -> int:
    """Plant the defects whose line holds one of the words, all by default; return 1 where one is not caught."""
    chosen = [defect for defect in DEFECTS if not words or any(word in str(defect) for word in words)]
    survivors = 0
    for number, defect in enumerate(chosen, 1):
        begun, found = time.monotonic(), caught(defect)
        survivors += not found
        print(f"{number:2d}. {found or 'NOT CAUGHT'} ({time.monotonic() - begun:.0f} s)  {defect}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
