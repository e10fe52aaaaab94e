"""Fresh worker processes that leave Ctrl-C to the process that started them, and end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

__all__ = ["worker_processes"]


@contextmanager
def worker_processes(
    count: int, begin: Callable[..., None], arguments: tuple[Any, ...], *, give_up: Callable[[], None]
) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes (forked ones would share threads and graphics contexts).

    Args:
        count: How many.
        begin: Called once in every worker; of a module, so that it can be pickled.
        arguments: Of `begin`; locks and counters of the `spawn` context may be among them.
        give_up: Called when something goes wrong, after what waits was cancelled: stops what is under way.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, _enter, (begin, arguments))
    try:
        # An executor notices the death of those workers only that stood when it last looked, and it looks when a result
        # arrives. Once each has answered, all are watched.
        for started in [pool.submit(os.getpid) for _ in range(count)]:
            started.result()
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        give_up()
        raise
    finally:
        pool.shutdown()


def _enter(begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    begin(*arguments)


def _die_with_parent() -> None:
    """A killed parent cannot tell its workers to stop: they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
