"""Which episodes a LeRobot data set has: removed ones, wrong file numbers, splits and totals."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from counterpoint.cli.data.doctor import examine_lerobot
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.additions import copy_with_images
from counterpoint.formats.lerobot.reader import LeRobotStore
from tests.formats.lerobot.made import edit_column, edit_info, episode, write_v21, write_v30

EPISODES = tuple(episode(number, 4 + number, sizes={"top": (24, 32)}) for number in range(4))
META = "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v30(tmp_path_factory.mktemp("membership") / "set", EPISODES)


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "set"))


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes a file."""
    root = write_v30(tmp_path_factory.mktemp("membership") / "files", [episode(n, 4 + n, sizes={}) for n in range(4)])
    first = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(first)
    pq.write_table(table.slice(9), first.with_name("file-001.parquet"))
    pq.write_table(table.slice(0, 9), first)
    edit_column(root / META, "data/file_index", [0, 0, 1, 1])
    return root


def keep(root: Path, numbers: list[int]) -> None:
    pq.write_table(pq.read_table(root / META).take(numbers), root / META)
    edit_info(root, total_episodes=len(numbers))


@pytest.mark.parametrize("numbers", [[0, 2, 3], [1, 2, 3], [0, 1, 2], [3]])
def test_episodes_that_are_left_keep_their_numbers_and_content(root: Path, numbers: list[int]) -> None:
    whole = LeRobotStore(root)
    expected = [(whole.actions(n), whole.frames(n, np.arange(4 + n))) for n in numbers]
    keep(root, numbers)
    store = LeRobotStore(root)
    assert store.numbers == numbers
    for number, (actions, frames) in enumerate(expected):
        np.testing.assert_array_equal(store.actions(number), actions)
        np.testing.assert_array_equal(store.frames(number, np.arange(len(frames))), frames)


def test_gaps_are_told(root: Path) -> None:
    keep(root, [0, 2, 3])
    assert LeRobotStore(root).facts["episodes removed"] == "1: 1; the others keep their numbers"
    found = {finding.found: finding.hint for finding in examine_lerobot(root)}
    assert "counterpoint data convert" in found["no episode 1"]
    assert "1 episodes that do not exist in split 'train', the first 1" in found


def test_a_split_is_a_range_of_numbers(root: Path) -> None:
    edit_info(root, splits={"train": "0:3", "val": "3:4", "none": "1:2"})
    keep(root, [0, 2, 3])
    assert LeRobotStore(root, split="train").numbers == [0, 2]
    assert LeRobotStore(root, split="val").numbers == [3]
    with pytest.raises(BadInputError, match="split 'none' as 1:2; expected episodes that exist, of 0 to 3"):
        LeRobotStore(root, split="none")


def test_v21_keeps_numbers_too(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", EPISODES[:3])
    lines = (root / "meta/episodes.jsonl").read_text().splitlines()
    (root / "meta/episodes.jsonl").write_text(f"{lines[0]}\n{lines[2]}\n")
    store = LeRobotStore(root)
    assert store.numbers == [0, 2]
    np.testing.assert_array_equal(store.actions(1), EPISODES[2].actions)


def test_a_wrong_total_is_told_and_read(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit_info(root, total_episodes=5)
    with caplog.at_level(logging.WARNING):
        assert len(LeRobotStore(root).episodes) == 4
    assert "4 episodes are listed, but total_episodes in meta/info.json is 5" in caplog.text
    assert [finding.found for finding in examine_lerobot(root)] == ["total_episodes = 5"]


@pytest.mark.parametrize("files", [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
def test_an_episode_is_found_in_the_file_that_has_its_rows(two_files: Path, tmp_path: Path, files: list[int]) -> None:
    root = Path(shutil.copytree(two_files, tmp_path / "set"))
    edit_column(root / META, "data/file_index", files)
    store = LeRobotStore(root)
    for number in range(4):
        np.testing.assert_array_equal(store.actions(number), episode(number, 4 + number, sizes={}).actions)


def test_rows_in_two_places_are_refused(two_files: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(two_files, tmp_path / "set"))
    data = root / "data/chunk-000"
    shutil.copy(data / "file-001.parquet", data / "file-002.parquet")
    edit_column(root / META, "data/file_index", [0, 0, 0, 1])
    store = LeRobotStore(root)
    with pytest.raises(BadInputError, match="rows; expected"):
        store.actions(2)
    assert any("rows" in finding.found for finding in examine_lerobot(root))


def test_copies_need_the_rows_that_the_metadata_list(root: Path, tmp_path: Path) -> None:
    keep(root, [0, 2, 3])
    with pytest.raises(BadInputError, match=r"22 rows; expected 17.*counterpoint data convert"):
        copy_with_images(root, tmp_path / "out", {"depth": (8, 6)}, lambda number: {})


def test_rows_and_files_that_are_not_listed_are_told(root: Path, tmp_path: Path) -> None:
    """What an interrupted recording leaves: rows without an entry in the episode table."""
    keep(root, [0, 1, 2])
    edit_info(root, total_frames=15, splits={})
    (found,) = examine_lerobot(root)
    assert found.found == "rows of episode 3, which meta/ does not list"
    other = write_v21(tmp_path / "v21", EPISODES)
    lines = (other / "meta/episodes.jsonl").read_text().splitlines()
    (other / "meta/episodes.jsonl").write_text("\n".join(lines[:3]))
    edit_info(other, total_episodes=3, total_frames=15, splits={})
    found = next(each for each in examine_lerobot(other) if each.where == str(other / "data"))
    assert found.found == "1 files that meta/ does not name, the first data/chunk-001/episode_000003.parquet"


def test_splits_that_are_no_ranges(root: Path) -> None:
    edit_info(root, splits={"train": [0, 1, 2]})
    with pytest.raises(BadInputError, match=r"found split 'train' as \[0, 1, 2\]; expected a range a:b"):
        LeRobotStore(root)
