"""The words (texts of tasks) of LeRobot episodes: each episode's task, and the segments with tasks of their own.

The words are recorded in up to five places:

    tasks in the episode table    the tasks of the episode, in no particular order: LeRobot, all versions
    task_index of each row        a number in the table of tasks; it may change within an episode
    subtask_index of each row     a number in `meta/subtasks.parquet`: LeRobot 0.4
    language_persistent           the same list in every row of an episode; entries of the style `subtask` hold from
                                  their timestamp on: LeRobot 0.5 and later
    *_subtask_names in the        annotations for SARM, with `*_subtask_start_frames`; the sparse ones, which are also
    episode table                 called `subtask_names`, or else the dense ones

Subtasks make segments if there are any, those of the rows before annotations; otherwise a change of `task_index` does.
Rows that name a task which the episode table does not list raise an error.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, Segment, task_of, visible
from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import as_list, as_mapping, as_number, as_whole
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.layout import EpisodeLocation, Info, json_lines
from counterpoint.formats.lerobot.tables import as_matrix, column_names, read_cells, read_table, reading

_LANGUAGE, _STYLE = "language_persistent", "subtask"
Words = tuple[str, tuple[Segment, ...]]
"""The task of an episode, and its segments; without segments, the whole episode has that task."""


def read_words(root: Path, info: Info, locations: Sequence[EpisodeLocation], *, rows: bool = False) -> list[Words]:
    """Return the words of each episode.

    Args:
        root: The data set.
        info: Its `meta/info.json`.
        locations: Its episodes.
        rows: Read the rows' `task_index` even if statistics say that all rows of an episode have one task.

    Raises:
        BadInputError: When rows name a task that the episode table does not list or the table of tasks does not have,
            or when a file is damaged.
    """
    subtasks = _numbered(root / layout.SUBTASKS, "subtask")
    tables = {layout.TASK: task_table(root, info), layout.SUBTASK: subtasks}
    tables = {name: table for name, table in tables.items() if table and name in info.features}
    language = _LANGUAGE in info.features
    annotated = _annotated(root) if info.version[0] == 3 else {}
    found: dict[int, Words] = {}
    wrong: list[BadInputError] = []
    for path, own in _by_file(locations).items():
        known = not rows and all(at.task is not None for at in own)
        wanted = [name for name in tables if not (known and name == layout.TASK)]
        columns = _columns(path, wanted) if wanted else {}
        spoken = read_cells(path, _LANGUAGE, [at.row for at in own]) if language else {}
        for at in own:
            parts = {name: _segments(at, columns.get(name), name, table) for name, table in tables.items()}
            tasks = parts.get(layout.TASK, ())
            error = _contradiction(at, tasks)
            wrong += [error] if error else []
            finer = _spoken(at, info, spoken.get(at.row)) if spoken else ()
            finer = finer or parts.get(layout.SUBTASK, ())
            finer = finer or _within(at, annotated.get(at.number, ()))
            found[at.number] = _words(at, tasks, finer)
    if wrong:
        first = wrong[0]
        more = f", and {len(wrong) - 1} more episodes of this kind" if len(wrong) > 1 else ""
        raise BadInputError(first.where, first.found + more, first.expected, first.hint)
    return [found[at.number] for at in locations]


def task_table(root: Path, info: Info) -> dict[int, str]:
    """Return each task in words by its number; empty if the data set has no table of tasks."""
    if info.version[0] == 3:
        return _numbered(root / layout.TASKS, "task")
    path = root / "meta/tasks.jsonl"
    if not path.is_file():
        return {}
    with reading(path, "task_index and task"):
        return _each_once(path, [(as_whole(line["task_index"]), str(line["task"])) for line in json_lines(path)])


def _each_once(path: Path, words: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return words by their number; raise an error if a number has several texts."""
    numbered = dict(words)
    other = next((f"{text!r} and {numbered[at]!r}" for at, text in words if text != numbered[at]), "")
    hint = "give each text a number of its own, and write the number into the rows"
    require(not other, path, f"one number for {other}", "one text for a number", hint)
    return numbered


def _numbered(path: Path, name: str) -> dict[int, str]:
    """Return words by their number, from a table that pandas wrote with the words as its index."""
    if not path.is_file():
        return {}
    with reading(path, f"{name}_index and {name}"):
        table = read_table(path)
        words = table[name if name in table.column_names else "__index_level_0__"].to_pylist()
        numbers = map(as_whole, table[f"{name}_index"].to_pylist())
        return _each_once(path, list(zip(numbers, map(str, words), strict=True)))


@dataclass(frozen=True)
class _Column:
    """The task number of each row of a file, [N], and the rows whose number differs from the row before."""

    numbers: Array
    changes: list[int]


def _columns(path: Path, names: Sequence[str]) -> dict[str, _Column]:
    """Return the columns in `names` that a file has, as whole numbers; a missing file is reported later."""
    if not path.is_file():
        return {}
    table = read_table(path, names)
    columns = {name: as_matrix(path, table, name)[:, 0] for name in table.column_names}
    return {name: _Column(own, (np.flatnonzero(np.diff(own)) + 1).tolist()) for name, own in columns.items()}


def _segments(at: EpisodeLocation, column: _Column | None, name: str, table: Mapping[int, str]) -> tuple[Segment, ...]:
    """Return the segments: runs of rows with the same words. A negative number means no words."""
    if column is None:
        return () if name != layout.TASK or at.task is None else ((0, _named(at, name, at.task, table)),)
    stop = min(at.row + at.length, len(column.numbers))
    inside = slice(bisect_right(column.changes, at.row), bisect_left(column.changes, stop))
    rows = [at.row, *column.changes[inside]] if at.row < stop else []
    return tuple(_merged((row - at.row, _named(at, name, as_whole(column.numbers[row]), table)) for row in rows))


def _named(at: EpisodeLocation, name: str, number: int, table: Mapping[int, str]) -> str:
    if number not in table and number >= 0:
        where, known = f"{at.data}, episode {at.number}", f"one of the {len(table)} in meta/{name.split('_')[0]}s"
        hint = f"correct {name} in the rows, or add the text of {number} to meta/{name.split('_')[0]}s"
        raise BadInputError(where, f"{name} {number}", known, hint)
    return table.get(number, "")


def outside_episodes(info: Info, locations: Sequence[EpisodeLocation]) -> Iterator[BadInputError]:
    """Yield subtasks of `language_persistent` that begin outside their episode, and are read at its first or last step.

    Raises:
        BadInputError: When a file is damaged.
    """
    for path, own in _by_file(locations).items() if _LANGUAGE in info.features else ():
        cells = read_cells(path, _LANGUAGE, [at.row for at in own])
        for at in own:
            last = f"a time from 0 to {(at.length - 1) / info.fps:.6g} s, that of the last of {at.length} steps"
            for time, words in _subtasks(at, cells.get(at.row)):
                if not 0 <= round(time * info.fps) < at.length:
                    found = f"the subtask {words!r} from {time:.6g} s on"
                    hint = f"correct the timestamps in {_LANGUAGE}, or remove the entry"
                    yield BadInputError(f"{path}, episode {at.number}", found, last, hint)


def _by_file(locations: Sequence[EpisodeLocation]) -> dict[Path, list[EpisodeLocation]]:
    """Return the episodes of each parquet file."""
    files: dict[Path, list[EpisodeLocation]] = {}
    for at in locations:
        files.setdefault(at.data, []).append(at)
    return files


def _subtasks(at: EpisodeLocation, cell: object) -> list[tuple[float, str]]:
    """Return the subtasks in the cell of `language_persistent`, in order: the time in seconds, and the words."""
    with reading(at.data, f"rows with style, content and timestamp in {_LANGUAGE!r}"):
        entries = [as_mapping(entry) for entry in as_list([] if cell is None else cell)]
        return sorted(
            (as_number(entry["timestamp"]), str(entry["content"]))
            for entry in entries
            if entry["style"] == _STYLE and entry["content"]
        )


def _spoken(at: EpisodeLocation, info: Info, cell: object) -> tuple[Segment, ...]:
    """Return the subtasks in the cell of `language_persistent`; the part before the first one has no words."""
    times = _subtasks(at, cell)
    firsts = {min(max(0, round(time * info.fps)), at.length - 1): words for time, words in times}
    return tuple(_merged(({0: ""} | firsts).items())) if firsts else ()


def _annotated(root: Path) -> dict[int, list[Segment]]:
    """Return the annotated subtasks of each episode that has some: their first frames and names."""
    found: dict[int, list[Segment]] = {}
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        names = column_names(path)
        kinds = ("sparse_subtask", "subtask", "dense_subtask")
        kind = next((one for one in kinds if {f"{one}_names", f"{one}_start_frames"} <= names), "")
        if not kind:
            continue
        table = read_table(path, ["episode_index", f"{kind}_names", f"{kind}_start_frames"])
        with reading(path, f"as many {kind}_start_frames as {kind}_names, ascending"):
            for number, words, firsts in zip(*(column.to_pylist() for column in table.columns), strict=True):
                if words is not None:
                    steps = [as_whole(first) for first in as_list(firsts)]
                    if steps != sorted(set(steps)):
                        raise ValueError(f"{kind}_start_frames {steps} of episode {number}")
                    found[as_whole(number)] = list(zip(steps, map(str, as_list(words)), strict=True))
    return found


def _within(at: EpisodeLocation, parts: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return annotated subtasks as segments; the part before the first one has no words."""
    firsts = {min(first, at.length - 1): words for first, words in parts}
    return tuple(_merged(({0: ""} | firsts).items())) if firsts else ()


def _merged(parts: Any) -> Iterator[Segment]:
    """Join parts that follow each other and have the same words."""
    before = None
    for first, words in parts:
        if words != before:
            yield first, words
        before = words


def _contradiction(at: EpisodeLocation, segments: Sequence[Segment]) -> BadInputError | None:
    """Return the error for rows whose words the episode table does not list; `None` if there are none."""
    other = [words for _, words in segments if words not in at.tasks]
    if not other or not any(at.tasks):
        return None
    told = " and ".join(map(repr, at.tasks))
    hint = "correct `task_index` in the rows, or `tasks` in the episode table"
    return BadInputError(
        f"{at.data}, episode {at.number}", f"rows of the task {other[0]!r}", f"{told}, as meta/ says", hint
    )


def _words(at: EpisodeLocation, tasks: Sequence[Segment], subtasks: Sequence[Segment]) -> Words:
    task = tasks[0][1] if len(tasks) == 1 else task_of(tasks)
    task = task or "; ".join(dict.fromkeys(filter(visible, at.tasks)))
    segments = tuple(subtasks or tasks)
    return task, () if len(segments) < 2 and task_of(segments) in ("", task) else segments
