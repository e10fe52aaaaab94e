"""Corpora on Ray: the bytes of one process, a worker that is killed, and a call that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.formats.made import write_videos
from tests.rewards.labelling import save_model

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.release
EPISODES, FRAMES, BLOCKS = 200, 60, 40
RAY = ("--engine", "ray", "--workers", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of 200 episodes, and a model."""
    data = write_videos(tmp_path / "data", count=2, frames=FRAMES)
    with (data / "manifest.csv").open("a") as manifest:
        manifest.write("videos/0.mp4,task 0\nvideos/1.mp4,task 1\n" * (EPISODES // 2 - 1))
    save_model(tmp_path / "model", data)
    return tmp_path


def start(folder: Path, command: str, out: str, *words: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "counterpoint", command, "data", "--model", "model", "--out", out, *words]
    return subprocess.Popen(program, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(folder: Path, command: str, out: str, *words: str) -> str:
    process = start(folder, command, out, *words)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def below(root: int) -> dict[int, str]:
    """Process -> name, of all processes that a process started."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            about = (entry / "stat").read_text() if entry.name.isdigit() else ""
            name = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") if about else ""
        except OSError:  # it has ended
            continue
        if about:
            parents[int(entry.name)], names[int(entry.name)] = int(about.rpartition(")")[2].split()[1]), name
    found: dict[int, str] = {}
    while more := {child for child, parent in parents.items() if parent in {root, *found} and child not in found}:
        found |= {child: names[child] for child in more}
    return found


def blocks_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("blocks/block-*") if not path.name.startswith(".")]


def wait_for(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    while len(blocks_in(folder)) < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "blocks").iterdir())}


def test_embeddings_survive_a_killed_worker_and_a_killed_call(folder: Path) -> None:
    run(folder, "embed", "one")
    expected = contents(folder / "one")
    assert len(expected) == BLOCKS
    worker = start(folder, "embed", "two", *RAY)
    wait_for(worker, folder / "two", 2)
    at_work = [number for number, name in below(worker.pid).items() if name.startswith("ray::MapWorker")]
    assert at_work
    os.kill(at_work[0], signal.SIGKILL)
    assert len(blocks_in(folder / "two")) < BLOCKS
    said, _ = worker.communicate()
    assert worker.returncode == 0, said
    assert contents(folder / "two") == expected

    call = start(folder, "embed", "three", *RAY)
    wait_for(call, folder / "three", 2)
    started = below(call.pid)
    call.send_signal(signal.SIGKILL)
    call.communicate()
    assert 0 < len(blocks_in(folder / "three")) < BLOCKS
    deadline = time.monotonic() + 60  # Ray ends with the call that started it
    while any(Path(f"/proc/{number}/cmdline").exists() for number in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    done = {path: path.stat().st_mtime_ns for path in blocks_in(folder / "three")}
    run(folder, "embed", "three")
    assert contents(folder / "three") == expected
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())


def test_labels_are_those_of_one_process(folder: Path) -> None:
    run(folder, "label", "one.parquet")
    run(folder, "label", "two.parquet", *RAY)
    one, two = (pq.read_table(folder / name) for name in ("one.parquet", "two.parquet"))
    assert len(one) == EPISODES * FRAMES
    assert one.equals(two)
    assert not list(folder.glob(".*.parts"))
