from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.additions import copy_with_images
from tests.formats.made import write_lerobot

TABLE = "data/chunk-000/file-000.parquet"


def depth(number: int) -> dict[str, Array]:
    length = (5, 7, 3)[number]
    noise = np.random.default_rng(number).integers(0, 256, (length, 8, 6, 3), dtype=np.uint8)
    return {"depth": noise}


def test_everything_that_was_there_stays(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "data", splits={"train": "0:2", "val": "2:3"}, image_cameras=("wrist",))
    out = tmp_path / "deep" / "out"
    copy_with_images(root, out, {"depth": (8, 6)}, depth, about={"by": "a test"})
    store = open_dataset(out)
    for number, info in enumerate(store.episodes):
        np.testing.assert_array_equal(store.frames(number, np.arange(info.length), "depth"), depth(number)["depth"])
    before, after = pq.read_table(root / TABLE), pq.read_table(out / TABLE)
    assert after.select(before.column_names).equals(before)
    video = "videos/observation.images.top/chunk-000/file-000.mp4"
    assert (out / video).read_bytes() == (root / video).read_bytes()
    told = [json.loads((folder / "meta/info.json").read_text()) for folder in (root, out)]
    assert told[1]["splits"] == {"train": "0:2", "val": "2:3"}
    assert told[1]["counterpoint"] == {"by": "a test"}
    assert told[1]["features"].keys() - told[0]["features"].keys() == {"observation.images.depth"}
    hub = json.loads(after.schema.metadata[b"huggingface"])["info"]["features"]
    assert hub["observation.images.depth"] == hub["observation.images.wrist"] == {"_type": "Image"}
    assert pq.ParquetFile(out / TABLE).num_row_groups == 3
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_statistics_of_each_episode(tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy_with_images(write_lerobot(tmp_path / "data"), out, {"depth": (8, 6)}, depth)
    episodes = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for number, row in enumerate(episodes):
        mean = np.ravel(row["stats/observation.images.depth/mean"])
        np.testing.assert_allclose(mean, depth(number)["depth"].mean(axis=(0, 1, 2)) / 255, rtol=1e-6)
        assert row["stats/observation.images.depth/count"] == [len(depth(number)["depth"])]


def test_a_camera_that_is_there_or_a_folder_that_exists(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "data")
    with pytest.raises(BadInputError, match="leave top out"):
        copy_with_images(root, tmp_path / "out", {"top": (8, 6)}, depth)
    (tmp_path / "out").mkdir()
    with pytest.raises(BadInputError, match="an existing path"):
        copy_with_images(root, tmp_path / "out", {"depth": (8, 6)}, depth)
