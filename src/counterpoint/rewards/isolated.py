"""Run a model of others in a Python of its own, and keep its scores by content.

The model's libraries need not be installed here. A model that hangs, takes too much memory or kills its process is
stopped and named; everything else goes on.
"""

from __future__ import annotations

import hashlib
import os
import select
import sqlite3
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.errors import BadInputError
from counterpoint.files import cache_root, sha256_of
from counterpoint.rewards import foreign as program
from counterpoint.rewards.foreign import Scores
from counterpoint.workers import Foreign

START_SECONDS = 900.0
"""Seconds that a model may take to load."""
CHUNK = 1 << 16


class IsolatedScorer:
    """A model in a process of its own, which starts at once and again after every failure.

    Args:
        source: `module:name`, or the folder of a LeRobot reward model; modules are found from the current folder.
        foreign: The interpreter, which needs NumPy, and the limits.
        device: The device that computes.

    Attributes:
        progress: True if the model's values are progress in [0, 1].
        reads_state: True if the model reads the robot's state.
        stages: Names of the stages that the model numbers.
        files: Digest of the model's files.

    Raises:
        BadInputError: If the model cannot be loaded.
    """

    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, source: str, foreign: Foreign, *, device: str = "cpu") -> None:
        assert foreign.python is not None
        self.source, self.seconds = source, foreign.seconds
        # Not `resolve()`: the interpreter of a virtual environment is a link, whose own path says which environment.
        self._words = [str(foreign.python.absolute()), program.__file__, source, "--device", device]
        self._words += ["--memory", str(foreign.memory)] if foreign.memory else []
        hello = self._start()
        self.progress, self.reads_state = bool(hello["progress"]), bool(hello["reads_state"])
        self.stages = tuple(hello["stages"].tolist())
        self.files = str(hello["files"])

    def __call__(self, frames: NDArray[np.uint8], text: str, state: NDArray[Any] | None = None) -> Scores:
        """Return the scores of a video, with the robot's state [T, S] for a model that reads it.

        Raises:
            BadInputError: If the model fails, dies or exceeds its limits.
        """
        if self._process is None:
            self._start()
        request = {"frames": frames, "text": np.array(text)}
        return self._answer(request | ({} if state is None else {"state": state}), self.seconds)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
            self._process = None

    def __del__(self) -> None:
        self.close()

    def _start(self) -> dict[str, Any]:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own, start_new_session=True
        )
        return self._answer(None, START_SECONDS)

    def _answer(self, request: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        until = time.monotonic() + seconds
        try:
            if request is not None:
                buffer = BytesIO()
                program.send(buffer, request)
                self._exchange(buffer.getvalue(), 0, until)
            (length,) = struct.unpack(">Q", self._exchange(b"", 8, until))
            with np.load(BytesIO(self._exchange(b"", length, until)), allow_pickle=False) as arrays:
                answer = dict(arrays)
        except TimeoutError:
            self.close()
            hint = "give it more time (--seconds), or leave it out"
            raise BadInputError(self.source, f"no answer in {seconds:g} s", "an answer", hint) from None
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            self.close()
            cause = f"signal {-code}" if code < 0 else f"exit code {code}"
            hint = "see its own messages above; it may need more memory (--memory)"
            raise BadInputError(self.source, f"a process that died ({cause})", "an answer", hint) from None
        if "error" in answer:
            raise BadInputError(self.source, str(answer["error"]), "scores", "repair it, or leave it out")
        return answer

    def _exchange(self, content: bytes, length: int, until: float) -> bytes:
        """Write `content`, then read `length` bytes, before the time is over."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        write, read = self._process.stdin.fileno(), self._process.stdout.fileno()
        view, parts = memoryview(content), []
        while view or length:
            left = until - time.monotonic()
            ready = select.select([] if view else [read], [write] if view else [], [], max(left, 0))
            if not (ready[0] or ready[1]):
                raise TimeoutError
            if view:
                view = view[os.write(write, view[:CHUNK]) :]
            else:
                part = os.read(read, min(length, 1 << 20))
                if not part:
                    raise EOFError
                parts.append(part)
                length -= len(part)
        return b"".join(parts)


class ScoreCache:
    """Scores that were computed before, by the content of the video, the instruction and the model's files.

    Args:
        files: Digest of the model's files.
        path: The database; by default `scores.sqlite` in the cache's folder.
    """

    def __init__(self, files: str, path: Path | None = None) -> None:
        code = sha256_of(Path(program.__file__))  # it decides what a model is asked
        self._files, self._path = f"{files} {code}", path or cache_root() / "scores.sqlite"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.get("")
        except sqlite3.DatabaseError:  # damaged: its scores can be computed again
            self._path.unlink(missing_ok=True)

    def key(self, frames: NDArray[np.uint8], text: str, state: NDArray[Any] | None = None) -> str:
        """Return the key of a video's scores under an instruction."""
        digest = hashlib.sha256(f"{self._files}\0{frames.shape}\0{text}\0".encode())
        digest.update(np.ascontiguousarray(frames).data)
        if state is not None:
            digest.update(np.ascontiguousarray(state).tobytes())
        return digest.hexdigest()

    def get(self, key: str) -> Scores | None:
        """Return the scores under a key, or `None`."""
        found = None
        with suppress(sqlite3.OperationalError), self._opened() as database:  # locked, or on a full disk: no cache
            found = database.execute("select arrays from scores where key = ?", [key]).fetchone()
        if found is None:
            return None
        with np.load(BytesIO(found[0]), allow_pickle=False) as arrays:
            return dict(arrays)

    def put(self, key: str, scores: Scores) -> None:
        """Keep scores under a key."""
        buffer, named = BytesIO(), dict(scores)
        np.savez_compressed(buffer, allow_pickle=False, **named)
        with suppress(sqlite3.OperationalError), self._opened() as database:
            database.execute("insert or replace into scores values (?, ?)", [key, buffer.getvalue()])

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        database = sqlite3.connect(self._path, timeout=60)
        try:
            with database:
                database.execute("create table if not exists scores (key text primary key, arrays blob)")
                yield database
        finally:
            database.close()
