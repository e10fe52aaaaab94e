"""Processes that meet wait for the slowest one longer than their process group would."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from torch import distributed
from torch.multiprocessing.spawn import spawn

from counterpoint.training.distributed import meet

TIME_OUT = 1


def _work(number: int, folder: Path) -> None:
    distributed.init_process_group(
        "gloo", f"file://{folder}/rendezvous", timedelta(seconds=TIME_OUT), world_size=2, rank=number
    )
    for turn in range(3):
        if number == turn % 2:
            time.sleep(2 * TIME_OUT)
            (folder / str(turn)).touch()
        meet("turn")
        assert (folder / str(turn)).exists()
    distributed.destroy_process_group()


def test_waiting_outlasts_the_time_out(tmp_path: Path) -> None:
    spawn(_work, (tmp_path,), nprocs=2)  # type: ignore[no-untyped-call]
