"""What can be wrong with the tables of a LeRobot data set, and with the length of its videos.

Look for everything that is wrong with a data set, instead of stopping at the first thing as a reader does.

Files are opened and decoded in worker processes that may die, because damaged media can crash a decoder. What is
found is told in the form of errors: the file, what was found, what was expected, and a hint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.cache import CachedStore
from counterpoint.data.episode import Array
from counterpoint.data.formats import Format, open_dataset, recognise
from counterpoint.data.formats.lerobot import layout as layout
from counterpoint.data.formats.lerobot.layout import EpisodePlace, Info, places_v21, places_v30
from counterpoint.data.formats.lerobot.tables import as_matrix, read_table
from counterpoint.data.formats.video_folder import VideoFolderStore
from counterpoint.data.masks.robot import examine_masks
from counterpoint.data.store import EpisodeStore
from counterpoint.data.video import frame_times, in_worker, probe_video
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar

__all__ = ["examine", "examine_lerobot"]


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
        *_tasks(root, info),
        *_splits(root, info),
        *_statistics(root),
        *_rows(info, places),
        *_videos(places),
    ]


def _episodes(root: Path, info: Info, places: list[EpisodePlace]) -> Iterator[BadInputError]:
    raw = json.loads((root / layout.INFO).read_text(encoding="utf-8"))
    counted = {"total_episodes": len(places), "total_frames": sum(place.length for place in places)}
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
    where, hint = root / layout.INFO, "correct splits"
    for name, (first, stop) in info.splits.items():
        if not 0 <= first < stop <= info.episodes:
            expected = f"a:b with 0 <= a < b <= {info.episodes}"
            yield _finding(where, f"split {name!r} = {first}:{stop}", expected, hint)
    for (one, a), (other, b) in combinations(info.splits.items(), 2):
        shared = min(a[1], b[1]) - max(a[0], b[0])
        if shared > 0:
            found = f"{shared} episodes in both split {one!r} and split {other!r}"
            yield _finding(where, found, "no episode in two splits", hint)


def _tasks(root: Path, info: Info) -> Iterator[BadInputError]:
    """The list of tasks is there, readable, and as long as info.json says."""
    path = root / ("meta/tasks.parquet" if info.version[0] == 3 else "meta/tasks.jsonl")
    try:
        if path.suffix == ".parquet":
            count = len(read_table(path, ["task_index", "task"]))
        else:
            count = len([json.loads(line)["task"] for line in path.read_text(encoding="utf-8").splitlines() if line])
    except BadInputError as error:
        yield error
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield _finding(path, f"{type(error).__name__}: {error}", "a JSON object a task")
    else:
        total = json.loads((root / layout.INFO).read_text(encoding="utf-8")).get("total_tasks", count)
        if total != count:
            yield _finding(path, f"{count} tasks", f"{total}, as info.json says")


def _statistics(root: Path) -> Iterator[BadInputError]:
    """Every number of every table of statistics is finite."""
    tables: dict[str, Any] = {}
    for name in ("meta/stats.json", "meta/episodes_stats.jsonl"):
        try:
            lines = (root / name).read_text(encoding="utf-8")
            whole = [lines] if name.endswith(".json") else lines.splitlines()
            tables |= {f"{name}, line {n}": json.loads(line) for n, line in enumerate(whole, 1) if line.strip()}
        except FileNotFoundError:
            continue  # neither is needed to read the data
        except (OSError, ValueError) as error:
            yield _finding(root / name, str(error), "statistics as JSON")
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        try:
            table = read_table(path)
        except BadInputError as error:
            yield error
            continue
        for name in table.column_names:
            if name.startswith("stats/"):
                tables[f"{path.relative_to(root)}, column {name}"] = table[name].to_pylist()
    for where, values in tables.items():
        place = _not_finite(values)
        if place is not None:
            found = f"{place[1]!r} at {place[0] or 'its top'}"
            yield _finding(f"{root}/{where}", found, "finite numbers", "compute the statistics anew with lerobot")


def _not_finite(value: Any, place: str = "") -> tuple[str, object] | None:
    """Where in nested lists and objects something stands that is no finite number, and what."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (_not_finite(entry, f"{place}/{key}") for key, entry in entries)), None)
    return None if isinstance(value, int | float) and math.isfinite(value) else (place, value)


def _rows(info: Info, places: list[EpisodePlace]) -> Iterator[BadInputError]:
    """Counters, timestamps and vectors of each episode, a parquet file at a time."""
    vectors = [name for name in (layout.ACTION, layout.STATE) if name in info.features]
    starts = np.cumsum([0, *(place.length for place in places)])
    files: dict[Path, list[tuple[int, EpisodePlace]]] = {}
    for at, place in enumerate(places):
        files.setdefault(place.data, []).append((at, place))
    for path, own in files.items():
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
            yield _finding(path, found, "the features of info.json" if missing else f"{expected}, as meta/ says")
            continue
        for at, place in own:
            rows = {name: values[place.row : place.row + place.length] for name, values in columns.items()}
            yield from _episode_rows(info, place, rows, int(starts[at]))


def _episode_rows(info: Info, place: EpisodePlace, rows: dict[str, Array], start: int) -> Iterator[BadInputError]:
    where, steps = f"{place.data}, episode {place.number}", np.arange(place.length)
    counters = {"episode_index": np.full(place.length, place.number), "frame_index": steps, "index": start + steps}
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
    where: str | Path, found: str, expected: str, hint: str = "copy or download the file again"
) -> BadInputError:
    return BadInputError(where, found, expected, hint)


_BATCH = 1000  # frames a worker decodes: enough to repay its start, few enough to find a bad one soon
_CHUNK = 64  # frames held at a time
_PATIENCE = 3600.0  # seconds for reading every table of a data set


def examine(path: str | Path) -> list[BadInputError]:
    """Examine a data set of any format, or a training store, to the last frame.

    Args:
        path: What `open_dataset` would open.

    Returns:
        One finding for each thing that is wrong; none where all is well.

    Raises:
        BadInputError: When nothing is there that could be examined.
    """
    path = Path(path)
    if recognise(path) is Format.TRAINING_STORE:
        return _examine_training_store(path)
    try:
        findings, store = in_worker(_examine_tables, path, timeout=_PATIENCE)
    except BadInputError as error:  # the worker died
        return [error]
    return findings if store is None else [*findings, *_decode_all(path, store)]


def _examine_training_store(path: Path) -> list[BadInputError]:
    try:
        return CachedStore(path).damage()
    except BadInputError as error:
        return [error]


def _examine_tables(path: Path) -> tuple[list[BadInputError], EpisodeStore | None]:
    """What can be told without decoding, and the store of what can be opened."""
    findings = examine_lerobot(path) if recognise(path) is Format.LEROBOT else []
    try:
        store = open_dataset(path, on_bad_row=findings.append)
        videos = store.videos if isinstance(store, VideoFolderStore) else ()
        return [*findings, *filter(None, map(_rate_finding, videos))], store
    except BadInputError as error:
        known = {finding.where for finding in findings}
        return findings + ([] if error.where in known else [error]), None


def _rate_finding(video: Path) -> BadInputError | None:
    """A constant frame rate is what objectives take steps to have; frames are read at their own times all the same."""
    if not probe_video(video).variable:
        return None
    steps = np.diff(frame_times(video)[:-1])
    found = f"a variable frame rate: {1 / steps.max():.3g} to {1 / max(steps.min(), 1e-6):.3g} frames a second"
    hint = "ffmpeg -i IN -vf fps=10 OUT.mp4, or leave it: every frame is used at its own time"
    return _finding(video, found, "a constant one, as every step counts alike in training", hint)


def _decode_all(path: Path, store: EpisodeStore) -> list[BadInputError]:
    findings: list[BadInputError] = []
    cameras = len(store.cameras)
    with ProgressBar("Decoding", sum(info.length for info in store.episodes) * cameras, "frames") as bar:
        for first, stop in _batches([info.length for info in store.episodes]):
            findings += _decode_range(path, store, first, stop)
            bar.advance(sum(info.length for info in store.episodes[first:stop]) * cameras)
    return findings


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    """Ranges of episodes of about `_BATCH` frames."""
    batches, first, frames = [], 0, 0
    for episode, length in enumerate(lengths):
        frames += length
        if frames >= _BATCH or episode == len(lengths) - 1:
            batches.append((first, episode + 1))
            first, frames = episode + 1, 0
    return batches


def _decode_range(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    """Decode episodes in a worker; where it dies, halve the range until the culprit is alone."""
    frames = sum(info.length for info in store.episodes[first:stop]) * len(store.cameras)
    try:
        return in_worker(_decode, path, store, first, stop, timeout=60 + 0.1 * frames)
    except BadInputError as error:
        if stop - first == 1:
            where = f"{path}, episode {first}"
            return [BadInputError(where, error.found, error.expected, error.hint)]
    middle = (first + stop) // 2
    return _decode_range(path, store, first, middle) + _decode_range(path, store, middle, stop)


def _decode(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    findings: list[BadInputError] = []
    for episode in range(first, stop):
        length, before = store.episodes[episode].length, len(findings)
        for camera in store.cameras:
            try:
                for start in range(0, length, _CHUNK):
                    store.frames(episode, np.arange(start, min(start + _CHUNK, length)), camera)
            except BadInputError as error:
                where = f"{error.where}, episode {episode}"
                findings.append(BadInputError(where, error.found, error.expected, error.hint))
        try:
            for numbers in (store.actions, store.state, store.rewards, store.timestamps):
                numbers(episode)
        except BadInputError as error:
            findings += [error] if recognise(path) is not Format.LEROBOT else []  # examine_lerobot has read the rows
        if len(findings) == before:  # what cannot be read needs no closer look
            findings += examine_masks(path, store, episode)
    return findings
