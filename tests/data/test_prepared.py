from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.prepared import open_prepared, together, validation_split
from counterpoint.data.store import MultiTaskStore
from counterpoint.training.clips import DataConfig, open_clips
from tests.data.formats.hdf5.made import made_demo, write_robomimic
from tests.data.numbered import numbered_store


def test_robomimic_s_validation_is_found_under_its_own_name(tmp_path: Path) -> None:
    masks = {"train": [0, 2], "valid": [1]}
    path = write_robomimic(tmp_path / "image.hdf5", masks=masks)
    asked = ("val", "valid", "train", "test", None)
    assert [validation_split(path, name) for name in asked] == ["valid", "valid", "train", None, None]
    _, held_out = open_clips(path, DataConfig(size=16, cache=str(tmp_path / "cache")))
    assert held_out is not None
    assert [info.length for info in held_out.episodes] == [12]
    both = write_robomimic(tmp_path / "both.hdf5", masks=masks | {"val": [0]})
    assert validation_split(both, "val") == "val"
    assert validation_split(write_robomimic(tmp_path / "none.hdf5", [made_demo(4, 0)]), "val") is None


def test_frames_come_at_training_size_from_the_cameras_named(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "image.hdf5", masks={"train": [2, 0]})
    store = open_prepared(path, "train", size=16, camera="robot0_eye_in_hand_image", root=tmp_path / "cache")
    assert store.cameras == ("robot0_eye_in_hand_image",)
    assert [info.length for info in store.episodes] == [5, 3]
    assert store.frames(1, np.arange(3)).shape == (3, 16, 16, 3)


def test_one_store_is_left_as_it_is() -> None:
    store = numbered_store([5])
    assert together([store], ["a"]) is store
    assert isinstance(together([store, store], ["a", "b"]), MultiTaskStore)
