"""Run functions in other processes: in a pool that ends with its parent, or in one process that may crash."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

from counterpoint.errors import BadInputError, require
from counterpoint.parameter_types import Decimal, File

Result = TypeVar("Result")


@dataclass(frozen=True)
class Foreign:
    """How models of others run: LeRobot's reward models and `module:function`.

    Attributes:
        python: The Python interpreter of the models' environment, which then run in a process of their own; by default
            they run in this process.
        memory: Limit of that process's memory in gigabytes; not for a GPU, whose driver reserves far more.
        seconds: Limit of that process's time for one video.
        cached: Use scores that were computed before from the same frames by the same files.
    """

    python: File = None
    memory: Decimal = None
    seconds: float = 300.0
    cached: bool = True

    def check(self) -> None:
        """Raise an error for settings that cannot work, before long work begins.

        Raises:
            BadInputError: If the interpreter does not exist, or if a limit is not positive.
        """
        hint = "name the interpreter of the model's environment, such as env/bin/python"
        require(
            self.python is None or self.python.is_file(), "--python", str(self.python), "a Python interpreter", hint
        )
        require(self.memory is None or self.memory > 0, "--memory", self.memory, "more than 0 GB", "leave it out")
        require(self.seconds > 0, "--seconds", self.seconds, "more than 0", "leave it out")
        hint = "add --python PATH, or leave it out"
        require(self.python or self.memory is None, "--memory", self.memory, "a process of its own to limit", hint)


IN_PROCESS = Foreign()
"""Models of others run in this process."""


@contextmanager
def worker_pool(
    workers: int, enter: Callable[..., object] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes and stop them at the end, even while they work.

    Args:
        workers: Number of processes. They are spawned, since forked processes would share threads and graphics
            contexts.
        enter: Called with `arguments` once in each worker.
        arguments: Picklable arguments of `enter`.

    Raises:
        BadInputError: If a worker died.
    """
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _enter_worker, (enter, arguments))
    # Let the pool start all workers before it watches them. A worker that dies while another one starts would crash the
    # watching thread, and a worker that starts later would not be watched before the next result.
    pool._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined]
    try:
        yield pool
    except BrokenProcessPool:
        hint = 'run the same again to continue, with fewer workers; a script needs `if __name__ == "__main__":`'
        raise BadInputError("workers", "a worker process that died", "workers that live to the end", hint) from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()  # unfinished work is repeated when the call is repeated
        pool.shutdown(cancel_futures=True)


def _enter_worker(enter: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    """Set up a worker: it ignores Ctrl-C, which the parent handles, and exits when the parent exits.

    A killed parent cannot stop its workers.
    """

    def exit_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    if enter is not None:
        enter(*arguments)


# The parent handles Ctrl-C: without the line with `signal`, a worker that is still importing would print a traceback.
_SERVE = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from counterpoint.workers import serve
serve()
"""


def in_worker(
    function: Callable[..., Result],
    *args: Any,
    timeout: float | None = 60.0,
    expected: str = "readable media",
    hint: str = "replace the file, or remove it",
) -> Result:
    """Run `function(*args)` in a new process, because a damaged file or a full disk can crash a C library.

    The process imports only the function, not the calling script; so the script needs no `if __name__ == "__main__":`.

    Args:
        function: A picklable function; its exceptions are raised in the caller.
        args: The function's arguments; if the first is a path, the error's message names it.
        timeout: Seconds that the function may take before its process is killed, not counting the start of the process;
            `None` for no limit.
        expected: The input that the `BadInputError` says was expected.
        hint: The advice that the `BadInputError` gives.

    Raises:
        BadInputError: If the process dies or takes too long.
    """
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    )
    request, process.stdin = process.stdin, None  # `communicate` would write to it again
    assert request is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), request:
            pickle.dump((function, args), request)
        os.read(process.stdout.fileno(), 1)  # wait for the start: how long it takes says nothing about the media
        answer, _ = process.communicate(timeout=timeout)
        if process.returncode == 0:
            result, error = pickle.loads(answer)
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        found = f"a crash of the process that works on it (exit code {process.returncode})"
    except subprocess.TimeoutExpired:
        found = f"no answer after {timeout:g} s"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    where = args[0] if args and isinstance(args[0], str | Path) else getattr(function, "__name__", "worker")
    raise BadInputError(where, found, expected, hint)


def serve() -> None:
    """Run the pickled call from standard input, and write its result or exception to the original standard output."""
    function, args = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)  # so that prints of the function go to standard error
        pipe.write(b".")
        pipe.flush()
        answer: tuple[Any, Exception | None]
        try:
            answer = (function(*args), None)
        except Exception as error:  # any exception is raised in the caller
            answer = (None, error)
        with suppress(BrokenPipeError):  # the caller may have ended
            pickle.dump(answer, pipe)
            pipe.flush()
