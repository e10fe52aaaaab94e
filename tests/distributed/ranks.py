"""Start processes that make up one gloo process group."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn


def run_ranks(work: Callable[[int, int, Path], None], world: int, folder: Path, *, time_out: float = 1800.0) -> None:
    """Run `work(rank, world, folder)` in every process of a group whose operations may take `time_out` seconds."""
    with pytest.MonkeyPatch.context() as patch:
        # As torchrun does: a kernel planned for more threads than a rank later has waits for them without end.
        patch.setenv("OMP_NUM_THREADS", "1")
        spawn(_enter, (work, world, folder, time_out), nprocs=world)  # type: ignore[no-untyped-call]


def _enter(rank: int, work: Callable[[int, int, Path], None], world: int, folder: Path, time_out: float) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}  # accelerate reads these
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    meeting, wait = f"file://{folder}/rendezvous", timedelta(seconds=time_out)
    distributed.init_process_group("gloo", meeting, wait, world_size=world, rank=rank)
    work(rank, world, folder)
    distributed.destroy_process_group()
