"""One fault to one command: what happened, what the command said, and whether its results are an undisturbed run's."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from counterpoint.training.run import METRICS, newest_valid
from tests.e2e.faults.injector import Ended, Fault, Server
from tests.e2e.faults.jobs import JOBS, MODULES, Found, Job, differences, metrics_whole, results, write_inputs

CACHE = {"COUNTERPOINT_CACHE": "cache"}
CHECKED = ("cache/", "checkpoints/", "model/")
"""Parts of the paths of files that have digests, and are compared with them whenever they are read."""
ENOUGH = 1 << 30
"""Bytes of a disk on which every command has room."""


@dataclass(frozen=True)
class Outcome:
    """One trial.

    Attributes:
        fault: The kind of fault.
        job: The command.
        detail: Where it came.
        hit: Whether it came before the command had ended.
        troubles: What was not as it should be; empty where nothing was lost.
        left: Files that a killed process left behind and the next run did not take away.
    """

    fault: str
    job: str
    detail: str
    hit: bool
    troubles: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Whole:
    """An undisturbed run."""

    found: Found
    ended: Ended


class Bench:
    """Inputs, a server, undisturbed runs, and folders to disturb others in.

    Args:
        folder: Everything's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs = folder.resolve(), folder.resolve() / "inputs"
        write_inputs(self.inputs)
        self.server = Server(self.folder / "server", MODULES)
        if find_spec("gymnasium_robotics"):
            self.server.run([*JOBS[0].command[:-1], "--out=maze"], self.inputs)
            self.server.run([*JOBS[10].words(self.inputs), "--out=agent"], self.inputs)
        self.server.run(JOBS[5].words(self.inputs), self.inputs, env=CACHE)
        self._wholes: dict[str, Whole] = {}
        self._number = 0

    def whole(self, job: Job) -> Whole:
        """Return an undisturbed run of a command, and check that a second one is equal."""
        if job.name not in self._wholes:
            found = []
            for _ in range(2):
                with self.place() as place:
                    ended = self.run(job, place)
                    assert ended.code == 0, f"{job.name}: {ended.error}"
                    found.append(results(job, place))
            differ = differences(found[0].values, found[1].values, job.near)
            assert not differ, f"{job.name}: two undisturbed runs differ in {differ}"
            assert metrics_whole(found[0].values)
            assert not found[0].left, f"{job.name} leaves {found[0].left}"
            self._wholes[job.name] = Whole(found[0], ended)
        return self._wholes[job.name]

    def run(self, job: Job, place: Path, fault: Fault | None = None) -> Ended:
        """Run a command in a folder."""
        return self.server.run(job.words(self.inputs), place, fault, env=CACHE)

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Make a folder, and remove it afterwards."""
        self._number += 1
        place = self.folder / "places" / f"{self._number:05d}"
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def again(self, job: Job, place: Path) -> tuple[list[str], Found]:
        """Run a command that was disturbed again; return the troubles and what it wrote."""
        ended = self.run(job, place)
        finished = ("found an existing path", "found labels already there")  # by commands that write something new
        over = ended.code == 2 and any(words in ended.error for words in finished)
        troubles = [] if ended.code == 0 or over else [f"run again: exit {ended.code}: {_last(ended.error)}"]
        expected, found = self.whole(job).found.values, results(job, place)
        differ = differences(expected, found.values, job.near)
        troubles += [f"differs: {name}" for name in differ if not of_interruption(name, expected, found.values)]
        if not metrics_whole(found.values):
            troubles.append("metrics.jsonl has gaps or doubles")
        return troubles, found

    def kill(self, job: Job, rng: random.Random, *, inside: bool) -> Outcome:
        """Kill a command at a random moment, or at a random file operation, and run it again."""
        whole, kind = self.whole(job), "kill -9 inside a write, rename, removal or flush" if inside else "kill -9"
        with self.place() as place:
            if inside:
                at = rng.randint(1, whole.ended.seen)
                ended, detail = self.run(job, place, Fault("kill", at=at)), f"operation {at} of {whole.ended.seen}"
            else:
                seconds = rng.uniform(0, whole.ended.seconds)
                ended, detail = self._after(job, place, seconds, signal.SIGKILL), f"after {seconds:.2f} s"
            hit = ended.code == -signal.SIGKILL
            troubles = [] if hit or ended.code == 0 else [f"exit {ended.code}: {_last(ended.error)}"]
            more, found = self.again(job, place)
            return Outcome(kind, job.name, detail, hit, (*troubles, *more), tuple(found.left))

    def stop(self, job: Job, rng: random.Random, *, number: signal.Signals, inside: bool) -> Outcome:
        """Send SIGTERM or SIGINT to a command, and run it again."""
        whole, words = self.whole(job), {signal.SIGTERM: ("term", 143), signal.SIGINT: ("interrupt", 130)}
        kind, code = words[number]
        with self.place() as place:
            if inside and whole.ended.seen:
                at = rng.randint(1, whole.ended.seen)
                ended, detail = self.run(job, place, Fault(kind, at=at)), f"operation {at} of {whole.ended.seen}"
            else:
                seconds = rng.uniform(0, whole.ended.seconds)
                ended, detail = self._after(job, place, seconds, number), f"after {seconds:.2f} s"
            hit = ended.code != 0
            troubles = [f"exit {ended.code}, not {code}: {_last(ended.error)}"] if hit and ended.code != code else []
            troubles += _unclean(ended) if hit else []
            more, found = self.again(job, place)
            return Outcome(number.name, job.name, detail, hit, (*troubles, *more), tuple(found.left))

    def fill(self, job: Job, at: int) -> Outcome:
        """Let the disk be full from a write on, and run the command again with room."""
        with self.place() as place:
            ended = self.run(job, place, Fault("full", "w", at))
            hit = ended.code != 0
            troubles = [] if ended.code in (0, 2) else [f"exit {ended.code}: {_last(ended.error)}"]
            troubles += _unclean(ended) if hit else []
            troubles += [f"half-written: {name}" for name in self.half_written(job, place)]
            more, found = self.again(job, place)
            return Outcome("full disk", job.name, f"write {at}", hit, (*troubles, *more), tuple(found.left))

    def small_disk(self, job: Job, share: float) -> Outcome:
        """Give a command a disk of a share of the room that its results take, then one that is large enough; as root.

        The disk is a tmpfs, so that refusals come from the kernel, and in calls that `fill` does not watch.
        """
        with self.place() as place:
            self.run(job, place)
            needed = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        with self.place() as place, _mounted(place, max(1 << 13, int(share * needed))):
            return self._refused("full disk (tmpfs)", job, place, f"{share:.0%} of {needed} bytes")

    def read_only(self, job: Job) -> Outcome:
        """Give a command a folder on a disk that is mounted read-only, then one that it can write to; as root."""
        with self.place() as place, _mounted(place, ENOUGH):
            _remount(place, "ro")
            return self._refused("read-only folder", job, place, "")

    def _refused(self, fault: str, job: Job, place: Path, detail: str) -> Outcome:
        """Run a command where it cannot write, check that it says so and leaves nothing half-written, and let it."""
        ended = self.run(job, place)
        hit = ended.code != 0
        troubles = [] if ended.code in (0, 2) else [f"exit {ended.code}: {_last(ended.error)}"]
        troubles += _unclean(ended) if hit else []
        troubles += [f"half-written: {name}" for name in self.half_written(job, place)]
        _remount(place, f"rw,size={ENOUGH}")
        more, found = self.again(job, place)
        return Outcome(fault, job.name, detail, hit, (*troubles, *more), tuple(found.left))

    def writes(self, job: Job) -> list[str]:
        """Return the file of every write of a command, in order, with # for numbers and random words in its path."""
        with self.place() as place:
            listed = self.run(job, place, Fault("list", "w")).error.splitlines()
        files = [line.removeprefix("writes /") for line in listed if line.startswith("writes /")]
        return [re.sub(r"(?<=\.tmp)\w+|[0-9a-f]{6,}|\d+", "#", file) for file in files]

    def half_written(self, job: Job, place: Path) -> list[str]:
        """Return files of a result, such as a model, that are there but not whole."""
        expected, found = self.whole(job).found.values, results(job, place).values
        kept = ("metrics.jsonl", "config.json", "result.json", "errors.json", "last", "embeddings.json")
        there = [name for name in found if found[name] != "missing"]
        on_the_way = ("checkpoints/", "/replay/", "/best/", ".building/")
        passing = [name for name in there if any(part in name for part in on_the_way)]
        passing.append("out/SHA256SUMS")  # of a folder that is written part by part
        parts = [name for name in there if name not in passing and Path(name).name not in kept]
        return differences(
            {name: expected.get(name) for name in parts}, {name: found[name] for name in parts}, job.near
        )

    def jump(self, job: Job) -> Outcome:
        """Let the clock jump a day back and forth while a command runs."""
        with self.place() as place:
            ended = self.run(job, place, Fault("jump", ""))
            troubles = [] if ended.code == 0 else [f"exit {ended.code}: {_last(ended.error)}"]
            more, found = self.again(job, place)
            return Outcome("clock jumps", job.name, "", True, (*troubles, *more), tuple(found.left))

    def starve(self, job: Job, memory: int) -> Outcome:
        """Let a command have too little memory, and run it again with enough."""
        with self.place() as place:
            ended = self.run(job, place, Fault("count", memory=memory))
            hit, aborted = ended.code != 0, "thread-local data: ABORT" in ended.error  # the C library ends the process
            troubles = [] if ended.code in (0, 2) or aborted else [f"exit {ended.code}: {_last(ended.error)}"]
            troubles += _unclean(ended) if hit and not aborted else []
            more, found = self.again(job, place)
            detail = f"{memory >> 20} MiB more than it had" + (", aborted by the C library" if aborted else "")
            return Outcome("too little memory", job.name, detail, hit, (*troubles, *more), tuple(found.left))

    def two(self, job: Job) -> Outcome:
        """Run a command twice at the same time in one folder, then once more."""
        with self.place() as place:
            started = [self.server.start(job.words(self.inputs), place, env=CACHE) for _ in range(2)]
            first, second = (one.wait() for one in started)
            troubles = [
                f"{name}: exit {ended.code}: {_last(ended.error)}"
                for name, ended in (("first", first), ("second", second))
                if ended.code not in (0, 2) or (ended.code == 2 and _unclean(ended))
            ]
            troubles += ["both refused"] if first.code and second.code else []
            more, found = self.again(job, place)
            detail = f"exits {first.code} and {second.code}"
            return Outcome("two processes in one folder", job.name, detail, True, (*troubles, *more), tuple(found.left))

    def orphan(self, job: Job, rng: random.Random) -> Outcome:
        """Kill a worker of a command, as the kernel does for memory, and run the command again."""
        whole = self.whole(job)
        with self.place() as place:
            started = self.server.start(job.words(self.inputs), place, env=CACHE)
            wait, began, hit = rng.uniform(0.3, 0.9) * whole.ended.seconds, time.monotonic(), False
            while started.running() and not hit:
                time.sleep(0.02)
                workers = [child for child in started.children() if _is_worker(child)]
                if workers and time.monotonic() - began > wait:
                    hit = _killed(rng.choice(workers))
            ended = started.wait()
            troubles = [] if ended.code in (0, 2) else [f"exit {ended.code}: {_last(ended.error)}"]
            troubles += _unclean(ended) if ended.code else []
            more, found = self.again(job, place)
            if job.recovers and ended.code == 0:
                more = [trouble for trouble in more if not trouble.startswith("differs")]
            detail = f"exit {ended.code} after {wait:.1f} s"
            return Outcome("killed worker", job.name, detail, hit, (*troubles, *more), tuple(found.left))

    def damage(self, job: Job, rng: random.Random, *, name: str, how: str, spoil: Callable[[Path], None]) -> Outcome:
        """Stop a command late, spoil one of its files, and run it again: it refuses in one message, or nothing is lost.

        Args:
            job: The command.
            rng: Chooses among files.
            name: Pattern of the file's name.
            how: The damage in words.
            spoil: Damages the file.
        """
        whole = self.whole(job)
        with self.place() as place:
            self.run(job, place, Fault("kill", at=int(whole.ended.seen * rng.uniform(0.6, 0.95))))
            files = sorted(path for path in place.rglob(name) if path.is_file() and path.stat().st_size)
            if not files:
                return Outcome(how, job.name, f"no {name}", False)
            file = rng.choice(files)
            spoil(file)
            ended = self.run(job, place)
            detail, left = str(file.relative_to(place)), results(job, place)
            if ended.code == 2:
                return Outcome(how, job.name, f"{detail}: refused", True, tuple(_unclean(ended)), tuple(left.left))
            troubles = [] if ended.code == 0 else [f"exit {ended.code}: {_last(ended.error)}"]
            differ = differences(whole.found.values, left.values, job.near)
            checked = any(part in detail for part in CHECKED)  # and found when it is read
            unread = [detail] if checked or _restored(file, whole.found.values.get(detail)) else []
            troubles += [f"differs: {name}" for name in differ if name not in unread]
            kept = "not read again" if set(unread) & set(differ) else "made again"
            return Outcome(how, job.name, f"{detail}: {kept}", True, tuple(troubles), tuple(left.left))

    def _after(self, job: Job, place: Path, seconds: float, number: signal.Signals) -> Ended:
        started = self.server.start(job.words(self.inputs), place, env=CACHE)
        deadline = time.monotonic() + seconds
        while started.running() and time.monotonic() < deadline:
            time.sleep(0.002)
        if started.running():
            if number == signal.SIGKILL:
                started.signal(number)
            else:  # its workers get it too, as from a terminal or a batch system
                os.killpg(started.pid, number)
        return started.wait()

    def close(self) -> None:
        """End the server."""
        self.server.close()


@contextmanager
def _mounted(place: Path, size: int) -> Iterator[None]:
    """Mount a tmpfs of so many bytes on a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def _remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def _restored(file: Path, expected: Any) -> bool:
    """Return whether a file is the log of a run that has ended, and whose checkpoint would bring it back."""
    found = newest_valid(file.parent / "checkpoints") if file.name == METRICS else None
    return found is not None and [json.loads(line) for line in found[2][METRICS].splitlines()] == expected


def of_interruption(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether only one run kept this checkpoint: an interruption saves one, which takes an older one's place.

    The newest checkpoint is another matter: `last` names it.
    """
    return "checkpoints/step-" in name and (name in expected) != (name in found)


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"spawn_main" in words or b"loky" in words


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _unclean(ended: Ended) -> list[str]:
    """Return what is wrong with the message of a command that was stopped: one line, and no traceback."""
    said = [line for line in ended.error.splitlines() if line.startswith("counterpoint: ")]
    troubles = [] if len(said) == 1 else [f"{len(said)} messages"]
    if "Traceback" in ended.error + ended.output:
        troubles.append(f"a traceback: {_last(ended.error)}")
    return troubles


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing said"])[-1][:300]


def truncate(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def spread(jobs: tuple[Job, ...], count: int) -> list[Job]:
    """Return so many jobs, each as often as the others."""
    every: Any = jobs * (count // max(1, len(jobs)) + 1)
    return list(every[:count])
