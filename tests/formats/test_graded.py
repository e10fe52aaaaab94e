from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.graded import GradedStore
from counterpoint.formats.video import encode_video

TASKS = ("open the drawer", "push the cube")


def write_video(path: Path, end: int, frames: int = 6) -> None:
    """Write a video that becomes brighter until it reaches `end`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.linspace(0, end, frames).astype(np.uint8)
    encode_video(path, np.broadcast_to(levels[:, None, None, None], (frames, 32, 32, 3)).copy(), fps=5)


def write_graded(root: Path, split: str, grades: list[Any], **changes: Any) -> Path:
    """Write one split in RoboReward's form: the video of grade g ends at brightness 50 g."""
    rows = []
    for number, grade in enumerate(grades):
        name = f"{('droid', 'bridge')[number % 2]}/{number:03d}.mp4"
        write_video(root / split / name, 50 * grade if isinstance(grade, int) else 0)
        rows.append({"file_name": name, "task": TASKS[number % 2], "reward": grade, "gpt5_mini_check": "ANSWER: TRUE"})
    rows[0] |= changes
    (root / split / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_roboreward_s_form_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graded(tmp_path, "train", [1, 5])
    write_graded(tmp_path, "test", [1, 2, 3, 4, 5])
    assert recognise(tmp_path).name == "graded"
    assert set(split_names(tmp_path)) == {"train", "test"}
    store = open_dataset(tmp_path, split="test")
    assert isinstance(store, GradedStore)
    assert store.grades.tolist() == [1, 2, 3, 4, 5]
    assert store.embodiments == ("droid", "bridge", "droid", "bridge", "droid")
    assert [one.success for one in store.episodes] == [False] * 4 + [True]
    assert [one.instruction for one in store.episodes][:2] == list(TASKS)
    assert store.frames(4, np.array([5]), None).mean() > 240
    assert len(open_dataset(tmp_path).episodes) == 7
    info(tmp_path)
    assert doctor(tmp_path) == 0
    said = capsys.readouterr().out
    assert "2 of 1, 1 of 2, 1 of 3, 1 of 4, 2 of 5" in said


def test_robometer_s_sets_are_read(tmp_path: Path) -> None:
    labels = ["failure", "successful", "suboptimal", "suboptimal", "success"]
    for number in range(5):
        write_video(tmp_path / "train" / f"{number}.mp4", 100)
    columns = {
        "file_name": [f"{number}.mp4" for number in range(5)],
        "task": ["lift"] * 5,
        "quality_label": labels,
        "partial_success": ["0.0", None, None, "0.5", ""],
        "data_source": ["usc_xarm"] * 4 + [None],
        "is_robot": ["True"] * 5,
    }
    pq.write_table(pa.table(columns), tmp_path / "train" / "metadata.parquet")
    store = open_dataset(tmp_path)
    assert isinstance(store, GradedStore)
    assert store.grades.tolist() == [1, 5, 3, 5]  # the suboptimal one without a share has no grade
    assert store.embodiments == ("usc_xarm",) * 3 + ("train",)


@pytest.mark.parametrize(
    ("grades", "changes", "said"),
    [
        ([6, 1], {}, r"reward = '6'; expected a grade from 1 to 5"),
        ([1, 1], {"reward": 2.5}, r"reward = '2.5'"),
        ([1, 1], {"reward": None}, r"nothing in column 'reward'"),
        ([1, 1], {"file_name": "droid/nowhere.mp4"}, r"no file 'droid/nowhere.mp4'"),
        ([1, 1], {"file_name": "../../etc/passwd"}, r"leaves the folder"),
        ([1, 1], {"task": " "}, r"column 'task'|task = ' '"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, grades: list[int], changes: dict[str, Any], said: str) -> None:
    write_graded(tmp_path, "test", grades, **changes)
    with pytest.raises(BadInputError, match=said) as told:
        open_dataset(tmp_path)
    assert "metadata.jsonl, row 1" in str(told.value)


def test_labels_that_are_unknown_are_named(tmp_path: Path) -> None:
    write_video(tmp_path / "train" / "0.mp4", 100)
    table = {"file_name": ["0.mp4"], "task": ["lift"], "quality_label": ["great"], "partial_success": ["2"]}
    pq.write_table(pa.table(table), tmp_path / "train" / "metadata.parquet")
    with pytest.raises(BadInputError, match="one of failure, successful"):
        open_dataset(tmp_path)
    pq.write_table(pa.table(table | {"quality_label": ["failure"]}), tmp_path / "train" / "metadata.parquet")
    with pytest.raises(BadInputError, match="a share from 0 to 1"):
        open_dataset(tmp_path)
    pq.write_table(pa.table({"file_name": ["0.mp4"]}), tmp_path / "train" / "metadata.parquet")
    with pytest.raises(BadInputError, match="no task, quality_label"):
        open_dataset(tmp_path)
