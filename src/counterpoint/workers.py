"""A pool of worker processes that end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

from counterpoint.errors import BadInputError


@contextmanager
def worker_pool(
    workers: int, enter: Callable[..., object] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes and stop them at the end, whatever they do then.

    Args:
        workers: Number of processes, spawned: forked ones would share threads and graphics contexts.
        enter: Called with `arguments` once in each worker.
        arguments: Picklable values.

    Raises:
        BadInputError: A worker died.
    """
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _enter_worker, (enter, arguments))
    try:
        # The pool watches the workers that were there when the last result arrived: all, once each has answered.
        for started in [pool.submit(os.getpid) for _ in range(workers)]:
            started.result()
        yield pool
    except BrokenProcessPool:
        hint = 'run the same again to continue, with fewer workers; a script needs `if __name__ == "__main__":`'
        raise BadInputError("workers", "a worker process that died", "workers that live to the end", hint) from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()  # what is not finished is done again
        pool.shutdown(cancel_futures=True)


def _enter_worker(enter: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    """Leave Ctrl-C to the parent, and exit when it does, since a killed parent cannot stop its workers."""

    def exit_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    if enter is not None:
        enter(*arguments)
