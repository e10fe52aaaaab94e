"""Processes wait for each other longer than their process group would, and get what the first one finds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from counterpoint.errors import BadInputError
from counterpoint.training.distributed import meet, relayed
from tests.distributed.ranks import run_ranks

TIME_OUT = 1


def _wait(number: int, world: int, folder: Path) -> None:
    for turn in range(3):
        if number == turn % 2:
            time.sleep(2 * TIME_OUT)
            (folder / str(turn)).touch()
        meet("turn")
        assert (folder / str(turn)).exists()


@pytest.mark.slow
def test_waiting_outlasts_the_time_out(tmp_path: Path) -> None:
    run_ranks(_wait, 2, tmp_path, time_out=TIME_OUT)


def _hear(number: int, world: int, folder: Path) -> None:
    whole = {"steps": torch.arange(3)}
    found = list(relayed(iter([whole, None]) if number == 0 else None))
    assert found[1:] == [None]
    assert torch.equal(found[0]["steps"], whole["steps"])  # type: ignore[index]
    with pytest.raises(BadInputError, match="a simulator"):
        list(relayed(_broken() if number == 0 else None))


def _broken() -> Iterator[int]:
    yield 1
    raise BadInputError("environments", "a simulator that crashes", "one that works", "restart it")


def test_all_get_what_the_first_one_s_iterator_yields_and_raises(tmp_path: Path) -> None:
    run_ranks(_hear, 2, tmp_path)
