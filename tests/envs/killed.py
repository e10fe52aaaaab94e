"""Collections that are killed half-way, however late the one that watches them comes to do it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

UNFINISHED = """
import time
from counterpoint.envs.recording import Staging

whole_add = Staging.add

def add_while_few(staging, *arguments, **more):
    while len(staging.finished()) > 3:
        time.sleep(1)
    whole_add(staging, *arguments, **more)

Staging.add = add_while_few  # in the workers too
"""
"""Begins a program whose collection gets as far as four episodes, or one more a worker, and waits there."""


def kill(process: subprocess.Popen[bytes], staged: Path) -> None:
    """End a collection when two episodes are staged, and return when its workers have noticed."""
    while len(list(staged.glob("0*/episode.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    workers = _children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    patience = time.monotonic() + 600
    while any(_alive(worker) for worker in workers):
        assert time.monotonic() < patience
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may end between any two looks
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
