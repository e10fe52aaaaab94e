from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import counterpoint
from counterpoint.data.cache import CachedStore, cached
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise, split_names, validation_split
from counterpoint.formats.epic import EpicKitchensStore
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.video_folder import VideoFolderStore
from counterpoint.training.clips import DataConfig, open_clips
from tests.formats.hdf5.made import made_demo, write_robomimic
from tests.formats.made import EPIC_HEADER, epic_row, memory_store, write_epic, write_lerobot, write_videos


def test_lerobot_with_splits(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "data", splits={"train": "0:2", "val": "2:3"})
    assert recognise(root).name == "lerobot"
    assert isinstance(open_dataset(root), LeRobotStore)
    assert split_names(root) == ("train", "val")
    assert [len(open_dataset(root, split=split).episodes) for split in ("train", "val")] == [2, 1]
    with pytest.raises(BadInputError, match="'test'"):
        open_dataset(root, split="test")


def test_video_folder_and_its_manifest(tmp_path: Path) -> None:
    folder = write_videos(tmp_path)
    assert isinstance(open_dataset(folder), VideoFolderStore)
    assert isinstance(open_dataset(folder / "manifest.csv"), VideoFolderStore)
    with pytest.raises(BadInputError, match="has no splits"):
        open_dataset(folder, split="train")


def test_minari_is_named_where_episodes_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/metadata.json").write_text('{"data_format": "hdf5"}')
    with pytest.raises(BadInputError, match=r"found a Minari data set.*counterpoint train td_infonce --data"):
        open_dataset(tmp_path)


def test_training_store(tmp_path: Path) -> None:
    store = cached(memory_store(), size=16, root=tmp_path, progress=False)
    assert isinstance(open_dataset(store.path), CachedStore)


def test_epic_kitchens_beside_its_frames(tmp_path: Path) -> None:
    root = write_epic(tmp_path)
    (root / "EPIC_100_validation.csv").write_text(EPIC_HEADER + epic_row("P01_01", 7, 1, 2, "close door"))
    assert split_names(root) == ("train", "validation")
    whole = open_dataset(root)
    assert isinstance(whole, EpicKitchensStore)
    assert len(whole.episodes) == 4
    assert [e.instruction for e in open_dataset(root, split="validation").episodes] == ["close door"]
    with pytest.raises(BadInputError, match="'val'"):
        open_dataset(root, split="val")


def test_epic_kitchens_above_its_frames(tmp_path: Path) -> None:
    root = write_epic(tmp_path)
    (root / "EPIC-KITCHENS").mkdir()
    for participant in ("P01", "P02"):
        (root / participant).rename(root / "EPIC-KITCHENS" / participant)
    assert len(open_dataset(root).episodes) == 3
    assert len(open_dataset(root / "EPIC-KITCHENS").episodes) == 3


def test_one_camera(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "data")
    whole, wrist = open_dataset(root), open_dataset(root, camera="wrist")
    assert isinstance(wrist, EpisodeStore)
    assert whole.cameras == ("top", "wrist")
    assert wrist.cameras == ("wrist",)
    steps = np.arange(3)
    np.testing.assert_array_equal(wrist.frames(0, steps), whole.frames(0, steps, "wrist"))
    np.testing.assert_array_equal(wrist.timestamps(0), whole.timestamps(0))
    assert wrist.fingerprint != whole.fingerprint
    for ask in (lambda: wrist.frames(0, steps, "top"), lambda: open_dataset(root, camera="side")):
        with pytest.raises(BadInputError, match="camera"):
            ask()


def test_bad_rows_are_told_and_left_out(tmp_path: Path) -> None:
    folder = write_videos(tmp_path)
    with (folder / "manifest.csv").open("a") as manifest:
        manifest.write("videos/9.mp4,nowhere\nvideos/0.mp4,\nvideos/0.mp4\n")
    told: list[BadInputError] = []
    assert len(open_dataset(folder, on_bad_row=told.append).episodes) == 2
    assert sorted(error.where.rpartition(", ")[2] for error in told) == ["row 4", "row 5", "row 6"]


@pytest.mark.parametrize(("begun", "hint"), [(False, "check the path"), (True, "repeat its `counterpoint collect`")])
def test_a_missing_data_set_may_be_an_interrupted_recording(tmp_path: Path, begun: bool, hint: str) -> None:
    if begun:
        (tmp_path / "nowhere.partial").mkdir()
    with pytest.raises(BadInputError, match=f"nowhere: found nothing there; expected a data set. Hint: .*{hint}"):
        open_dataset(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [".", "file.txt"])
def test_anything_else_says_what_would_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("hello")
    with pytest.raises(BadInputError, match=r"manifest.csv.*video,instruction, or a folder per task"):
        open_dataset(tmp_path / name)


def test_is_a_public_name() -> None:
    assert counterpoint.open_dataset is open_dataset


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
