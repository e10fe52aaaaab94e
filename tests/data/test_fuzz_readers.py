"""Damaged data sets of every format end in a `BadInputError` or in data, never in another exception or a hang.

Reading happens in a worker that may die, because damaged media can crash a decoder; a crash counts as a failure
everywhere but in a video file. Case `n` of a format is always the same damage.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import resource
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.data.cache import CachedStore, cached
from counterpoint.data.doctor import _examine_tables
from counterpoint.data.episode import Array
from counterpoint.data.formats import Format, open_dataset, recognise
from counterpoint.data.store import read_episode
from counterpoint.errors import BadInputError
from tests.data.formats.rlds.made import write_rlds
from tests.data.formats.test_zarr_replay import write_replay
from tests.data.made import memory_store, write_epic, write_lerobot, write_lerobot_v21, write_videos

SECONDS = 120.0  # of one case, before it counts as a hang
MEMORY = 8 << 30  # address space of the worker: a size read from damaged bytes must not be believed


def write_json_manifest(root: Path) -> Path:
    write_videos(root)
    (root / "manifest.csv").unlink()
    (root / "manifest.jsonl").write_text(
        '{"video": "videos/0.mp4", "instruction": "open", "start": 0.2, "end": 0.9}\n'
        '{"video": "videos/1.mp4", "instruction": "close", "start": null}\n'
    )
    return root


def write_store(root: Path) -> Path:
    built = cached(memory_store(), size=16, root=root.parent / "stores", progress=False).path
    return shutil.copytree(built, root)


def write_zarr(root: Path) -> Path:
    write_replay(root)
    return root


MAKERS: dict[str, Callable[[Path], Path]] = {
    "lerobot-v3": lambda root: write_lerobot(root, image_cameras=["wrist"]),
    "lerobot-v2.1": write_lerobot_v21,
    "manifest-csv": write_videos,
    "manifest-jsonl": write_json_manifest,
    "epic": write_epic,
    "rlds": lambda root: write_rlds(root, absent=[]),
    "zarr": write_zarr,
    "store": write_store,
}


@dataclass(frozen=True)
class Damage:
    """What was done to which file; `changed` says whether any byte differs."""

    file: str
    kind: str
    changed: bool


def damage(source: Path, target: Path, seed: int) -> Damage:
    """Copy a data set and harm one of its files."""
    rng = np.random.default_rng(seed)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    shutil.copytree(source, target, copy_function=os.link)
    name = files[int(rng.integers(len(files)))]
    path = target / name
    before = path.read_bytes()
    path.unlink()  # the link: the source stays whole
    kinds = ["delete", *HARM]
    share = np.array([1 if kind == "delete" else 4 if kind == "flip" else 2 for kind in kinds])
    kind = str(rng.choice(kinds, p=share / share.sum()))
    if kind == "delete":
        return Damage(str(name), kind, True)
    after = HARM[kind](before, rng)
    path.write_bytes(after)
    return Damage(str(name), kind, after != before)


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    # Half of the time near the start or the end, where headers and indices are.
    span = len(data) if rng.random() < 0.5 else min(len(data), 64)
    for place in rng.integers(0, span, int(rng.integers(1, 9))):
        changed[place if rng.random() < 0.5 else len(data) - 1 - place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(0, len(data)))]


def insert(data: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(0, len(data) + 1))
    return data[:place] + rng.bytes(int(rng.integers(1, 40))) + data[place:]


def zero(data: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(0, len(data)))
    length = min(len(data) - start, int(rng.integers(1, 200)))
    return data[:start] + bytes(length) + data[start + length :]


def repeat(data: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(0, len(data)))
    stop = min(len(data), start + int(rng.integers(1, 40)))
    return data[:stop] + data[start:stop] + data[stop:]


def edit(data: bytes, rng: np.random.Generator) -> bytes:
    """Put another value in place of a word or number: what a text file is damaged by."""
    words = [match.span() for match in re.finditer(rb"[-\w.]+", data)] or [(0, 0)]
    start, stop = words[int(rng.integers(len(words)))]
    return data[:start] + VALUES[int(rng.integers(len(VALUES)))] + data[stop:]


def rewrite(data: bytes, rng: np.random.Generator) -> bytes:
    """A sound parquet file with one column that is gone, of another type, or holds a value that cannot be."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except pa.ArrowInvalid:  # no parquet file
        return flip(data, rng)
    place = int(rng.integers(table.num_columns))
    name, column = table.column_names[place], table.column(place)
    choice = int(rng.integers(4))
    if choice == 0:
        table = table.remove_column(place)
    elif choice == 1:
        table = table.set_column(place, name, pa.array(["text"] * len(table)))
    else:
        values = column.to_pylist()
        values[int(rng.integers(len(values)))] = CELLS[int(rng.integers(len(CELLS)))]
        try:
            table = table.set_column(place, name, pa.array(values))
        except (pa.ArrowException, OverflowError):  # the others are of another kind
            table = table.set_column(place, name, pa.array([None] * len(table), column.type))
    written = io.BytesIO()
    pq.write_table(table, written)
    return written.getvalue()


CELLS: list[object] = [None, -1, 10**9, 2**62, float("nan"), float("inf"), 1e300, [], [1.0], "x"]
VALUES = [b"-1", b"0", b"1e999", b"null", b'"x"', b"[]", b"{}", b"true", b"NaN", b"", b"9" * 30, b"2.5", b"../x"]
HARM: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "flip": flip,
    "truncate": truncate,
    "insert": insert,
    "zero": zero,
    "repeat": repeat,
    "edit": edit,
    "rewrite": rewrite,
}


def read_everything(path: Path) -> None:
    """What the doctor looks at without raising, then all data."""
    if recognise(path) is not Format.TRAINING_STORE:
        assert all(isinstance(finding, BadInputError) for finding in _examine_tables(path)[0])
    store = open_dataset(path)
    assert isinstance(store.fingerprint, str)
    for number, info in enumerate(store.episodes):
        episode = read_episode(store, number)
        assert len(episode) == info.length
        for camera in store.cameras:
            check_frames(store.frames(number, np.array([info.length - 1, 0]), camera))
    if isinstance(store, CachedStore):
        store.verify()


def check_frames(frames: Array) -> None:
    assert frames.dtype == np.uint8
    assert len(frames) == 2


@dataclass(frozen=True)
class Outcome:
    """How reading ended: `data`, `refused` with its message, `leaked` with a traceback, `crash` or `hang`."""

    kind: str
    text: str = ""


def serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    pipe.send(None)
    while True:
        path: Path = pipe.recv()
        try:
            read_everything(path)
        except BadInputError as error:
            pipe.send(Outcome("refused", str(error)))
        except Exception:
            pipe.send(Outcome("leaked", traceback.format_exc()))
        else:
            pipe.send(Outcome("data"))


class Reader:
    """A worker that reads data sets until one kills it; then another takes its place."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()  # it is there: the time it took to start is no reading time

    def read(self, path: Path) -> Outcome:
        try:
            self.pipe.send(path)
            if self.pipe.poll(SECONDS):
                outcome: Outcome = self.pipe.recv()
                return outcome
            kind = "hang"
        except (EOFError, ConnectionError):
            kind = "crash"
        self.stop()
        self.start()
        return Outcome(kind)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("whole") / name) for name, make in MAKERS.items()}


def run_cases(name: str, cases: range, source: Path, scratch: Path, reader: Reader) -> list[str]:
    """The cases that ended as they must not."""
    failures = []
    for case in cases:
        target = scratch / str(case)
        done = damage(source, target, case)
        outcome = reader.read(target)
        shutil.rmtree(target)
        allowed = {"data", "refused"} | ({"crash"} if done.file.endswith(".mp4") else set())
        unseen = name == "store" and done.changed and outcome.kind != "refused"
        clear = outcome.kind != "refused" or all(word in outcome.text for word in ("found", "expected", "Hint"))
        if outcome.kind not in allowed or unseen or not clear:
            failures.append(f"case {case}: {done} ended in {outcome.kind}\n{outcome.text}")
    return failures


@pytest.mark.parametrize("name", MAKERS)
def test_whole_data_is_read(name: str, whole: dict[str, Path], reader: Reader) -> None:
    assert reader.read(whole[name]) == Outcome("data")


@pytest.mark.parametrize("name", MAKERS)
def test_damage(name: str, whole: dict[str, Path], tmp_path: Path, reader: Reader) -> None:
    failures = run_cases(name, range(35), whole[name], tmp_path, reader)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_much_damage(name: str, whole: dict[str, Path], tmp_path: Path, reader: Reader) -> None:
    failures = run_cases(name, range(35, 400), whole[name], tmp_path, reader)
    assert not failures, "\n".join(failures)


def test_a_crash_and_a_hang_are_told_from_errors(tmp_path: Path) -> None:
    # The harness itself: a worker that dies is noticed and replaced.
    reader = Reader()
    reader.process.kill()
    assert reader.read(tmp_path).kind == "crash"
    assert reader.read(tmp_path).kind == "refused"
    reader.stop()
