"""The command line of a run that is killed half-way, however late the test that watches it comes to do it."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """
import sys, time
from counterpoint.training import run
from counterpoint.cli import main

whole_save = run.save_checkpoint

def save_but_the_last(folder, step, *arguments, **more):
    while step >= last:
        time.sleep(1)
    return whole_save(folder, step, *arguments, **more)

if __name__ == "__main__":  # which simulators in processes of their own are not
    last = int(sys.argv.pop(1))
    run.save_checkpoint = save_but_the_last
    main()
"""


def unfinished(last: int) -> list[str]:
    """As `python -m counterpoint`, but a run waits before the checkpoint of step `last` until it is killed."""
    return [sys.executable, "-c", PROGRAM, str(last)]


def unfinished_script(folder: Path, last: int) -> list[str]:
    """The same as a script and its first argument, for a launcher of several processes."""
    (folder / "unfinished.py").write_text(PROGRAM)
    return [str(folder / "unfinished.py"), str(last)]
