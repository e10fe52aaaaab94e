"""Commands that are killed, stopped or out of disk on purpose, and what that lost.

    python -m tests.e2e.faults [--kills 50] [--seed 0] [--out FILE]

Every command first runs undisturbed. Then it is disturbed in a fresh folder, run again until it ends, and its results
are compared with the undisturbed ones. Commands run in forks of this process, which has imported everything, so that a
case takes seconds. Half of the kills come at a random moment, half inside a random write, flush or rename: the process
writes half of the bytes and kills itself. A full disk refuses every write from a random one on; its message and exit
code are checked.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open  # noqa: F401  every module that a command needs is imported before the forks

from counterpoint import cli
from counterpoint.cli import main as _cli  # noqa: F401
from counterpoint.files import sha256_of
from studies.harness import Study, Trial

TIMED = ("seconds", "per_second", "time")
"""Parts of the names of numbers that measure time."""


@dataclass(frozen=True)
class Case:
    """A command under test.

    Attributes:
        name: Its name.
        words: What follows `counterpoint`; or `run` is called in place of it.
        make: Makes what the command reads, in the present folder.
        run: Called in place of the command line.
        ignored: Files of the output that may differ.
    """

    name: str
    words: tuple[str, ...] = ()
    make: Callable[[], object] = lambda: None
    run: Callable[[], object] | None = None
    ignored: tuple[str, ...] = ("config.json", "tensorboard", "checkpoints", "collect.json", "README.md", ".lock")


TRAIN = ("--train.save_every=2", "--train.eval_every=4", "--train.log_every=1", "--device=cpu", "--train.trackers")


def _robot() -> None:
    from tests.conftest import write_robot_set

    write_robot_set(Path("data"), 15, 32, {"train": "0:12", "val": "12:15"})


def _control() -> None:
    from tests.training.step_data import control_store, write_control_set, write_recipe

    write_recipe(Path("tiny.toml"), "premier_taco", {"hidden": 16})
    write_control_set(Path("control"), {"train": control_store(6), "val": control_store(2, seed=1)})


def _demos() -> None:
    from tests.policies.masked_demos import write_masked_demos
    from tests.training.test_imitation_command import SMALL

    Path("small.toml").write_text(SMALL)
    write_masked_demos(Path("demos"))


def _maze() -> None:
    cli.main(["collect", "pointmaze", "--out", "maze", "--episodes=4", "--val-episodes=1", "--steps=30"])


def _label() -> None:
    from tests.data.made import write_videos
    from tests.rewards.labelling import save_model

    save_model(Path("model"), write_videos(Path("videos"), count=6, frames=40))


def _measure(value: float) -> dict[str, Any]:
    time.sleep(0.1)
    return {"value": value, "curve": np.random.default_rng(int(value)).random(5).tolist()}


def _study() -> None:
    study = Study("study", Path("out"), argparse.Namespace(model_dump=lambda **_: {}))  # type: ignore[arg-type]
    study.run([Trial(str(number), _Measure(number)) for number in range(6)])


@dataclass(frozen=True)
class _Measure:
    number: int

    def __call__(self) -> dict[str, Any]:
        return _measure(self.number)


SMALL_ENCODER = ("--encoder.image_size=32", "--encoder.embed_dim=16", "--data.size=32", "--train.batch_size=8")
CASES = (
    Case("collect", ("collect", "pointmaze", "--out", "out", "--episodes=12", "--val-episodes=2", "--steps=60")),
    Case(
        "train clips, store",
        ("train", "decisionnce_t-demo", "--data", "data", "--out", "out", "--train.steps=12", *SMALL_ENCODER, *TRAIN),
        _robot,
    ),
    Case(
        "train clips, features",
        (
            *("train", "decisionnce_p-videos", "--data", "data", "--out", "out", "--train.steps=12", *TRAIN),
            *("--encoder.image_model=test_resnet", "--encoder.pretrained=None", "--encoder.image_size=64"),
            *("--encoder.embed_dim=16", "--train.batch_size=8"),
        ),
        _robot,
    ),
    Case(
        "train transitions",
        ("train", "tiny.toml", "--data", "control", "--out", "out", "--train.steps=12", *TRAIN),
        _control,
    ),
    Case(
        "train cloning",
        (
            *(
                "train",
                "cloning",
                "--data",
                "control",
                "--out",
                "out",
                "--train.steps=12",
                "--train.batch_size=4",
                *TRAIN,
            ),
            *("--cloning.hidden=8", "--cloning.shift=1", "--encoder.size=32", "--encoder.stack=2"),
            *("--encoder.width=4", "--encoder.embed_dim=8"),
        ),
        _control,
    ),
    Case(
        "train imitation", ("train", "small.toml", "--data", "demos", "--out", "out", "--train.steps=8", *TRAIN), _demos
    ),
    Case(
        "train agent",
        (
            *("train", "td_infonce", "--data", "maze/train", "--out", "out", "--agent.hidden", "16", "16"),
            *("--train.steps=40", "--train.batch_size=16", "--train.save_every=10", "--train.eval_every=20"),
            *("--train.log_every=5", "--device=cpu", "--train.trackers"),
        ),
        _maze,
    ),
    Case("label", ("label", "videos", "--model", "model", "--out", "out/labels.parquet"), _label),
    Case("study", run=_study, ignored=("logs", "config.json", ".lock")),
)


@dataclass(frozen=True)
class Fault:
    """What happens to a command.

    Attributes:
        kind: `none`, `count` (writes are counted), `moment` (a signal), `write` (killed inside a write) or `full`.
        at: Seconds until the signal, or the number of the write.
        signal: The signal.
    """

    kind: str = "none"
    at: float = 0
    signal: int = signal.SIGKILL


@dataclass
class Outcome:
    """How a command ended: its exit code, negative for a signal, what it printed, its seconds and its writes."""

    code: int
    text: str
    seconds: float
    writes: int = 0


class Writes:
    """Counts writes, flushes and renames under a folder, and interferes with one of them."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.fault, self.folder, self.count = fault, str(folder), 0

    def install(self) -> None:
        """Take the place of the calls by which Python writes."""
        plain_open = io.open
        for name in ("rename", "replace", "fsync"):
            setattr(os, name, self._before(getattr(os, name)))

        def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            made = plain_open(file, mode, *more, **options)
            ours = isinstance(file, str | os.PathLike) and str(Path(file).absolute()).startswith(self.folder)
            return _File(made, self) if ours and set(mode) & set("wax+") else made

        builtins.open = opened  # type: ignore[assignment]
        io.open = opened  # type: ignore[assignment]

    def _before(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.next(lambda: None)
            return plain(*args, **more)

        return call

    def next(self, half: Callable[[], object]) -> None:
        """Count one more, and interfere where it is the chosen one."""
        self.count += 1
        if self.fault.kind == "write" and self.count == self.fault.at:
            half()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "full" and self.count >= self.fault.at:
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _File:
    """A file whose writes are counted."""

    def __init__(self, real: Any, writes: Writes) -> None:
        self.__dict__.update(real=real, writes=writes)

    def write(self, data: Any) -> Any:
        def half() -> None:
            self.real.write(data[: len(data) // 2])
            self.real.flush()

        self.writes.next(half)
        return self.real.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)

    def __enter__(self) -> Any:
        self.real.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.real.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.real)


def in_fork(work: Callable[[], object], folder: Path, fault: Fault | None = None) -> Outcome:
    """Run in a fork of this process, in a folder and a process group of its own, and return how it ended."""
    fault, notes = fault or Fault(), folder.with_name(f"{folder.name}.notes")
    notes.mkdir(exist_ok=True)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, folder, fault, notes, tell)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    began = time.monotonic()
    ended, status = 0, 0
    if fault.kind == "moment":
        while not ended and time.monotonic() - began < fault.at:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.002)
        if not ended:  # a terminal interrupts the whole group; other signals go to the process
            (os.killpg if fault.signal == signal.SIGINT else os.kill)(child, fault.signal)
    if not ended:
        _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that are left
    count = notes / "writes"
    return Outcome(
        os.waitstatus_to_exitcode(status),
        (notes / "text").read_text(errors="replace"),
        time.monotonic() - began,
        int(count.read_text()) if count.is_file() else 0,
    )


def _child(work: Callable[[], object], folder: Path, fault: Fault, notes: Path, ready: int) -> None:
    code = 1
    try:
        os.setsid()
        text = os.open(notes / "text", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(text, 1)
        os.dup2(text, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.chdir(folder)
        os.environ["COUNTERPOINT_CACHE"] = str(folder / "cache")
        writes = Writes(fault, folder)
        if fault.kind in ("count", "write", "full"):
            writes.install()
        os.write(ready, b".")
        os.close(ready)
        try:
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        if fault.kind == "count":
            os.write(os.open(notes / "writes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(writes.count).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def results(folder: Path, case: Case) -> dict[str, Any]:
    """Return the content of a command's output: numbers of `metrics.jsonl`, digests of other files."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "out").rglob("*")):
        name = path.relative_to(folder / "out")
        if path.is_dir() or set(name.parts) & set(case.ignored) or name.suffix == ".lock":
            continue
        if name.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[str(name)] = [
                {key: value for key, value in line.items() if not any(part in key for part in TIMED)} for line in lines
            ]
        else:
            found[str(name)] = sha256_of(path)
    return found


@dataclass
class Record:
    """What was tried of one fault, and what went wrong."""

    fault: str
    case: str
    tried: int = 0
    struck: int = 0
    lost: list[str] = field(default_factory=list)


class Bench:
    """A command, its undisturbed results, and fresh folders to disturb it in.

    Args:
        case: The command.
        root: Folder of all its folders.
    """

    def __init__(self, case: Case, root: Path) -> None:
        self.case, self.root, self.made = case, root, 0
        self.inputs = root / "inputs"
        self.inputs.mkdir(parents=True)
        outcome = in_fork(case.make, self.inputs)
        assert outcome.code == 0, outcome.text
        shutil.rmtree(self.inputs / "cache", ignore_errors=True)
        self.whole = self.fresh()
        self.usual = self.run(self.whole, Fault("count"))
        assert self.usual.code == 0, self.usual.text
        self.expected = results(self.whole, case)
        assert self.expected, case.name

    def fresh(self) -> Path:
        """Return a new folder with the inputs, under the same path for every run."""
        self.made += 1
        return Path(shutil.copytree(self.inputs, self.root / str(self.made), copy_function=shutil.copy2))

    def run(self, folder: Path, fault: Fault | None = None) -> Outcome:
        """Run the command."""
        run = self.case.run or (lambda: cli.main(list(self.case.words)))
        return in_fork(run, folder, fault)

    def disturb(self, fault: Fault, record: Record) -> Outcome:
        """Disturb a run, run the command again, and record what was lost."""
        folder = self.fresh()
        first = self.run(folder, fault)
        record.tried += 1
        record.struck += first.code != 0
        again = self.run(folder)
        what = f"{self.case.name}, {fault.kind} {fault.at:g}"
        if again.code != 0:
            record.lost.append(f"{what}: does not go on: {again.text[-600:]}")
        elif (found := results(folder, self.case)) != self.expected:
            names = [name for name in {**found, **self.expected} if found.get(name) != self.expected.get(name)]
            record.lost.append(f"{what}: differs in {names[:5]}")
        else:
            shutil.rmtree(folder)
        return first

    def full_disk(self, at: int, record: Record) -> None:
        """Let the disk be full from write number `at` on."""
        first = self.disturb(Fault("full", at), record)
        told = [line for line in first.text.splitlines() if line.startswith("counterpoint: ")]
        if first.code not in (0, 2) or "Traceback" in first.text or (first.code == 2 and len(told) != 1):
            record.lost.append(f"{self.case.name}, full {at}: exit code {first.code}: {first.text[-900:]}")


def kills(bench: Bench, count: int, rng: np.random.Generator) -> list[Record]:
    """Kill a command at random moments and inside random writes."""
    moments, inside = Record("kill -9 at a moment", bench.case.name), Record("kill -9 in a write", bench.case.name)
    for number in range(count):
        if number % 2:
            bench.disturb(Fault("write", int(rng.integers(1, bench.usual.writes + 1))), inside)
        else:
            bench.disturb(Fault("moment", float(rng.uniform(0, bench.usual.seconds))), moments)
    return [moments, inside]


def signals(bench: Bench, count: int, rng: np.random.Generator) -> list[Record]:
    """Send SIGTERM and SIGINT at random moments."""
    found = []
    for kind, codes in ((signal.SIGTERM, (0, 143, -15)), (signal.SIGINT, (0, 130))):
        record = Record(kind.name, bench.case.name)
        for _ in range(count):
            first = bench.disturb(Fault("moment", float(rng.uniform(0, bench.usual.seconds)), kind), record)
            if bench.case.words and (first.code not in codes or "Traceback" in first.text):
                record.lost.append(f"{bench.case.name}, {kind.name}: exit code {first.code}: {first.text[-900:]}")
        found.append(record)
    return found


def full_disks(bench: Bench, count: int, rng: np.random.Generator) -> list[Record]:
    """Let the disk be full from random writes on."""
    record = Record("disk full", bench.case.name)
    for _ in range(count if bench.case.words else 0):
        bench.full_disk(int(rng.integers(1, bench.usual.writes + 1)), record)
    return [record]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all faults and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=50, help="of all commands together")
    options.add_argument("--signals", type=int, default=2, help="of each kind a command")
    options.add_argument("--full", type=int, default=3, help="full disks a command")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    options.add_argument("--out", type=Path, help="a JSON file of the records")
    given = options.parse_args(arguments)
    chosen = [case for case in CASES if case.name in given.cases]
    rng, records = np.random.default_rng(given.seed), list[Record]()
    with tempfile.TemporaryDirectory() as root:
        for number, case in enumerate(chosen):
            share = given.kills * (number + 1) // len(chosen) - given.kills * number // len(chosen)
            bench = Bench(case, Path(root) / str(number))
            records += kills(bench, share, rng) + signals(bench, given.signals, rng)
            records += full_disks(bench, given.full, rng)
            for record in records[-5:]:
                print(f"{record.fault:24} {record.case:24} {record.struck:3} of {record.tried:3} struck,", end=" ")
                print(f"{len(record.lost)} lost", flush=True)
                print("".join(f"    {line}\n" for line in record.lost), end="", flush=True)
    if given.out:
        given.out.write_text(json.dumps([vars(record) for record in records], indent=1) + "\n")
    sys.exit(any(record.lost for record in records))


if __name__ == "__main__":
    main()
