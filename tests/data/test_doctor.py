from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data import doctor
from counterpoint.data.cache import cached
from counterpoint.data.doctor import examine
from counterpoint.data.episode import Array
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from tests.data.made import memory_store, write_epic, write_lerobot, write_lerobot_v21, write_videos

Edit = Callable[[Any], Any]
DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.top/chunk-000/file-000.mp4"


def lerobot(folder: Path) -> Path:
    return write_lerobot(folder / "data", splits={"train": "0:2", "val": "2:3"})


@pytest.mark.parametrize("make", [lerobot, write_lerobot_v21, write_videos, write_epic])
def test_whole_data_has_no_findings(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert examine(make(tmp_path)) == []


def break_picture(path: Path) -> None:
    """Overwrite the coded pictures of an mp4 and leave its tables."""
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 1000
    data[start : start + 400] = bytes(400)
    path.write_bytes(data)


def test_pictures_that_cannot_be_decoded(tmp_path: Path) -> None:
    folder = write_videos(tmp_path, count=3)
    break_picture(folder / "videos" / "1.mp4")
    (finding,) = examine(folder)
    assert "1.mp4" in finding.where
    assert "episode 1" in finding.where


def test_every_bad_row_of_a_manifest(tmp_path: Path) -> None:
    folder = write_videos(tmp_path)
    with (folder / "manifest.csv").open("a") as manifest:
        manifest.write("videos/9.mp4,nowhere\nvideos/0.mp4,\n")
    assert [finding.where.rpartition(", ")[2] for finding in examine(folder)] == ["row 4", "row 5"]


def test_every_damaged_epic_frame_and_row(tmp_path: Path) -> None:
    root = write_epic(tmp_path)
    (root / "P01/rgb_frames/P01_01/frame_0000000003.jpg").write_bytes(b"no picture")
    with (root / "EPIC_100_train.csv").open("a") as table:
        table.write("P01_01_9,P01,P01_01\n")
    row, frame = examine(root)
    assert "row 6" in row.where
    assert "frame_0000000003.jpg, episode 0" in frame.where


def test_training_store_tells_each_damaged_episode(tmp_path: Path) -> None:
    folder = cached(memory_store(), size=16, root=tmp_path, progress=False).path
    assert examine(folder) == []
    data = bytearray((folder / "frames-1.bin").read_bytes())
    data[0] ^= 1
    data[-1] ^= 1
    (folder / "frames-1.bin").write_bytes(data)
    assert [finding.found.rpartition(" of ")[2] for finding in examine(folder)] == ["episode 0", "episode 2"]
    (folder / "store.json").unlink()
    with pytest.raises(BadInputError):
        examine(folder)


class CrashingStore(MemoryStore):
    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        if episode == 1:
            os.abort()
        return super().frames(episode, indices, camera)


def test_a_decoder_that_dies_is_pinned_to_its_episode(tmp_path: Path) -> None:
    store = CrashingStore(memory_store(lengths=(3, 3), size=(8, 8), cameras=("top",))._episodes)
    (finding,) = doctor._decode_all(tmp_path, store)
    assert finding.where == f"{tmp_path}, episode 1"
    assert "crash" in finding.found


def test_batches_cover_every_episode_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 900, 50).tolist()
    batches = doctor._batches(lengths)
    assert [episode for first, stop in batches for episode in range(first, stop)] == list(range(50))
    assert doctor._batches([5000]) == [(0, 1)]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="LeRobot"):
        examine(tmp_path)
