from __future__ import annotations

import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.commands import finish, start
from tests.forkserver import Forked
from tests.formats.made import write_videos
from tests.rewards.labelling import save_model

ROWS, BLOCKS = 175, 25


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_kill_9_and_the_same_command_again_give_a_whole_file(workers: str, tmp_path: Path) -> None:
    data = write_videos(tmp_path / "data", count=1, frames=60)
    with (data / "manifest.csv").open("a") as manifest:
        manifest.write("videos/0.mp4,task 0\n" * (ROWS - 1))
    save_model(tmp_path / "model", data)

    def label(name: str) -> Forked:
        return start(tmp_path, "label", "data", "--model", "model", "--out", name, "--workers", workers)

    code, _, error = finish(label("whole.parquet"))
    assert code == 0, error
    killed, parts = label("cut.parquet"), tmp_path / ".cut.parquet.parts"
    while len(list(parts.glob("blocks/*.npy"))) < BLOCKS // 4:
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "cut.parquet").exists()
    time.sleep(1)  # workers end with their parent
    done = len(list(parts.glob("blocks/*.npy")))
    assert BLOCKS // 4 <= done < BLOCKS
    time.sleep(1)
    assert len(list(parts.glob("blocks/*.npy"))) == done
    code, out, error = finish(label("cut.parquet"))
    assert code == 0, error
    assert "frames a second" in out
    found, expected = (pq.read_table(tmp_path / name) for name in ("cut.parquet", "whole.parquet"))
    assert len(found) == 60 * ROWS
    assert found.equals(expected)
    assert not parts.exists()
