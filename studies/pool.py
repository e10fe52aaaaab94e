"""Parts of a study run side by side in processes of their own; an interruption loses only those under way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from counterpoint.errors import BadInputError
from counterpoint.processes import worker_processes
from counterpoint.progress import ProgressBar

__all__ = ["Part", "Tick", "run_side_by_side", "worker_pool"]

Tick = Callable[[int], None]
"""Told how much more of the progress bar is done."""

Part = Callable[[Tick], object]
"""What runs; with several processes it is pickled, so a `functools.partial` of a module's function."""

_done: Any = None
"""In a worker: the counter that all workers share."""


def run_side_by_side(
    study: str, parts: Sequence[Part], processes: int, bar: ProgressBar, *, begin: Callable[[], None] | None = None
) -> None:
    """Run parts in order, `processes` at a time; a single one, or a single part, runs in this process.

    Every part has one torch thread wherever it runs: sums over several threads round differently, so that a part's
    numbers would depend on what is left to run beside it.

    Args:
        study: What they are parts of, for messages.
        parts: Each keeps its own result, on disk.
        processes: How many run at once.
        bar: Advanced by what the parts tick.
        begin: Called once in every process that runs parts.

    Raises:
        BadInputError: When a worker process was killed.
    """
    if not parts:
        return
    if processes == 1 or len(parts) < 2:
        with _one_thread():
            if begin is not None:
                begin()
            for part in parts:
                part(bar.advance)
        return
    counter, shown = multiprocessing.get_context("spawn").Value("q", 0), 0
    with worker_pool(study, processes, counter, begin) as pool:
        waiting = {pool.submit(part, _count) for part in parts}
        while waiting:
            finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for part_finished in finished:
                part_finished.result()
            counted = counter.value  # read once: workers go on counting between two reads
            bar.advance(counted - shown)
            shown = counted


@contextmanager
def worker_pool(
    study: str, processes: int, counter: Any, begin: Callable[[], None] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Spawned workers that stop when anything goes wrong, and when this process dies.

    Args:
        study: For the message.
        processes: How many.
        counter: A shared integer of `multiprocessing`, what parts tick.
        begin: Called once in every worker.

    Raises:
        BadInputError: When a worker process was killed.
    """
    try:
        with worker_processes(processes, _begin_worker, (counter, begin), give_up=_end_children) as pool:
            yield pool
    except BrokenProcessPool:
        raise BadInputError(
            study,
            "a worker process that was ended from outside",
            "workers that run until their part is done",
            "start it again, with fewer processes if memory was short; finished parts are kept",
        ) from None


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin_worker(counter: Any, begin: Callable[[], None] | None) -> None:
    """A worker leaves the other cores to the other workers."""
    global _done
    _done = counter
    torch.set_num_threads(1)
    if begin is not None:
        begin()


def _end_children() -> None:
    for child in multiprocessing.active_children():
        child.terminate()


def _count(more: int) -> None:
    with _done.get_lock():
        _done.value += more
