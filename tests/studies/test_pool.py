from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar
from studies.pool import Tick, run_side_by_side


class FullError(Exception):
    pass


def write(path: Path, tick: Tick) -> None:
    path.write_text(f"{os.getpid()} {torch.get_num_threads()} {os.environ.get('BEGUN')}")
    tick(2)


def end_at_once(tick: Tick) -> None:
    """As the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(tick: Tick) -> None:
    raise FullError


def sleep(tick: Tick) -> None:
    time.sleep(600)


def write_late(path: Path, tick: Tick) -> None:
    time.sleep(0.5)
    write(path, tick)


class SlowBar(ProgressBar):
    """Takes long to show what it is told, as a terminal over a slow line."""

    def advance(self, units: int = 1, note: str = "") -> None:
        time.sleep(1)
        super().advance(units, note)


def mark() -> None:
    os.environ["BEGUN"] = "yes"


def test_parts_run_in_this_process_where_there_is_one(tmp_path: Path) -> None:
    with ProgressBar("alone", 4, "things") as bar:
        run_side_by_side("alone", [partial(write, tmp_path / name) for name in "ab"], 1, bar)
        run_side_by_side("alone", [], 4, bar)
        assert bar._done == 4
    assert (tmp_path / "b").read_text().startswith(f"{os.getpid()} ")


def test_a_part_has_one_thread_wherever_it_runs(tmp_path: Path) -> None:
    """Sums over several threads round differently: what is left to run must not change a number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ProgressBar("alone", 2, "things") as bar:
            run_side_by_side("alone", [partial(write, tmp_path / "a")], 4, bar)
            with pytest.raises(FullError):
                run_side_by_side("alone", [fail], 1, bar)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (tmp_path / "a").read_text().split()[1] == "1"


def test_parts_run_in_workers_and_all_are_counted(tmp_path: Path) -> None:
    with ProgressBar("workers", 6, "things") as bar:
        parts = [partial(write, tmp_path / name) for name in "abc"]
        run_side_by_side("workers", parts, 2, bar, begin=mark)
        assert bar._done == 6
    for name in "abc":
        process, threads, begun = (tmp_path / name).read_text().split()
        assert int(process) != os.getpid()
        assert (threads, begun) == ("1", "yes")


def test_what_is_done_while_the_bar_is_drawn_is_counted(tmp_path: Path) -> None:
    with SlowBar("slow", 4, "things") as bar:
        parts = [partial(write, tmp_path / "a"), partial(write_late, tmp_path / "b")]
        run_side_by_side("slow", parts, 2, bar)
        assert bar._done == 4


def test_a_killed_worker_is_told_and_the_others_stop() -> None:
    with (
        ProgressBar("killed", 2, "things") as bar,
        pytest.raises(BadInputError, match="my study: found a worker process that was ended"),
    ):
        run_side_by_side("my study", [end_at_once, sleep], 2, bar)


def test_what_a_part_raises_arrives() -> None:
    with ProgressBar("failing", 2, "things") as bar, pytest.raises(FullError):
        run_side_by_side("failing", [fail, sleep], 2, bar)
