"""What can be wrong with the tables of a LeRobot data set, and with the length of its videos."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats import lerobot_layout as layout
from counterpoint.data.formats.lerobot_layout import EpisodePlace, Info
from counterpoint.data.formats.lerobot_tables import as_matrix, read_table
from counterpoint.data.formats.lerobot_v21 import places_v21
from counterpoint.data.formats.lerobot_v30 import places_v30
from counterpoint.data.video import probe_video
from counterpoint.errors import BadInputError

__all__ = ["examine_lerobot"]

_COUNTERS = ("timestamp", "frame_index", "episode_index", "index")


def examine_lerobot(root: Path) -> list[BadInputError]:
    """Examine metadata, statistics, rows and the number of frames in each video; nothing is decoded."""
    try:
        info = layout.read_info(root)
        places = (places_v21 if info.version[0] == 2 else places_v30)(root, info)
    except BadInputError as error:
        return [error]
    return [
        *_episodes(root, info, places),
        *_splits(root, info),
        *_statistics(root),
        *_rows(info, places),
        *_videos(places),
    ]


def _episodes(root: Path, info: Info, places: list[EpisodePlace]) -> Iterator[BadInputError]:
    raw = json.loads((root / layout.INFO).read_text(encoding="utf-8"))
    counted = {
        "total_episodes": len(places),
        "total_frames": sum(place.length for place in places),
    }
    for key, count in counted.items():
        if raw.get(key) != count:
            yield _finding(root / layout.INFO, f"{key} = {raw.get(key)}", str(count), f"set {key} to {count}")
    numbers = [place.number for place in places]
    if numbers != list(range(len(places))):
        missing = sorted(set(range(len(places))) - set(numbers))
        found = f"no episode {missing[0]}" if missing else "episodes out of order"
        yield _finding(root / "meta", found, f"episodes 0 to {len(places) - 1}", "download meta/ again")
    for place in places:
        if not place.instruction.strip():
            yield _finding(
                root / "meta",
                f"no instruction for episode {place.number}",
                "a task in words",
                "name the episode's task",
            )


def _splits(root: Path, info: Info) -> Iterator[BadInputError]:
    where, mend = root / layout.INFO, "correct splits"
    for name, (first, stop) in info.splits.items():
        if not 0 <= first < stop <= info.episodes:
            expected = f"a:b with 0 <= a < b <= {info.episodes}"
            yield _finding(where, f"split {name!r} = {first}:{stop}", expected, mend)
    for (one, a), (other, b) in combinations(info.splits.items(), 2):
        shared = min(a[1], b[1]) - max(a[0], b[0])
        if shared > 0:
            found = f"{shared} episodes in both split {one!r} and split {other!r}"
            yield _finding(where, found, "no episode in two splits", mend)


def _statistics(root: Path) -> Iterator[BadInputError]:
    """Every number of every statistics file must be finite."""
    path = root / "meta/stats.json"
    entries: list[tuple[str, Any]] = []
    try:
        if path.is_file():
            entries += json.loads(path.read_text(encoding="utf-8")).items()
        path = root / "meta/episodes_stats.jsonl"
        if path.is_file():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                entries += [
                    (f"line {number}, {name}", value) for name, value in json.loads(line)["stats"].items()
                ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        yield _finding(
            path, str(error), "statistics as JSON", "download it again, or compute it anew with lerobot"
        )
    for name, value in entries:
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in _leaves(value)):
            yield _finding(
                root / "meta",
                f"{name} with a statistic that is not finite",
                "finite numbers",
                "compute it anew",
            )
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        table = read_table(path)
        for name in table.column_names:
            if name.startswith("stats/") and not all(
                math.isfinite(n) for n in _leaves(table[name].to_pylist())
            ):
                yield _finding(
                    path, f"{name} that is not finite", "finite numbers", "compute it anew with lerobot"
                )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _rows(info: Info, places: list[EpisodePlace]) -> Iterator[BadInputError]:
    """Counters, timestamps and vectors of each episode, a parquet file at a time."""
    vectors = [name for name in (layout.ACTION, layout.STATE) if name in info.features]
    starts = np.cumsum([0, *(place.length for place in places)])
    for path in dict.fromkeys(place.data for place in places):
        own = [(at, place) for at, place in enumerate(places) if place.data == path]
        try:
            table = read_table(path, [*vectors, *_COUNTERS])
            columns = {name: as_matrix(path, table, name) for name in table.column_names}
        except BadInputError as error:
            yield error
            continue
        missing = [name for name in (*_COUNTERS, *vectors) if name not in columns]
        expected = own[0][1].rows
        if missing or len(table) != expected:
            found = f"no column {missing[0]!r}" if missing else f"{len(table)} rows"
            yield _finding(
                path, found, "the features of info.json" if missing else f"{expected}, as meta/ says"
            )
            continue
        for at, place in own:
            rows = {name: values[place.row : place.row + place.length] for name, values in columns.items()}
            yield from _episode_rows(info, place, rows, int(starts[at]))


def _episode_rows(
    info: Info, place: EpisodePlace, rows: dict[str, Array], start: int
) -> Iterator[BadInputError]:
    where, steps = f"{place.data}, episode {place.number}", np.arange(place.length)
    counters = {
        "episode_index": np.full(place.length, place.number),
        "frame_index": steps,
        "index": start + steps,
    }
    for name, expected in counters.items():
        wrong = np.flatnonzero(rows[name][:, 0] != expected)
        if len(wrong):
            step = int(wrong[0])
            yield _finding(where, f"{name} {rows[name][step, 0]} at step {step}", f"{expected[step]}")
    times = rows["timestamp"][:, 0].astype(np.float64)
    # float32 seconds: their own rounding is no error, however long the episode.
    allowed = layout.TOLERANCE + 2 * float(np.finfo(np.float32).eps) * float(np.abs(times).max())
    wrong = np.flatnonzero(~(np.abs(np.diff(times) - 1 / info.fps) <= allowed))
    if len(wrong) or not np.isfinite(times).all():
        step = int(wrong[0]) if len(wrong) else 0
        found = f"timestamps {times[step]:.6f} and {times[min(step + 1, len(times) - 1)]:.6f} at step {step}"
        expected_step = f"steps of 1/{info.fps:g} s within {layout.TOLERANCE} s"
        yield _finding(where, found, expected_step, "write timestamp as frame_index / fps")
    for name in rows.keys() & {layout.ACTION, layout.STATE}:
        bad = np.argwhere(~np.isfinite(rows[name]))
        if len(bad):
            found = f"{rows[name][tuple(bad[0])]} in {name!r} at step {bad[0][0]}"
            yield _finding(where, found, "finite numbers", "drop or repair the episode")


def _videos(places: list[EpisodePlace]) -> Iterator[BadInputError]:
    """The number of frames in each video file against the rows of its episodes."""
    videos = {video.path: video for place in places for video in place.videos.values()}
    for path, video in videos.items():
        try:
            frames = probe_video(path).frames
        except BadInputError as error:
            yield error
            continue
        least, most = video.frames
        if not least <= frames <= most:
            expected = f"{least}, as many as its episodes have rows"
            yield _finding(path, f"{frames} frames", expected, "copy it again, or drop its episodes")


def _finding(
    where: str | Path, found: str, expected: str, mend: str = "copy or download the file again"
) -> BadInputError:
    return BadInputError(where, found=found, expected=expected, mend=mend)
