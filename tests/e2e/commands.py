"""The command line in a process of its own: whole, or one that waits half-way until a test kills it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from counterpoint.training.run import list_checkpoints
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


def kill_and_resume(folder: Path, train: Callable[..., Forked], step: int, last: int) -> None:
    """Assert that a run that is killed after a step's checkpoint, and resumed, ends with the weights of a whole one.

    Args:
        folder: Where the runs `whole` and `cut` are made.
        train: Starts a run: its name, and the step before whose checkpoint it waits (`unfinished`) if it is killed.
        step: The step at which the run is killed, or a later one.
        last: The step before whose checkpoint the killed run waits.
    """
    code, _, error = finish(train("whole"))
    assert code == 0, error
    killed = train("cut", unfinished=last)
    while not any(path.name >= f"step-{step:08}" for path in list_checkpoints(folder / "cut" / "checkpoints")):
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert not (folder / "cut" / "model").exists()
    code, out, error = finish(train("cut"))
    assert code == 0, error
    assert "Resumed from" in out
    expected, found = (load_file(folder / run / "model" / "model.safetensors") for run in ("whole", "cut"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
