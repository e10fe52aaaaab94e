"""The server from which tests fork processes: it has imported what they need once, and opened nothing."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any

from counterpoint.workers import serve

PRELOADED = ["tests.warmed"]
"""What the server imports at its start, which is at the first process that is asked for."""


def warm() -> ForkServerContext:
    """Return the context of the one server of this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Forked:
    """A process as `subprocess.Popen` starts one, forked from the server and therefore without seconds of imports.

    Args:
        function: What the process does; its module and arguments are pickled.
        args: The function's arguments.
        pipes: Which of `stdin`, `stdout` and `stderr` are pipes; of the others the process has this one's.
        cwd: The folder that the process works in.
        env: The whole environment.
        text: Whether pipes hold text.
        start_new_session: Whether the process leads a process group of its own.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: Sequence[Any] = (),
        *,
        pipes: Sequence[str] = ("stdout", "stderr"),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = True,
        start_new_session: bool = False,
    ) -> None:
        context = warm()
        theirs: dict[int, Connection] = {}
        ours: dict[str, IO[Any]] = {}
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if name in pipes:
                reader, writer = context.Pipe(duplex=False)
                mine, theirs[number] = (writer, reader) if name == "stdin" else (reader, writer)
                mode = ("w" if name == "stdin" else "r") + ("" if text else "b")
                ours[name] = os.fdopen(os.dup(mine.fileno()), mode)
                mine.close()
        self.stdin, self.stdout, self.stderr = (ours.get(name) for name in ("stdin", "stdout", "stderr"))
        where, what = str(cwd or Path.cwd()), dict(os.environ if env is None else env)
        self._process = context.Process(
            target=_enter, args=(function, tuple(args), theirs, where, what, start_new_session), daemon=True
        )
        self._process.start()
        for pipe in theirs.values():
            pipe.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Read what the process says to its end; `subprocess.TimeoutExpired` if that takes too long."""
        said: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, pipe: IO[Any]) -> None:
            said[name] = pipe.read()

        pipes = [(name, pipe) for name in said if (pipe := getattr(self, name)) is not None]
        readers = [threading.Thread(target=read, args=pipe, daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said["stdout"], said["stderr"]


def counterpoint(*words: str) -> None:
    """Do as `python -m counterpoint WORDS`."""
    sys.argv = ["counterpoint", *words]
    runpy.run_module("counterpoint", run_name="__main__", alter_sys=True)


def program(source: str, *words: str) -> None:
    """Do as `python -c SOURCE WORDS`."""
    sys.argv = ["-c", *words]
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})


def fork_worker(_: Sequence[str], *, env: Mapping[str, str], **pipes: int) -> Forked:
    """Start the process of `counterpoint.workers.in_worker`."""
    return Forked(serve, pipes=list(pipes), env=env, text=False)


def fork_program(command: Sequence[str], *, timeout: float | None = None, **_: object) -> Forked:
    """Do as `subprocess.run` does with `[sys.executable, "-c", SOURCE, ...]`."""
    process = Forked(program, command[2:])
    try:
        process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process


def _enter(
    function: Callable[..., object],
    args: tuple[Any, ...],
    pipes: dict[int, Connection],
    cwd: str,
    env: dict[str, str],
    lead: bool,
) -> None:
    for number, pipe in pipes.items():
        os.dup2(pipe.fileno(), number)
        pipe.close()
    if lead:
        os.setsid()
    multiprocessing.set_start_method(None, force=True)  # what it starts is started as ever
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # a pipe's buffer is larger than a terminal's
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    function(*args)
    sys.stdout.flush()
