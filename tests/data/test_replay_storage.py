from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint.data import replay
from counterpoint.data.replay import Rows
from counterpoint.data.store import OutputPool
from counterpoint.errors import BadInputError

COLUMNS = {"vector": np.dtype(("float32", (2,))), "number": np.dtype("int64")}


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("row", [0, 3, 5, 6, 7, 7_000_003])
def test_rows_run_over_the_end_and_go_on_at_the_beginning(tmp_path: Path, in_files: bool, row: int) -> None:
    rows = Rows(COLUMNS, 7, tmp_path if in_files else None)
    vectors, numbers = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    rows.write("vector", row, vectors)
    rows.write("number", row, numbers)
    places = row + np.array([[4, 0, 2], [1, 1, 3]])
    np.testing.assert_array_equal(rows.gather("vector", places), vectors[places - row])
    np.testing.assert_array_equal(rows.gather("number", places), places - row)


def test_the_checksum_is_of_the_content_wherever_it_lies() -> None:
    found = set()
    for row in range(7):
        rows = Rows(COLUMNS, 7, None)
        rows.write("vector", row, np.ones((4, 2), np.float32))
        rows.write("number", row, np.arange(4))
        found.add(rows.checksum(row, 4))
    assert len(found) == 1
    rows.write("number", 6 + 3, np.array([9]))
    assert rows.checksum(6, 4) not in found


def test_files_are_there_again_and_sparse(tmp_path: Path) -> None:
    count = 10_000_000
    Rows(COLUMNS, count, tmp_path).write("number", 5, np.array([42]))
    assert (tmp_path / "number.bin").stat().st_size == 8 * count
    if hasattr(os.stat_result, "st_blocks"):
        assert (tmp_path / "number.bin").stat().st_blocks * 512 < 8 * count
    assert Rows(COLUMNS, count, tmp_path).gather("number", np.array([5])) == 42


def test_what_the_files_hold_already_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(COLUMNS, 100_000, tmp_path)
    for name, shape in (("vector", (100_000, 2)), ("number", (100_000,))):
        rows.write(name, 0, np.ones(shape))
    rows.flush()
    usage = (10**12, 10**12, 50_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("U", (), {"free": usage[2]}))
    Rows(COLUMNS, 100_000, tmp_path)
    with pytest.raises(BadInputError, match="disk free"):
        Rows(COLUMNS, 100_000, tmp_path / "another")
    assert not (tmp_path / "another" / "vector.bin").exists()


def test_memory_is_asked_for_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_free_memory", lambda: 15_999)
    Rows(COLUMNS, 999, None)
    with pytest.raises(BadInputError, match="memory free"):
        Rows(COLUMNS, 1000, None)


def test_memory_of_outputs_is_used_again_only_when_nobody_holds_it() -> None:
    size = OutputPool.large
    rows = Rows({"image": np.dtype(("uint8", (size,)))}, 3, None)
    for row in range(3):
        rows.write("image", row, np.full((1, size), row, np.uint8))
    held = torch.from_numpy(rows.gather("image", np.array([0])))[0, 5:9]  # a view of a view
    slices = [rows.gather("image", np.array([1]))[:, :7]]
    for _ in range(20):
        assert (rows.gather("image", np.array([2])) == 2).all()
    assert held.tolist() == [0] * 4
    assert (slices[0] == 1).all()
    del held
    gc.collect()
    places = {rows.gather("image", np.array([2])).ctypes.data for _ in range(20)}
    assert len(places) <= 3
