"""The command line in a process of its own: whole, or one that waits half-way until a test kills it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.forkserver import Forked, counterpoint, program

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


def start(folder: Path, *words: str, unfinished: int | None = None, **environment: str) -> Forked:
    """Start `counterpoint WORDS` in a folder.

    Args:
        folder: The working folder.
        words: The command's words.
        unfinished: The step before whose checkpoint a run waits until it is killed, however late that is.
        environment: Variables beside those of this process.
    """
    function, given = (counterpoint, words) if unfinished is None else (program, (PROGRAM, str(unfinished), *words))
    return Forked(function, given, cwd=folder, env=os.environ | environment)


def finish(process: Forked) -> tuple[int, str, str]:
    """Return the exit code of a process, and what it wrote to standard output and error."""
    out, error = process.communicate()
    return process.wait(), out, error
