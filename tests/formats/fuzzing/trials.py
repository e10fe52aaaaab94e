"""Read mutants, each in a process of its own with a limit of time and memory, and say how it ended."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from counterpoint.cli.data.doctor import _examine_tables
from counterpoint.data.cache import CachedStore
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import FORMATS, base, open_dataset, recognise
from counterpoint.formats.hdf5 import opening
from counterpoint.formats.minari.files import is_minari
from counterpoint.formats.minari.reader import examine_minari, read_minari
from counterpoint.registry import imported
from tests.forkserver import program, warm
from tests.formats.fuzzing.mutations import BYTES, Mutant, mutate
from tests.formats.fuzzing.sources import SOURCES

for _format in FORMATS.values():  # once, and not in every process that is forked
    imported(_format.reader)
with suppress(ImportError):
    import_module("imagecodecs")

SECONDS = 60.0
"""Of one reading, before it counts as a hang."""
PEAK = 4 << 10
"""Most MB of memory that a reading may take."""
SPACE = 8 << 30
"""Bytes of address space of a reading, of which libraries take 2 to 3 GB: a size read from damage is not believed."""
CHECKED = (".png", ".npz", ".tfrecord")
"""Files with checksums of all they hold: a change of bytes must be noticed."""
BYTE_NAMES = {change.__name__ for change in BYTES}
FAILURES = ("traceback", "unclear", "not finite", "unnoticed", "memory", "hang", "crash")

Content = list[dict[str, Any]]
"""Of each episode: its words (length, instruction, rate, success) and digests of its numbers and frames."""


@dataclass(frozen=True)
class Outcome:
    """How a reading ended.

    Attributes:
        kind: `refused`, `same` or `changed`, or one of `FAILURES`.
        differs: What differs from the source: `episodes`, `frames`, `numbers` or `words`; "" where nothing does.
        reported: Whether `counterpoint data doctor` reports what reading alone accepts.
        text: The message or the traceback.
        megabytes: Peak memory of the process.
    """

    kind: str
    differs: str = ""
    reported: bool = False
    text: str = ""
    megabytes: int = 0


def digest(values: Any) -> str | None:
    """Return a digest of an array, its type and its shape."""
    if values is None:
        return None
    array = np.ascontiguousarray(values)
    if array.dtype == object:
        return repr(array.tolist())
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


def content(path: Path) -> Content:
    """Read everything; raise `FloatingPointError` for a number that is not finite."""
    if is_minari(path):
        episodes = []
        for goals in read_minari(path):
            arrays = [goals.observations, goals.achieved, goals.commanded, goals.actions, goals.rewards]
            _require_finite(arrays)
            numbers = [digest(array) for array in (*arrays, goals.success)]
            episodes.append({"words": (len(goals.actions), goals.terminated), "numbers": numbers, "frames": []})
        return episodes
    store, episodes = open_dataset(path), []
    if isinstance(store, CachedStore):
        store.verify()
    assert isinstance(store.fingerprint, str)
    for number, info in enumerate(store.episodes):
        read = (store.timestamps, store.actions, store.state, store.rewards)
        arrays = [found for found in (values(number) for values in read) if found is not None]
        _require_finite(arrays)
        assert all(len(array) == info.length for array in arrays)
        steps = np.arange(info.length)
        frames = [store.frames(number, steps, camera) for camera in store.cameras]
        assert all(each.dtype == np.uint8 and each.shape[0] == info.length and each.shape[3] == 3 for each in frames)
        frames += [store.depth(number, steps, camera) for camera in store.depth_cameras]
        arrays += [store.recorded(number, n) for n in store.columns] if isinstance(store, base.Reader) else []
        cameras = (*store.cameras, *store.depth_cameras)
        words: tuple[Any, ...] = (info.length, info.instruction, round(info.fps, 6), info.success, cameras)
        episodes.append({"words": words, "numbers": list(map(digest, arrays)), "frames": list(map(digest, frames))})
    return episodes


def _require_finite(arrays: Sequence[Any]) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise FloatingPointError


def findings(path: Path) -> list[BadInputError]:
    """Return what the doctor says of a data set without decoding it."""
    if is_minari(path):
        return examine_minari(path)
    found = [] if recognise(path).name == "training_store" else _examine_tables(path)[0]
    assert all(isinstance(finding, BadInputError) for finding in found)
    return found


def difference(found: Content, source: Content) -> str:
    """Return the first part in which two readings differ: `episodes`, `frames`, `numbers`, `words` or ""."""
    lengths = [[episode["words"][0] for episode in episodes] for episodes in (found, source)]
    if lengths[0] != lengths[1]:
        return "episodes"
    pairs = list(zip(found, source, strict=True))
    return next((part for part in ("frames", "numbers", "words") if any(a[part] != b[part] for a, b in pairs)), "")


def read(path: Path, source: Content) -> Outcome:
    """Have the doctor examine a mutant, then read it."""
    try:
        reported = bool(findings(path))
        differs = difference(content(path), source)
    except MissingExtraError as error:
        return Outcome("refused", text=str(error))
    except BadInputError as error:
        clear = all(word in str(error) for word in ("found", "expected", "Hint"))
        memory = "MemoryError" in str(error) and "Errno 12" not in str(error)  # FFmpeg's, of sizes that cannot be
        return Outcome("memory" if memory else "refused" if clear else "unclear", text=str(error))
    except FloatingPointError:
        return Outcome("not finite")
    return Outcome("changed" if differs else "same", differs, reported)


Read = Callable[[Path, Content], Outcome]


def _forked(command: Sequence[str], *, timeout: float, **_: object) -> SimpleNamespace:
    """Do as `subprocess.run` does with `[sys.executable, "-c", SOURCE, ...]`; a process of one thread may fork."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            program(*command[2:])
        os._exit(0)
    end = time.monotonic() + timeout
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise subprocess.TimeoutExpired(command, timeout)
        time.sleep(0.001)
    return SimpleNamespace(returncode=os.waitstatus_to_exitcode(ended[1]))


def _look_quickly() -> None:
    """Fork the processes that look at HDF5 files from this one."""
    quick = SimpleNamespace(run=_forked, TimeoutExpired=subprocess.TimeoutExpired)
    opening.subprocess = quick  # type: ignore[assignment, attr-defined]


def _trial(pipe: Connection, read: Read, source: Path, target: Path, case: int, sound: Content) -> None:
    """Make and read a mutant; send it before, and the outcome after."""
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders complain there
    warnings.simplefilter("ignore")
    os.environ["COUNTERPOINT_CACHE"] = str(target.parent / "cache")
    _look_quickly()
    pipe.send(mutate(source, target, case))
    try:
        outcome = read(target, sound)
    except Exception:
        outcome = Outcome("traceback", text=traceback.format_exc())
    pipe.send(replace(outcome, megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10))


def _sound(pipe: Connection, name: str, folder: Path) -> None:
    """Make the data set of a reader, and send its place and content."""
    folder.parent.mkdir()
    _look_quickly()
    os.environ["COUNTERPOINT_CACHE"] = str(folder.parent / "cache")
    path = SOURCES[name](folder)
    pipe.send((path, content(path)))


class Reader:
    """One reader's data set, of which mutants are made and read.

    Processes are forked from the tests' server, which has imported everything and opened nothing.

    Args:
        name: One of `SOURCES`.
        scratch: An existing folder to write to.
        read: A function of a module that reads a mutant.
    """

    def __init__(self, name: str, scratch: Path, read: Read = read) -> None:
        self.name, self.scratch, self.read = name, scratch, read
        self._context = warm()
        process, pipe = self._start(_sound, name, scratch / "sound" / "data")
        self.source, self.content = pipe.recv()
        process.join()

    def _start(self, run: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=run, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def try_case(self, case: int) -> tuple[Mutant, Outcome]:
        """Return a mutant, always the same of a case, and how its reading ended."""
        folder = self.scratch / str(case)
        target = folder / self.source.relative_to(self.scratch / "sound")
        target.parent.mkdir(parents=True)
        process, pipe = self._start(_trial, self.read, self.source, target, case, self.content)
        with pipe:
            mutant: Mutant = pipe.recv()
            try:
                outcome: Outcome = pipe.recv() if pipe.poll(SECONDS) else Outcome("hang")
            except EOFError:
                outcome = Outcome("crash")
        process.join(0 if outcome.kind == "hang" else 10)  # one that is killed leaves its semaphores behind
        process.kill()
        process.join()
        shutil.rmtree(folder, ignore_errors=True)
        return mutant, self.judge(mutant, outcome)

    def judge(self, mutant: Mutant, outcome: Outcome) -> Outcome:
        """Return an outcome, as a failure where too much memory was taken or a checksum went unheeded."""
        if outcome.megabytes > PEAK:
            return replace(outcome, kind="memory")
        checked = self.name == "store" or (mutant.kind in CHECKED and mutant.how in BYTE_NAMES)
        return replace(outcome, kind="unnoticed") if outcome.kind == "changed" and checked else outcome
