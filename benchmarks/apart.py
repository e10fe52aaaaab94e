"""Candidates of a benchmark timed in turn, each in a process of its own.

In one process what ran before decides which memory a candidate finds: large pages that were given back in pieces come
back as small ones, and handing those over can take longer than the work.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

__all__ = ["Candidate", "Times", "time_apart", "timed"]

Candidate = Callable[[], object]

Times = list[tuple[float, float]]
"""Wall-clock and processor milliseconds of each round."""


def timed(run: Candidate) -> tuple[float, float]:
    """Wall-clock and processor milliseconds of one call."""
    started, busy = time.perf_counter(), time.process_time()
    run()
    busy = time.process_time() - busy
    return 1e3 * (time.perf_counter() - started), 1e3 * busy


def time_apart(
    names: Sequence[str], make: Callable[[str], Candidate], rounds: int, environment: Mapping[str, str] | None = None
) -> dict[str, Times]:
    """Each round runs every candidate once, one at a time, after a round that warms up.

    Args:
        names: Of the candidates.
        make: Called in the candidate's process; pickled.
        rounds: How many.
        environment: Variables that the processes start with, such as an allocator's.
    """
    context = multiprocessing.get_context("spawn")
    pipes = {}
    with _environment(environment or {}):
        for name in names:
            pipes[name], far = context.Pipe()
            context.Process(target=_serve, args=(far, make, name), daemon=True).start()
            far.close()  # so that a candidate's death ends its pipe
    found: dict[str, Times] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(True)
            spent = pipe.recv()
            if number:
                found[name].append(spent)
    for pipe in pipes.values():
        pipe.send(False)
    return found


def _serve(pipe: Connection, make: Callable[[str], Candidate], name: str) -> None:
    torch.set_num_threads(1)
    run = make(name)
    while pipe.recv():
        pipe.send(timed(run))


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
