"""What every collection shares: episodes recorded side by side, kept whole, and gone on with after an interruption."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from counterpoint.data.formats.robomimic_writer import robomimic_about
from counterpoint.envs.collect_plan import Slot, plan_jobs
from counterpoint.envs.staging import Staging, first_difference
from counterpoint.errors import BadInputError
from counterpoint.processes import worker_processes
from counterpoint.progress import ProgressBar

__all__ = ["collected_about", "record_missing", "refuse_different", "refuse_foreign"]

_stopped: Event | None = None  # in a worker: set when the collection is given up

Record = Callable[[Slot], None]
Note = Callable[[Sequence[Mapping[str, Any]]], str]


def record_missing(
    staging: Staging,
    plan: Sequence[Slot],
    record: Record,
    *,
    workers: int,
    note: Note,
    title: str = "collect",
) -> None:
    """Record the episodes of a plan that are not staged yet, with progress.

    Args:
        staging: Where finished episodes wait.
        plan: All episodes.
        record: Records one and stages it; with several workers it is pickled.
        workers: Processes that record; with 1 it is this one.
        note: What the progress bar says, given what is remembered of the episodes recorded by this call.
        title: Of the progress bar.

    Raises:
        BadInputError: When a worker dies.
    """
    counted = staging.finished()
    jobs = plan_jobs([slot for slot in plan if slot.place not in counted], workers)
    recorded: list[Mapping[str, Any]] = []
    with ProgressBar(title, len(plan), "episodes", done=len(counted)) as bar:
        for _ in _run(jobs, record, workers):
            fresh = staging.finished() - counted
            recorded += [staging.about(place) for place in fresh]
            counted |= fresh
            if fresh:
                bar.advance(len(fresh), note(recorded))


def refuse_foreign(out: Path) -> None:
    """Raise a BadInputError when `out` holds anything but a collected data set."""
    if out.exists() and collected_about(out) is None:
        raise BadInputError(
            out,
            found="something that is no data set of counterpoint collect",
            expected="a new folder",
            mend="choose another --out, or remove it",
        )


def refuse_different(out: Path, identity: Mapping[str, Any]) -> None:
    """Raise a BadInputError unless `out` was collected alike: asking for the same one again is no error."""
    difference = first_difference((collected_about(out) or {}).get("collect", {}), identity)
    if difference is not None:
        key, then, now = difference
        raise BadInputError(
            out,
            found=f"a data set collected with {key} = {then}",
            expected=f"{key} = {now}, as asked for now",
            mend="choose another --out, or remove it",
        )


def _run(jobs: Sequence[Sequence[Slot]], record: Record, workers: int) -> Iterator[None]:
    """Do all jobs, yielding now and then and once at the end."""
    workers = min(workers, len(jobs))
    if workers <= 1:
        for job in jobs:
            for slot in job:
                record(slot)
                yield
        return
    stop = multiprocessing.get_context("spawn").Event()
    try:
        with worker_processes(workers, _enter_worker, (stop,), give_up=stop.set) as pool:
            running = {pool.submit(_record_job, record, job) for job in jobs}
            while running:
                finished, running = wait(running, timeout=0.25)
                for future in finished:
                    future.result()
                yield
    except BrokenProcessPool:
        raise BadInputError(
            "workers",
            found="a worker process that died",
            expected="workers that live to the end",
            mend="run the same again to go on; with fewer workers if memory was short; in a script, under "
            '`if __name__ == "__main__":`',
        ) from None


def _enter_worker(stop: Event) -> None:
    global _stopped
    _stopped = stop


def _record_job(record: Record, job: Sequence[Slot]) -> None:
    for slot in job:
        if _stopped is not None and _stopped.is_set():
            return
        record(slot)


def collected_about(out: Path) -> dict[str, Any] | None:
    """What `out` says of its collection (`collect`, all that decided the data, and more); `None` if it says nothing."""
    try:
        if out.is_file():
            about: dict[str, Any] = robomimic_about(out)
        else:
            about = json.loads((out / "meta" / "info.json").read_text())["counterpoint"]
        return about if isinstance(about["collect"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):  # anything but a data set of ours
        return None
