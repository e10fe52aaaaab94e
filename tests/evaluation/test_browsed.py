from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.evaluation.browsed import BrowsedSet
from tests.formats.hdf5.made import write_robomimic
from tests.formats.made import write_epic, write_lerobot


def test_scattered_splits_keep_their_numbers(tmp_path: Path) -> None:
    one = BrowsedSet(write_robomimic(tmp_path / "demos.hdf5", masks={"train": (0, 2), "valid": (1,)}))
    assert [one.numbers(split) for split in ("train", "valid", "")] == [[0, 2], [1], [0, 1, 2]]


def test_segments_of_one_video_keep_their_order(tmp_path: Path) -> None:
    one = BrowsedSet(write_epic(tmp_path))
    assert one.numbers("train") == list(range(len(one.store.episodes)))


def test_held_out_numbers_count_within_the_split_that_was_trained_on(tmp_path: Path) -> None:
    data = write_lerobot(tmp_path / "data", splits={"val": "0:1", "train": "1:3"})
    one = BrowsedSet(data, [{"data": {}, "held_out": [1]}])
    assert one.marks == {"used in training": [1], "held out": [2]}
    assert [one.about(number).rpartition(", ")[2] for number in (1, 2)] == ["used in training", "held out"]
    assert one.counted([0, 1, 2]) == "3 of 3 episodes: 1 used in training, 1 held out"
    assert one.counted([0]) == "1 of 3 episodes"
    whole = BrowsedSet(data, [{"data": {"train_split": None}}])
    assert whole.marks == {"used in training": [0, 1, 2]}


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="exam"):
        BrowsedSet(write_lerobot(tmp_path / "data")).numbers("exam")
