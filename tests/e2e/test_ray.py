"""Corpora on a Ray cluster of two nodes: the bytes of one process, a killed worker, and a killed call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.formats.made import write_videos
from tests.ray_nodes import two_nodes
from tests.rewards.labelling import save_model

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.release
EPISODES, FRAMES, BLOCKS = 200, 60, 40


@pytest.fixture
def on_ray() -> Iterator[tuple[str, ...]]:
    """The options for a cluster of two nodes with one processor each, on this machine."""
    with two_nodes() as address:
        yield "--engine", "ray", "--workers", "2", "--address", address


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


def workers() -> dict[int, int]:
    """Process -> parent, which is its node, of all workers of Ray Data on this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def blocks_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("blocks/block-*") if not path.name.startswith(".")]


def wait_for(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    while len(blocks_in(folder)) < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "blocks").iterdir())}


def test_embeddings_survive_a_killed_worker_and_a_killed_call(folder: Path, on_ray: tuple[str, ...]) -> None:
    run(folder, "embed", "one")
    expected = contents(folder / "one")
    assert len(expected) == BLOCKS
    worker = start(folder, "embed", "two", *on_ray)
    wait_for(worker, folder / "two", 2)
    at_work = workers()
    assert len(at_work) == len(set(at_work.values())) == 2  # one on each node
    os.kill(min(at_work), signal.SIGKILL)
    assert len(blocks_in(folder / "two")) < BLOCKS
    said, _ = worker.communicate()
    assert worker.returncode == 0, said
    assert contents(folder / "two") == expected

    call = start(folder, "embed", "three", *on_ray)
    wait_for(call, folder / "three", 2)
    call.send_signal(signal.SIGKILL)
    call.communicate()
    assert 0 < len(blocks_in(folder / "three")) < BLOCKS
    deadline = time.monotonic() + 60  # the cluster ends the workers of a call that has died
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    done = {path: path.stat().st_mtime_ns for path in blocks_in(folder / "three")}
    run(folder, "embed", "three")
    assert contents(folder / "three") == expected
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())


def test_labels_are_those_of_one_process(folder: Path, on_ray: tuple[str, ...]) -> None:
    run(folder, "label", "one.parquet")
    run(folder, "label", "two.parquet", *on_ray)
    one, two = (pq.read_table(folder / name) for name in ("one.parquet", "two.parquet"))
    assert len(one) == EPISODES * FRAMES
    assert one.equals(two)
    assert not list(folder.glob(".*.parts"))
