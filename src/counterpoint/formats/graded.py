"""Videos with grades: RoboReward's form (RoboRewardBench is its split `test`), and Robometer's evaluation sets.

    SPLIT/metadata.jsonl      one object a video: `file_name` (a path inside SPLIT), `task`, `reward` (1 to 5)
    SPLIT/metadata.parquet    Robometer: `file_name`, `task`, `quality_label` (failure, suboptimal, successful or
                              success), `partial_success` (0 to 1, may be text or missing), `data_source`

The grades are RoboReward's (arXiv 2601.00675): 1 no success, 2 minimal progress, 3 partial completion, 4 near
completion, 5 perfect completion. A grade of 5 counts as success. Robometer's share of success s is the grade 1 + 4 s,
rounded; without it, failures have the grade 1 and successes 5, and suboptimal videos are left out. The embodiment is
the first folder of `file_name`, or `data_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import EpisodeInfo
from counterpoint.errors import require
from counterpoint.formats.base import OnBadRow, raise_error, read_each, require_split
from counterpoint.formats.lerobot.tables import read_table as read_parquet
from counterpoint.formats.recognition import GRADED_TABLES
from counterpoint.formats.table import Row, read_table
from counterpoint.formats.video_folder import ClipsStore, Part, Video, inside

GRADES = range(1, 6)
_LABELS = {"failure": 1, "successful": 5, "success": 5, "suboptimal": None}


@dataclass(frozen=True)
class _Graded:
    part: Part
    grade: int
    source: str


def graded_splits(path: Path) -> dict[str, Path]:
    """Return the table of each split, by the name of its folder."""
    tables = [folder / name for folder in sorted(path.iterdir()) for name in GRADED_TABLES if folder.is_dir()]
    found: dict[str, Path] = {}
    for table in filter(Path.is_file, tables):
        found.setdefault(table.parent.name, table)
    return found


class GradedStore(ClipsStore):
    """Videos with grades, one episode each; one camera, neither actions nor state.

    Args:
        path: The folder of the splits.
        split: A split; by default all videos.
        on_bad_row: Called with the error of each video that cannot be used and is left out; by default the first error
            is raised.

    Attributes:
        grades: The grade of each episode, from 1 to 5.
        embodiments: The embodiment (or source) of each episode.

    Raises:
        BadInputError: If a table lacks a column, a grade is not from 1 to 5, or a video is missing.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        tables = graded_splits(Path(path))
        require_split(Path(path), split, tables)
        wanted = [table for name, table in tables.items() if split in (None, name)]
        rows = [row for table in wanted for row in _rows(table, on_bad_row)]
        graded = [one for _, one in read_each(rows, _graded, on_bad_row) if one is not None]
        require(graded, path, "no video with a grade", "one or more", "keep the rows that have one")
        super().__init__(one.part for one in graded)
        self.grades = np.array([one.grade for one in graded], np.int64)
        self.embodiments = tuple(one.source for one in graded)
        self.identity = self.identity, self.grades.tolist()
        counts = {grade: int((self.grades == grade).sum()) for grade in GRADES}
        self.facts = {
            "grades": ", ".join(f"{count} of {grade}" for grade, count in counts.items()),
            "embodiments": str(len(set(self.embodiments))),
        }


def _rows(table: Path, on_bad_row: OnBadRow) -> Sequence[Row]:
    if table.suffix == ".jsonl":
        return read_table(table, ("file_name", "task", "reward"), on_bad_row=on_bad_row)
    columns: dict[str, list[Any]] = read_parquet(table).to_pydict()
    missing = [name for name in ("file_name", "task", "quality_label") if name not in columns]
    require(not missing, table, f"no {', '.join(missing)}", "file_name, task and quality_label", "download it again")
    count = len(columns["file_name"])
    return [Row(table, row + 1, {name: values[row] for name, values in columns.items()}) for row in range(count)]


def _graded(row: Row) -> _Graded | None:
    """Return a row's video with its grade; `None` for a quality without a grade."""
    grade = _grade(row) if "reward" in row.fields else _quality(row)
    if grade is None:
        return None
    folder = row.path.parent.resolve()
    video = Video(inside(folder, row, "file_name"), folder)
    name = row.text("file_name")
    source = str(row.fields.get("data_source") or (Path(name).parts[0] if len(Path(name).parts) > 1 else folder.name))
    length = len(video.times) - 1
    return _Graded(Part(EpisodeInfo(length, row.text("task"), video.fps, success=grade == 5), video), grade, source)


def _grade(row: Row) -> int:
    value = row.fields["reward"]
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in GRADES:
        raise row.error("reward", value, f"a grade from {GRADES[0]} to {GRADES[-1]}")
    return int(value)


def _quality(row: Row) -> int | None:
    label, share = row.text("quality_label"), row.fields.get("partial_success")
    if label not in _LABELS:
        raise row.error("quality_label", label, f"one of {', '.join(_LABELS)}")
    if share in (None, ""):
        return _LABELS[label]
    try:
        part = float(str(share))
    except ValueError:
        part = np.nan
    if not 0 <= part <= 1:
        raise row.error("partial_success", share, "a share from 0 to 1")
    return 1 + round(4 * part)
