"""Disturb every long command and print what was lost: `python -m tests.e2e.faults --kills 50`."""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from counterpoint.provenance import provenance
from tests.e2e.faults.jobs import JOBS, SHORT, WORKING, Job
from tests.e2e.faults.trials import Bench, Outcome, flip, spread, truncate

DAMAGES = (
    ("half a checkpoint", "state.safetensors", truncate),
    ("half a checkpoint", "SHA256SUMS", truncate),
    ("truncated JSON", "*.json", truncate),
    ("truncated JSON", "metrics.jsonl", truncate),
    ("a flipped bit", "*.safetensors", flip),
    ("a flipped bit", "*.bin", flip),
    ("a flipped bit", "*.npy", flip),
)


def outcomes(bench: Bench, jobs: tuple[Job, ...], given: argparse.Namespace) -> Iterator[Outcome]:
    """Yield every trial."""
    rng = random.Random(given.seed)
    for number, job in enumerate(spread(jobs, given.kills)):
        yield bench.kill(job, rng, inside=number // len(jobs) % 2 == 0)
    for job in jobs:
        few = chosen_writes(bench.writes(job), given, rng) if given.writes or given.files else []
        yield from (bench.fill(job, at) for at in few)
    for job in (*jobs, *_chosen(SHORT, given)):
        for turn in range(given.signals):
            for number in (signal.SIGTERM, signal.SIGINT):
                yield bench.stop(job, rng, number=number, inside=turn % 2 == 0)
    for job in jobs:
        for how, name, spoil in DAMAGES:
            yield from (bench.damage(job, rng, name=name, how=how, spoil=spoil) for _ in range(given.damages))
    for job in jobs:
        yield from (bench.two(job) for _ in range(given.twice))
        yield from (bench.starve(job, rng.randrange(1 << 20, 60 << 20)) for _ in range(given.memory))
        yield from (bench.jump(job) for _ in range(given.clocks))
    for job in jobs:
        yield from (bench.small_disk(job, rng.uniform(0.05, 0.95)) for _ in range(given.disks))
        yield from (bench.read_only(job) for _ in range(given.read_only))
    for job in _chosen(WORKING, given):
        yield from (bench.orphan(job, rng) for _ in range(given.workers))


def _chosen(jobs: Iterable[Job], given: argparse.Namespace) -> tuple[Job, ...]:
    return tuple(job for job in jobs if not given.jobs or any(word in job.name for word in given.jobs))


def chosen_writes(files: Sequence[str], given: argparse.Namespace, rng: random.Random) -> list[int]:
    """Return numbers of writes, from 1: random ones, and the first, the last and others of each kind of file."""
    chosen = set(rng.sample(range(1, len(files) + 1), min(given.writes, len(files))))
    for kind in dict.fromkeys(files):
        own = [number for number, file in enumerate(files, 1) if file == kind]
        ends = [own[0], own[-1], *rng.sample(own[1:-1], max(0, min(given.files, len(own)) - 2))]
        chosen |= set(ends[: given.files])
    return sorted(chosen)


def table(found: Iterable[Outcome]) -> str:
    """Return a row a fault and command."""
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in found:
        rows[one.fault, one.job].append(one)
    lines = ["| Fault | Command | Times tried | Came in time | Lost |", "|---|---|---|---|---|"]
    for (fault, job), group in sorted(rows.items()):
        hit, lost = sum(one.hit for one in group), sum(bool(one.troubles) for one in group)
        lines.append(f"| {fault} | {job} | {len(group)} | {hit} | {lost} |")
    return "\n".join(lines)


def result(found: Iterable[Outcome]) -> dict[str, Any]:
    """Return what a result file keeps: a row a fault, over all commands, with what made it."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in found:
        groups[one.fault].append(one)
    rows = [
        [
            fault,
            len({one.job for one in own}),
            len(own),
            sum(one.hit for one in own),
            sum(bool(one.troubles) for one in own),
        ]
        for fault, own in sorted(groups.items())
    ]
    head = ["fault", "commands", "times tried", "came in time", "lost"]
    words = re.sub(r" --(log|out) \S+", "", shlex.join(sys.argv[1:]))
    command = f"python -m tests.e2e.faults {words}"
    return {"command": command, "tables": {"faults": {"head": head, "rows": rows}}, "provenance": provenance()}


def main() -> None:
    """Disturb, print the table, and exit with 1 where anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=50, help="times that a command is killed; half inside an operation"
    )
    parser.add_argument("--writes", type=int, default=0, help="writes of each command at which the disk is full")
    parser.add_argument(
        "--files", type=int, default=0, help="writes of each kind of file at which it is full: first, last, others"
    )
    parser.add_argument("--disks", type=int, default=0, help="small tmpfs for each command; as root")
    parser.add_argument("--read-only", type=int, default=0, help="times that each command's disk is read-only; as root")
    parser.add_argument("--signals", type=int, default=0, help="times that each command gets SIGTERM, and SIGINT")
    parser.add_argument("--damages", type=int, default=0, help="files of each kind and command that are damaged")
    parser.add_argument("--twice", type=int, default=0, help="times that each command runs twice in one folder")
    parser.add_argument("--memory", type=int, default=0, help="times that each command has too little memory")
    parser.add_argument("--clocks", type=int, default=0, help="times that the clock jumps under each command")
    parser.add_argument("--workers", type=int, default=0, help="times that a worker of each command is killed")
    parser.add_argument("--jobs", nargs="*", default=(), metavar="WORD", help="only commands of these words")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="file that keeps every trial, a JSON object a line")
    parser.add_argument("--out", type=Path, help="result file of the numbers of each fault")
    given = parser.parse_args()
    jobs = _chosen(JOBS, given)
    found, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "bench")
        try:
            for one in outcomes(bench, jobs, given):
                found.append(one)
                if given.log:
                    with given.log.open("a") as log:
                        log.write(json.dumps(vars(one)) + "\n")
                if one.troubles or one.left:
                    print(
                        f"{one.fault}, {one.job}, {one.detail}: {'; '.join(one.troubles)} left {one.left}", flush=True
                    )
        finally:
            bench.close()
    print(table(found))
    if given.out:
        given.out.write_text(json.dumps(result(found), indent=1) + "\n")
    print(f"{len(found)} trials in {time.monotonic() - began:.0f} s, {sum(bool(one.troubles) for one in found)} lost")
    sys.exit(any(one.troubles for one in found))


if __name__ == "__main__":
    main()
