"""Start processes that make up one gloo process group."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

from tests.forkserver import warm


def run_ranks(work: Callable[[int, int, Path], None], world: int, folder: Path, *, time_out: float = 1800.0) -> None:
    """Run `work(rank, world, folder)` in every process of a group whose operations may take `time_out` seconds."""
    warm()
    given = (work, world, folder, time_out)
    start_processes(_enter, given, nprocs=world, start_method="forkserver")  # type: ignore[no-untyped-call]


def _enter(rank: int, work: Callable[[int, int, Path], None], world: int, folder: Path, time_out: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}  # accelerate reads these
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    meeting, wait = f"file://{folder}/rendezvous", timedelta(seconds=time_out)
    distributed.init_process_group("gloo", meeting, wait, world_size=world, rank=rank)
    work(rank, world, folder)
    distributed.destroy_process_group()
