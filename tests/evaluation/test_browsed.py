from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.browsed import BrowsedSet, Flags
from counterpoint.formats import open_dataset
from tests.evaluation.viewed import write_balls
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


def entries(path: Path) -> list[tuple[int, int]]:
    return [(flag["episode_index"], flag["frames"]) for flag in json.loads(path.read_text())["flags"]]


def test_flags_survive_and_leave_each_other_alone(tmp_path: Path) -> None:
    store = open_dataset(write_lerobot(tmp_path / "data"))
    path = tmp_path / "new" / "flags.json"
    first, second = Flags(path, store), Flags(path, store)  # two pages over one file
    lengths = [info.length for info in store.episodes]
    assert first.episodes() == set()
    assert not path.exists()
    assert [first.put(2, flagged=True), second.put(0, flagged=True)] == [1, 2]
    assert first.episodes() == second.episodes() == Flags(path, store).episodes() == {0, 2}
    assert entries(path) == [(0, lengths[0]), (2, lengths[2])]
    time = json.loads(path.read_text())["flags"][1]["time"]
    assert datetime.fromisoformat(time).utcoffset() == timedelta(0)
    assert second.put(0, flagged=False) == 1
    assert first.episodes() == {2}
    assert [file.name for file in path.parent.iterdir()] == ["flags.json"]


def test_many_flags_at_once_are_all_kept(tmp_path: Path) -> None:
    store = open_dataset(write_balls(tmp_path / "balls"))
    pages = [Flags(tmp_path / "flags.json", store) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: pages[at % 4].put(at, flagged=True), range(12)))
    assert pages[0].episodes() == set(range(12))


def test_flags_name_lerobot_s_numbers(tmp_path: Path) -> None:
    store = open_dataset(write_lerobot(tmp_path / "data"))
    some = SimpleNamespace(episodes=store.episodes, numbers=[3, 4, 9])
    flags = Flags(tmp_path / "flags.json", cast(EpisodeStore, some))
    flags.put(2, flagged=True)
    assert [number for number, _ in entries(tmp_path / "flags.json")] == [9]
    assert flags.episodes() == {2}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"flags": 3}', '{"flags": [7]}', '{"flags": [{"episode_index": [0], "frames": 3}]}',
     '{"flags": [{"episode_index": 0, "frames": 3, "time": ""}]}'],
)  # fmt: skip
def test_flags_of_other_data_are_refused(content: str, tmp_path: Path) -> None:
    data = write_lerobot(tmp_path / "data")
    (tmp_path / "data.flags.json").write_text(content)
    with pytest.raises(BadInputError, match=r"data\.flags\.json.*name another file: --flags FILE"):
        BrowsedSet(data)
    assert (tmp_path / "data.flags.json").read_text() == content


def test_flagged_episodes_can_be_left_out_of_a_list(tmp_path: Path) -> None:
    one = BrowsedSet(write_balls(tmp_path / "balls"))
    one.flags.put(1, flagged=True)
    assert (tmp_path / "balls.flags.json").is_file()
    assert one.matching(flag="yes") == [1]
    assert one.matching(flag="no", split="train", order="down") == [7, 6, 5, 4, 3, 2, 0]
    with pytest.raises(BadInputError, match="sort"):
        one.matching(sort="last:absent")
