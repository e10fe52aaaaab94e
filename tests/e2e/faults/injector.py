"""Run commands with faults: a server that has imported everything forks a process a command, where the fault is armed.

The file operations of the process are watched by `shim.c`, preloaded before libc, so that a fault also hits writes of
safetensors, pyarrow, HDF5 and ffmpeg.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).with_name("shim.c")
HANGS = 300
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Fault:
    """What happens to a process.

    Attributes:
        kind: `kill`, `full`, `term`, `interrupt`, `jump` or `list`: see `shim.c`. `count` does nothing and counts.
        operations: Letters of the operations that are counted: w writes, r renames, u removals, s flushes to the disk.
        at: The number of the operation, from 1.
        memory: Bytes of address space that the process may use beyond what it has.
        workers: The fault comes to the processes that the command starts, not to its own.
    """

    kind: str = "count"
    operations: str = "wrus"
    at: int = 0
    memory: int | None = None
    workers: bool = False


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; less than 0 for the signal that ended it.
        output: What it printed.
        error: What it printed as errors.
        seen: The file operations that were counted.
        seconds: How long it took.
    """

    code: int
    output: str
    error: str
    seen: int
    seconds: float


class Started:
    """A process that runs."""

    def __init__(self, server: Server, pid: int, files: Path) -> None:
        self._server, self._files, self._began = server, files, time.monotonic()
        self.pid = pid

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def children(self) -> list[int]:
        """Return the processes that it started and that live."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in listed.read_text().split()] if listed.exists() else []

    def running(self) -> bool:
        """Return whether it has not ended; a process that the server has yet to wait for counts as ended."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    def wait(self) -> Ended:
        """Return how it ended."""
        deadline = time.monotonic() + HANGS
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.005)
        hung = self.running()
        if hung:
            self.signal(signal.SIGKILL)
        code = int(self._server.ask(wait=self.pid)["code"])
        said = [self._files.with_suffix(f".{name}") for name in ("out", "err", "seen")]
        output, error, seen = (path.read_text(errors="replace") if path.exists() else "" for path in said)
        error += f"\nhung for {HANGS} s, killed" if hung else ""
        return Ended(code, output, error, int(seen or 0), time.monotonic() - self._began)


class Server:
    """Forks processes that run commands.

    Args:
        folder: Its own files: the shim, and what processes print.
        modules: Imported before anything is forked.
    """

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._shim, self._number = folder.resolve(), folder.resolve() / "shim.so", 0
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._shim, SOURCE, "-ldl"], check=True)
        before = os.environ | {"LD_PRELOAD": str(self._shim), "OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}
        before |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.faults.injector", str(self._shim), *modules],
            env=before,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self._answer()

    def start(
        self, command: Sequence[str], cwd: Path, fault: Fault | None = None, env: Mapping[str, str] | None = None
    ) -> Started:
        """Start a command of `counterpoint`, or a function MODULE:NAME with its arguments, in a folder."""
        self._number += 1
        files = self.folder / f"{self._number:05d}"
        request = {"command": list(command), "cwd": str(cwd), "files": str(files), "env": dict(env or {})}
        return Started(self, int(self.ask(**request, fault=asdict(fault or Fault()))["pid"]), files)

    def run(self, command: Sequence[str], cwd: Path, fault: Fault | None = None, **more: Any) -> Ended:
        """Run a command to its end."""
        return self.start(command, cwd, fault, **more).wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a line to the server and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server ended"
        return dict(json.loads(line))

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve() -> None:
    """Import the modules that are named, then fork a process for every line of standard input."""
    shim, *modules = sys.argv[1:]
    for module in modules:
        __import__(module)
    gc.collect()
    gc.freeze()  # so that children share the pages
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    watched = ctypes.CDLL(shim)
    answers = os.fdopen(os.dup(1), "w")

    def answer(**values: int) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(ready=1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer(code=os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]))
            continue
        pid = os.fork()
        if not pid:
            answers.close()
            _end(partial(_child, watched, request))
        with suppress(OSError):  # so that the group is there whoever comes first
            os.setpgid(pid, pid)
        answer(pid=pid)


def _end(work: Callable[[], None]) -> None:
    """Run and exit as Python does, but for taking apart all that was imported, which takes seconds."""
    code = 0
    try:
        work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _child(watched: Any, request: Mapping[str, Any]) -> None:
    """Run one command as a program of its own."""
    fault, files = Fault(**request["fault"]), Path(request["files"])
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, path in ((1, files.with_suffix(".out")), (2, files.with_suffix(".err"))):
        opened = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(nothing, 0)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    kind, place = fault.kind[0], request["cwd"]
    if fault.memory is not None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + fault.memory, held + fault.memory))
    if fault.workers:
        os.environ["FAULT"] = f"{kind} {fault.operations} {fault.at} {place}"
    else:
        watched.fault_arm(kind.encode(), fault.operations.encode(), fault.at, place.encode())
    try:
        _run(request["command"])
    finally:
        seen = watched.fault_seen()
        watched.fault_arm(b"c", b"", 0, b"/")
        files.with_suffix(".seen").write_text(str(seen))


def _run(command: Sequence[str]) -> None:
    first, *arguments = command
    module, _, name = first.partition(":")
    if name:
        function: Callable[..., object] = getattr(sys.modules[module], name)
        function(*arguments)
        return
    from counterpoint.cli import main

    sys.argv = ["counterpoint", *command]
    main()


if __name__ == "__main__":
    serve()
