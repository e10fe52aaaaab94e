from __future__ import annotations

import os
import signal

import pytest

from counterpoint.processes import worker_processes


class StoppedError(Exception):
    pass


def begin(name: str, value: str) -> None:
    os.environ[name] = value


def look(name: str) -> tuple[int, str | None, bool]:
    return os.getpid(), os.environ.get(name), signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_workers_begin_and_leave_interruptions_to_this_process() -> None:
    given_up: list[int] = []
    with worker_processes(1, begin, ("BEGUN", "yes"), give_up=lambda: given_up.append(1)) as pool:
        process, begun, ignores = pool.submit(look, "BEGUN").result()
    assert process != os.getpid()
    assert (begun, ignores, given_up) == ("yes", True, [])


def test_what_is_under_way_is_given_up_when_something_goes_wrong() -> None:
    given_up: list[int] = []
    with pytest.raises(StoppedError), worker_processes(1, begin, ("BEGUN", "yes"), give_up=lambda: given_up.append(1)):
        raise StoppedError
    assert given_up == [1]
