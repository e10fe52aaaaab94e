"""The words of LeRobot episodes: tasks in the episode table and in the rows, subtasks, and contradictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import examine_lerobot
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.reader import LeRobotStore
from tests.formats.lerobot.made import FPS, edit_column, edit_info, episode, write_v21, write_v30

DATA = "data/chunk-000/file-000.parquet"
META = "meta/episodes/chunk-000/file-000.parquet"
PARTS = ((0, "pick up the cup"), (2, "put it on the plate"))
BOTH = "pick up the cup; put it on the plate"
BARE: dict[str, Any] = {"sizes": {}}


def silent(root: Path) -> Path:
    """Remove the statistics of `task_index`, so that only the rows say which task they have."""
    edit_column(root / META, "stats/task_index/min", None)
    return root


def two(root: Path) -> Path:
    """Two episodes of five steps under "task 0" and "task 1"."""
    return write_v30(root, [episode(0, **BARE), episode(1, **BARE)])


def annotate(root: Path, **columns: list[Any]) -> Path:
    """Add columns to the episode table, as LeRobot's annotation for SARM does."""
    table = pq.read_table(root / META)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, root / META)
    return root


@pytest.mark.parametrize("prefix", ["sparse_", "", "dense_"])
def test_annotations_for_sarm_are_segments(tmp_path: Path, prefix: str) -> None:
    names, firsts = [["reach", "grasp", "lift"], None], [[0, 2, 4], None]
    columns: dict[str, Any] = {f"{prefix}subtask_names": names, f"{prefix}subtask_start_frames": firsts}
    if prefix == "sparse_":  # sparse annotations come first
        columns |= {"dense_subtask_names": [["a"], ["b"]], "dense_subtask_start_frames": [[0], [0]]}
    store = LeRobotStore(annotate(two(tmp_path / "set"), **columns))
    assert store.episodes[0].segments == ((0, "reach"), (2, "grasp"), (4, "lift"))
    assert store.episodes[1].segments == ()
    assert [info.instruction for info in store.episodes] == ["task 0", "task 1"]


def test_an_annotation_that_begins_later_leaves_its_start_without_words(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"subtask_names": [["grasp"], ["lift", "place"]], "subtask_start_frames": [[2], [1, 99]]}
    store = LeRobotStore(annotate(two(tmp_path / "set"), **columns))
    assert store.episodes[0].segments == ((0, ""), (2, "grasp"))
    assert store.episodes[1].segments == ((0, ""), (1, "lift"), (4, "place"))


@pytest.mark.parametrize("firsts", [[0], [2, 0], [0, 0], [0, -1], ["a", "b"]])
def test_a_damaged_annotation_is_named(tmp_path: Path, firsts: list[Any]) -> None:
    root = two(tmp_path / "set")
    annotate(root, subtask_names=[["a", "b"], None], subtask_start_frames=[firsts, None])
    with pytest.raises(BadInputError, match=r"file-000.parquet: .*as many subtask_start_frames as subtask_names"):
        LeRobotStore(root)


@pytest.mark.parametrize("statistics", [True, False])
def test_a_change_of_task_makes_segments(tmp_path: Path, statistics: bool) -> None:
    whole = episode(1, instruction="open", **BARE)
    root = write_v30(tmp_path / "set", [replace(episode(0, **BARE), instruction=BOTH, segments=PARTS), whole])
    store = LeRobotStore(root if statistics else silent(root))
    assert [info.segments for info in store.episodes] == [PARTS, ()]
    assert [info.instruction for info in store.episodes] == [BOTH, "open"]
    assert store.facts["segments"] == "2 with tasks of their own, in 1 episodes"
    table = pq.read_table(root / DATA)
    assert table["task_index"].to_pylist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert pq.read_table(root / META)["tasks"].to_pylist() == [[words for _, words in PARTS], ["open"]]
    assert examine_lerobot(root) == []


def test_segments_of_v21(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "set", [episode(0, **BARE)])
    for name, lines in {
        "tasks": [{"task_index": number, "task": words} for number, (_, words) in enumerate(PARTS)],
        "episodes": [{"episode_index": 0, "length": 5, "tasks": [words for _, words in PARTS]}],
    }.items():
        (root / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    edit_column(root / "data/chunk-000/episode_000000.parquet", "task_index", [0, 0, 1, 1, 1])
    assert LeRobotStore(root).episodes[0].segments == PARTS


def test_rows_that_name_another_task_contradict_the_episode_table(tmp_path: Path) -> None:
    root = silent(two(tmp_path / "set"))
    edit_column(root / DATA, "task_index", [0] * 10)
    with pytest.raises(BadInputError, match=r"episode 1: found rows of the task 'task 0'; expected 'task 1', as meta/"):
        LeRobotStore(root)


def test_the_doctor_reads_rows_whatever_statistics_say(tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    edit_column(root / DATA, "task_index", [0] * 10)
    assert [info.instruction for info in LeRobotStore(root).episodes] == ["task 0", "task 1"]
    assert any("rows of the task 'task 0'" in finding.found for finding in examine_lerobot(root))


def test_a_number_without_words_is_refused(tmp_path: Path) -> None:
    root = silent(two(tmp_path / "set"))
    edit_column(root / DATA, "task_index", [0] * 5 + [7] * 5)
    with pytest.raises(BadInputError, match=r"episode 1: found task_index 7; expected one of the 2 in meta/tasks"):
        LeRobotStore(root)


def test_a_number_with_two_texts_is_refused_and_a_missing_text_is_no_word(tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    edit_column(root / META, "tasks", [["task 0"], [None]])
    assert [info.instruction for info in LeRobotStore(root).episodes] == ["task 0", "task 1"]
    pq.write_table(
        pa.table({"task_index": [0, 1, 1], "task": ["task 0", "task 1", "fold"]}), root / "meta/tasks.parquet"
    )
    with pytest.raises(BadInputError, match=r"found one number for 'task 1' and 'fold'; expected one text"):
        LeRobotStore(root)


def test_the_table_of_tasks_has_the_words_where_the_episode_table_has_none(tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    edit_column(root / META, "tasks", [["task 0"], []])
    assert [info.instruction for info in LeRobotStore(root).episodes] == ["task 0", "task 1"]


def test_several_tasks_of_which_the_rows_have_one(tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    edit_column(root / META, "tasks", [["other", "task 0"], ["task 1"]])
    info = LeRobotStore(root).episodes[0]
    assert (info.instruction, info.segments) == ("task 0", ())


def test_subtasks_are_segments_under_the_task(tmp_path: Path) -> None:
    given = [replace(episode(0, **BARE), segments=PARTS), episode(1, **BARE)]
    root = write_v30(tmp_path / "set", given, subtasks=True)
    store = LeRobotStore(root)
    assert [(info.instruction, info.segments) for info in store.episodes] == [("task 0", PARTS), ("task 1", ())]
    assert not {"subtask_index"} & {*store.columns, *store.unread}  # its words are read
    (root / "meta/subtasks.parquet").unlink()
    nameless = LeRobotStore(root)
    assert (nameless.episodes[0].segments, nameless.unread) == ((), ("subtask_index",))


def test_subtasks_of_language_persistent(tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    entries = [
        {"style": "subtask", "content": words, "timestamp": (1 + first) / FPS, "role": "assistant"}
        for first, words in reversed(PARTS)
    ]
    entries.append({"style": "plan", "content": "first this, then that", "timestamp": 0.0, "role": "assistant"})
    table = pq.read_table(root / DATA)
    pq.write_table(table.append_column("language_persistent", pa.array([entries] * 5 + [[]] * 5)), root / DATA)
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_info(root, features=features | {"language_persistent": {"dtype": "language", "shape": [1], "names": None}})
    infos = LeRobotStore(root).episodes
    assert infos[0].segments == ((0, ""), (1, PARTS[0][1]), (3, PARTS[1][1]))
    assert (infos[1].segments, infos[0].instruction) == ((), "task 0")
    assert examine_lerobot(root) == []
    with pytest.raises(BadInputError, match="--drop language_persistent"):  # the plan has no place in an episode
        convert(root, tmp_path / "out")
    kept = LeRobotStore(convert(root, tmp_path / "out", drop=["language_persistent"]))
    assert [info.segments for info in kept.episodes] == [info.segments for info in infos]


@pytest.mark.parametrize("time", [0.5, 3.0, -0.2])
def test_a_subtask_outside_its_episode_is_reported(time: float, tmp_path: Path) -> None:
    root = two(tmp_path / "set")
    entries = [{"style": "subtask", "content": "lift", "timestamp": time}]
    table = pq.read_table(root / DATA)
    pq.write_table(table.append_column("language_persistent", pa.array([[]] * 5 + [entries] * 5)), root / DATA)
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_info(root, features=features | {"language_persistent": {"dtype": "language", "shape": [1], "names": None}})
    (finding,) = examine_lerobot(root)
    assert finding.where == f"{root / DATA}, episode 1"
    assert finding.found == f"the subtask 'lift' from {time:g} s on"
    assert finding.expected == "a time from 0 to 0.4 s, that of the last of 5 steps"


def test_words_do_not_depend_on_the_split(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(n, **BARE) for n in range(3)], splits={"train": "0:2", "val": "2:3"})
    assert LeRobotStore(root, split="val").episodes == LeRobotStore(root).episodes[2:]
    assert np.array_equal(LeRobotStore(root, split="val").numbers, [2])
