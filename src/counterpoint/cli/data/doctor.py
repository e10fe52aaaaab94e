"""`counterpoint data doctor`: find all faults of a data set; a reader would stop at the first one.

Files are opened and decoded in worker processes that may die, because damaged media can crash a decoder. Findings have
the form of errors: the file, what was found, what was expected, and a hint.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from counterpoint.cli.data.alignment import alignment_of, measure
from counterpoint.cli.data.info import DataSet, data_sets, require_no_dialect
from counterpoint.data.cache import CachedStore
from counterpoint.data.episode import Array, says_nothing
from counterpoint.data.robot_masks import examine_masks, rgb_cameras
from counterpoint.data.store import EpisodeStore, frames_in_chunks
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.base import Reader
from counterpoint.formats.boundary import read_bytes
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.clock import clock_error, start_error
from counterpoint.formats.lerobot.layout import EpisodeLocation, Info, json_lines
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.tables import as_matrix, damaged, read_table, reading
from counterpoint.formats.lerobot.words import outside_episodes, read_words
from counterpoint.formats.minari.files import is_minari
from counterpoint.formats.remote import located, url_of
from counterpoint.formats.video import probe_video, uneven_rate
from counterpoint.parameter_types import Name
from counterpoint.progress import ProgressBar
from counterpoint.workers import in_worker

_SLACK = 1.5  # frames by which an episode's stretch of video may differ from its rows
_RATES = 2e-4  # share by which a video's own rate may differ from the rate in info.json
_FAR = 100  # metres; depth images with a larger median seem to be in millimetres
_FLAT = 2  # difference of pixel values in a black image that video encoding may cause
_BATCH = 1000  # frames per worker: worth starting a process for, and few enough to locate a damaged frame soon
_PATIENCE = 3600.0  # seconds for reading every table of a data set
_COUNTS = "copy it again; if data sets were merged, merge them again with a newer lerobot; or drop its episodes"
_UNLISTED = "if a recording was interrupted, restore its entries in meta/, or remove these rows; they are not read"
_COUNTERS = ("timestamp", "frame_index", "episode_index", "index")
_SHOWN = 100  # findings that are shown


def doctor(path: Positional[DataSet], *, dialect: Name = None) -> int:
    """Look for damage: timestamps, counts, statistics, images, masks, shifted actions. Exit code 2 if any is found.

    Time on two cores: every frame is decoded, 4,500 a second at 112 pixels. Disk: nothing.

    Args:
        path: A data set of any format, or a training store.
        dialect: The dialect of HDF5 files, if the files do not identify it.

    Returns:
        The exit code: 0 clean, 2 with findings.
    """
    return max(_diagnose(found, dialect) for found in data_sets(url_of(path) or path))


def _diagnose(path: str | Path, dialect: str | None) -> int:
    if is_minari(path):
        require_no_dialect(path, dialect)
        from counterpoint.formats.minari.reader import examine_minari, vectors_of  # minari is an optional dependency

        findings = examine_minari(Path(path)) or list(measure(vectors_of(Path(path))).finding(path))
    else:
        findings = examine(path, dialect)
    console = Console()
    if not findings:
        console.print(Text(f"{path}: nothing wrong"), soft_wrap=True)
        return 0
    console.print(Text(f"{path}: {len(findings)} finding(s)"), soft_wrap=True)
    for finding in findings[:_SHOWN]:
        console.print(Text(f"\n{finding.where.removeprefix(f'{path}/')}", style="bold"), soft_wrap=True)
        table = Table(show_header=False, box=None, padding=(0, 1, 0, 2))
        for name in ("found", "expected", "hint"):
            table.add_row(name, Text(getattr(finding, name), overflow="fold"))
        console.print(table)
    if len(findings) > _SHOWN:
        console.print(f"... and {len(findings) - _SHOWN} more")
    return 2


def examine(path: str | Path, dialect: str | None = None) -> list[BadInputError]:
    """Examine a data set of any format, or a training store, to the last frame.

    Args:
        path: The data set.
        dialect: The dialect of HDF5 files, if the files do not identify it.

    Returns:
        One finding for each fault; none for a sound data set.

    Raises:
        BadInputError: When the path has no data set that can be examined.
    """
    path = located(path)
    if recognise(path).name == "training_store":
        try:
            kept = CachedStore(path)
            return [*kept.damage(), *alignment_of(kept).finding(path)]
        except BadInputError as error:
            return [error]
    try:
        findings, store = in_worker(_examine_tables, path, dialect, timeout=_PATIENCE)
    except BadInputError as error:  # the worker died
        return [error]
    told = {(one.where, one.found) for one in findings}  # a fault of a whole file is not repeated for its episodes
    decoded = [] if store is None else _decode_all(path, store)
    return [*findings, *(one for one in decoded if (one.where.partition(", episode ")[0], one.found) not in told)]


def _examine_tables(path: Path, dialect: str | None = None) -> tuple[list[BadInputError], EpisodeStore | None]:
    """Return the faults that are found without decoding, and a store of the episodes that can be opened."""
    findings = examine_lerobot(path) if recognise(path).name == "lerobot" else []
    try:
        store = open_dataset(path, dialect=dialect, on_bad_row=findings.append)
    except BadInputError as error:
        return findings + [error] * (error.where not in {finding.where for finding in findings}), None
    findings += store.findings() if isinstance(store, Reader) else ()
    findings += _without_words(path, store) if recognise(path).name != "lerobot" else ()
    findings += alignment_of(store).finding(path)
    return findings, store


def _without_words(path: Path, store: EpisodeStore) -> Iterator[BadInputError]:
    """Yield episodes without an instruction, in data whose other episodes have one or whose format records them."""
    empty = [number for number, info in enumerate(store.episodes) if says_nothing(info.instruction)]
    recorded = isinstance(store, Reader) and store.instructions
    if empty and (recorded or len(empty) < len(store.episodes)):
        yield _nameless(path, path, empty, len(store.episodes))


def _nameless(where: Path, root: Path, empty: Sequence[int], total: int) -> BadInputError:
    """Return the finding that the episodes `empty` of the data set at `root` have no instruction."""
    listed = f"{', '.join(map(str, empty[:10]))}{', ...' * (len(empty) > 10)}"
    found = f"no instruction for {len(empty)} of {total} episodes: {listed}"
    hint = f"name their task: counterpoint data convert {root} OUT --instruction TEXT"
    return BadInputError(where, found, "a task in words", hint)


def _decode_all(path: Path, store: EpisodeStore) -> list[BadInputError]:
    findings: list[BadInputError] = []
    with ProgressBar("Decoding", int(store.lengths.sum()) * len(store.cameras), "frames") as bar:
        for first, stop in _batches(store.lengths.tolist()):
            findings += _decode_range(path, store, first, stop)
            bar.advance(int(store.lengths[first:stop].sum()) * len(store.cameras))
    return findings


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    """Return ranges of episodes of about `_BATCH` frames."""
    before, ends = np.cumsum([0, *lengths]), [0]
    while ends[-1] < len(lengths):
        ends.append(min(int(np.searchsorted(before, before[ends[-1]] + _BATCH)), len(lengths)))
    return list(pairwise(ends))


def _decode_range(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    """Decode episodes in a worker; if the worker dies, halve the range until it holds only the faulty episode."""
    frames = sum(info.length for info in store.episodes[first:stop]) * len(store.cameras)
    try:
        return in_worker(_decode, path, store, first, stop, timeout=60 + 0.1 * frames)
    except BadInputError as error:
        if stop - first == 1:
            return [BadInputError(f"{path}, episode {first}", error.found, error.expected, error.hint)]
    middle = (first + stop) // 2
    return _decode_range(path, store, first, middle) + _decode_range(path, store, middle, stop)


def _depth(path: Path, store: EpisodeStore, episode: int, steps: Array, camera: str) -> Array:
    """Return distances as the store does; refuse metres that seem to be millimetres."""
    images = store.depth(episode, steps, camera)
    seen = images[np.isfinite(images) & (images > 0)]
    if images.dtype == np.float32 and seen.size and np.median(seen) > _FAR:
        found, hint = f"a median of {np.median(seen):.4g} in float32", "store millimetres as uint16, or divide by 1000"
        raise BadInputError(f"{path}, {camera}", found, f"metres, of less than {_FAR}", hint)
    return images


def _decode(path: Path, store: EpisodeStore, first: int, stop: int) -> list[BadInputError]:
    findings: list[BadInputError] = []
    lerobot = isinstance(store, LeRobotStore)  # the rows have been examined already
    padded, pictures = isinstance(store, Reader) and store.pads_cameras, rgb_cameras(store.cameras)
    for episode in range(first, stop):
        before, blank = len(findings), list[str]()
        colour = partial(frames_in_chunks, store, episode)
        depth = partial(colour, read=partial(_depth, path, store))
        for camera in (*store.cameras, *store.depth_cameras):
            try:
                if camera in store.depth_cameras:
                    deque(depth(camera), maxlen=0)
                elif _shows_nothing(colour(camera)) and camera in pictures:
                    blank.append(camera)
            except BadInputError as error:
                where = f"{error.where}, episode {episode}"
                findings.append(BadInputError(where, error.found, error.expected, error.hint))
        for read in () if lerobot else (store.actions, store.state, store.rewards, store.timestamps):
            try:
                read(episode)
            except BadInputError as error:
                findings.append(error)
        if len(findings) == before:  # masks are examined only if everything could be read
            findings += [*examine_masks(path, store, episode), *_other_robot(path, store, episode)]
        for camera in blank if not padded or len(blank) == len(pictures) else ():
            found, hint = "images without any difference between pixels", "remove the episode, or record it again"
            findings.append(BadInputError(f"{path}, {camera}, episode {episode}", found, "images of the scene", hint))
    return findings


def _shows_nothing(chunks: Iterator[Array]) -> bool:
    """Decode the images [n, H, W, 3] of a camera; return whether all their values are alike."""
    darkest, brightest = 255, 0
    for images in chunks:
        darkest, brightest = min(darkest, int(images.min())), max(brightest, int(images.max()))
    return brightest - darkest <= _FLAT


def _other_robot(path: Path, store: EpisodeStore, episode: int) -> Iterator[BadInputError]:
    """Yield actions and states that have another number of dimensions than in the first episode."""
    for name, read in (("actions", store.actions), ("state", store.state)):
        try:
            first, own = (0 if values is None else values.shape[1] for values in map(read, (0, episode)))
        except BadInputError:  # another finding reports it
            continue
        if own != first:
            found, hint = f"{own or 'no'} dimensions", "keep robots of each kind in a data set of their own"
            yield BadInputError(
                f"{path}, episode {episode}, {name}", found, f"{first or 'none'}, as in the first episode", hint
            )


def examine_lerobot(root: Path) -> list[BadInputError]:
    """Examine metadata, statistics, rows and the number of frames in each video; nothing is decoded."""
    try:
        info = layout.read_info(root)
        locations = layout.locate(root, info)
    except BadInputError as error:
        return [error]
    return [
        *_episodes(root, info, locations),
        *_tasks(root, info),
        *_splits(root, info, [at.number for at in locations]),
        *_statistics(root),
        *_rows(root, info, locations),
        *_words(root, info, locations),
        *_videos(info, locations),
    ]


def _episodes(root: Path, info: Info, locations: list[EpisodeLocation]) -> Iterator[BadInputError]:
    counted = {"total_episodes": len(locations), "total_frames": sum(at.length for at in locations)}
    for key, count in counted.items():
        if info.raw.get(key) != count:
            yield BadInputError(root / layout.INFO, f"{key} = {info.raw.get(key)}", str(count), f"set {key} to {count}")
    numbers = [at.number for at in locations]
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    if missing:
        found = f"no episode {', '.join(map(str, missing[:10]))}{', ...' * (len(missing) > 10)}"
        hint = f"download meta/ again; if they were removed, number the rest anew: counterpoint data convert {root} OUT"
        yield BadInputError(root / "meta", found, f"episodes 0 to {numbers[-1]}", hint)
    if len(set(numbers)) < len(numbers):
        again = next(one for one, other in pairwise(numbers) if one == other)
        yield damaged(root / "meta", f"episode {again} twice", "each episode once")
    unnamed = sorted(set((root / "data").rglob("*.parquet")) - {at.data for at in locations})
    if unnamed:
        found = f"{len(unnamed)} files that meta/ does not name, the first {unnamed[0].relative_to(root)}"
        yield BadInputError(root / "data", found, "the files of the listed episodes alone", _UNLISTED)
    nameless = [at.number for at in locations if all(map(says_nothing, at.tasks))]
    if nameless:
        yield _nameless(root / "meta", root, nameless, len(locations))


def _splits(root: Path, info: Info, numbers: list[int]) -> Iterator[BadInputError]:
    where, hint, stop = root / layout.INFO, "correct splits", max(numbers, default=-1) + 1
    for name, (first, last) in info.splits.items():
        if not 0 <= first < last <= max(stop, info.episodes):
            expected = f"a:b with 0 <= a < b <= {stop}"
            yield BadInputError(where, f"split {name!r} = {first}:{last}", expected, hint)
        elif missing := sorted(set(range(first, last)) - set(numbers)):
            found = f"{len(missing)} episodes that do not exist in split {name!r}, the first {missing[0]}"
            yield BadInputError(where, found, "episodes that exist", hint)
    for (one, a), (other, b) in combinations(info.splits.items(), 2):
        shared = min(a[1], b[1]) - max(a[0], b[0])
        if shared > 0:
            found = f"{shared} episodes in both split {one!r} and split {other!r}"
            yield BadInputError(where, found, "no episode in two splits", hint)


def _tasks(root: Path, info: Info) -> Iterator[BadInputError]:
    """Check that the list of tasks is readable and has the length that info.json states."""
    path = root / (layout.TASKS if info.version[0] == 3 else "meta/tasks.jsonl")
    try:
        with reading(path, "a task a line"):
            lines = [line["task"] for line in json_lines(path)] if path.suffix == ".jsonl" else read_table(path)
    except BadInputError as error:
        yield error
        return
    total = info.raw.get("total_tasks", len(lines))
    if total != len(lines):
        yield damaged(path, f"{len(lines)} tasks", f"{total}, as info.json says")


def _statistics(root: Path) -> Iterator[BadInputError]:
    """Check that every number of every table of statistics is finite."""
    tables: dict[str, Any] = {}
    paths = [root / "meta/stats.json", root / "meta/episodes_stats.jsonl"]  # neither is needed to read the data
    for path in [*(path for path in paths if path.exists()), *sorted((root / "meta/episodes").glob("*/*.parquet"))]:
        try:
            tables |= _numbers(path)
        except BadInputError as error:
            yield error
    for where, values in tables.items():
        wrong = _not_finite(values)
        if wrong is not None:
            found = f"{wrong[1]!r} at {wrong[0] or 'its top'}"
            yield BadInputError(where, found, "finite numbers", "compute the statistics anew with lerobot")


def _numbers(path: Path) -> dict[str, Any]:
    """Return the statistics in a file, by line or by column."""
    if path.suffix == ".parquet":
        table = read_table(path)
        names = [name for name in table.column_names if name.startswith("stats/")]
        return {f"{path}, column {name}": table[name].to_pylist() for name in names}
    with reading(path, "statistics as JSON"):
        text = read_bytes(path).decode()
        lines = [text] if path.suffix == ".json" else text.splitlines()
        return {f"{path}, line {n}": json.loads(line) for n, line in enumerate(lines, 1) if line.strip()}


def _not_finite(value: Any, at: str = "") -> tuple[str, object] | None:
    """Return the location and value of the first entry, in nested lists and objects, that is not a finite number."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (_not_finite(entry, f"{at}/{key}") for key, entry in entries)), None)
    return None if isinstance(value, int | float) and math.isfinite(value) else (at, value)


def _words(root: Path, info: Info, locations: list[EpisodeLocation]) -> Iterator[BadInputError]:
    """Check tasks in rows against the episode table, without relying on statistics, and the times of subtasks."""
    try:
        read_words(root, info, locations, rows=True)
        yield from outside_episodes(info, locations)
    except BadInputError as error:
        yield error


def _rows(root: Path, info: Info, locations: list[EpisodeLocation]) -> Iterator[BadInputError]:
    """Check counters, timestamps and vectors of each episode, a parquet file at a time."""
    vectors = [key for source in ("actions", "state") for key in info.roles.get(source, ())]
    wanted = [*vectors, *_COUNTERS]
    starts = np.cumsum([0, *(at.length for at in locations)])
    listed = set(range(max((at.number for at in locations), default=-1) + 1))  # and those that `_episodes` reports
    whole = [at.number for at in locations] == list(range(len(locations)))  # if not, `index` has gaps too
    files: dict[Path, list[tuple[int, EpisodeLocation]]] = {}
    for start, at in zip(starts.tolist(), locations, strict=False):
        files.setdefault(at.data, []).append((start, at))
    for path, own in files.items():
        try:
            table = read_table(path, wanted)
            columns = {name: as_matrix(path, table, name) for name in table.column_names}
        except BadInputError as error:
            yield error
            continue
        missing = [name for name in wanted if name not in columns]
        if missing:
            yield damaged(path, f"no column {missing[0]!r}", "the features of info.json")
        elif told := {at.rows for _, at in own} - {len(table)}:
            yield damaged(path, f"{len(table)} rows", f"{told.pop()}, as meta/ says")
        else:
            extra = set(columns["episode_index"][:, 0].tolist()) - listed
            if extra:
                found = f"rows of episode {min(extra)}" + f" and {len(extra) - 1} more" * (len(extra) > 1)
                yield BadInputError(path, f"{found}, which meta/ does not list", "listed episodes alone", _UNLISTED)
            for start, at in own:
                rows = {name: values[at.row : at.row + at.length] for name, values in columns.items()}
                start = start if whole else int(rows["index"][0, 0])
                yield from _episode_rows(root, info, at, rows, start)


def _episode_rows(
    root: Path, info: Info, at: EpisodeLocation, rows: dict[str, Array], start: int
) -> Iterator[BadInputError]:
    where, steps = f"{at.data}, episode {at.number}", np.arange(at.length)
    counters = {"episode_index": np.full(at.length, at.number), "frame_index": steps, "index": start + steps}
    for name, expected in counters.items():
        for step in np.flatnonzero(rows[name][:, 0] != expected)[:1]:
            found, hint = f"{name} {rows[name][step, 0]} at step {step}", "write it anew, if no row is missing"
            hint = "sort the rows by episode and frame, or download them again" if name == "episode_index" else hint
            yield BadInputError(where, found, f"{expected[step]}", hint)
    times = rows["timestamp"][:, 0].astype(np.float64)
    error, anew = clock_error(root, where, times, info.fps), f"counterpoint data convert {root} OUT --retime"
    if error:
        yield error
    elif abs(times[0]) > 0.5 / info.fps:
        found = f"a first timestamp of {times[0]:.6g} s"
        yield BadInputError(where, found, "0 s: the times of an episode begin at its first frame", anew)
    elif (drift := abs(times[-1] - steps[-1] / info.fps)) > 0.5 / info.fps:
        found = f"timestamps at {steps[-1] / times[-1]:.6g} frames a second, {drift:.3g} s off at the end"
        hint = f"find out which rate is right; for that of info.json: {anew}"
        yield BadInputError(where, found, f"{info.fps:g} frames a second, as info.json says", hint)
    for name in rows.keys() - set(_COUNTERS):
        for step, dim in np.argwhere(~np.isfinite(rows[name]))[:1]:
            found = f"{rows[name][step, dim]} in {name!r} at step {step}"
            yield BadInputError(where, found, "finite numbers", "drop or repair the episode")


def _videos(info: Info, locations: list[EpisodeLocation]) -> Iterator[BadInputError]:
    """Check each video file against the rows of its episodes: its number of frames, and its frame rate.

    Also check that the episode table gives each episode as many seconds of video as it has rows, from a frame's time
    on.
    """
    for at in locations:
        for video in at.videos.values():
            if error := start_error(str(video.path), at.number, video.start, info.fps):
                yield error
            if video.seconds is not None and abs(video.seconds * info.fps - at.length) > _SLACK:
                told = f"{video.seconds:.3f} s for episode {at.number}"
                expected = f"{at.length / info.fps:.3f} s: {at.length} rows at {info.fps:g} frames a second"
                hint = "correct from_timestamp and to_timestamp in meta/episodes, or fps in meta/info.json"
                yield BadInputError(video.path, told, expected, hint)
    for path, video in {video.path: video for at in locations for video in at.videos.values()}.items():
        try:
            frames, (least, most) = probe_video(path).frames, video.frames
            if not least <= frames <= most:
                expected = f"{least}, as many as its episodes have rows"
                yield BadInputError(path, f"{frames} frames", expected, _COUNTS)
            rate, allowed = probe_video(path).fps, _RATES + 1e-3 * info.fps / max(frames, 1)  # times may be whole ms
            if rate and not probe_video(path).variable and abs(rate / info.fps - 1) > allowed:
                hint = "find out which is right: frames are read by their number, and times come from info.json"
                yield BadInputError(path, f"{rate:.4g} frames a second", f"{info.fps:g}, as info.json says", hint)
            yield from uneven_rate(path)
        except BadInputError as error:
            yield error
