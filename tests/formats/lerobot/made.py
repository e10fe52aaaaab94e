"""LeRobot data sets made by tests, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoint.data.episode import Episode
from counterpoint.formats.lerobot.statistics import vector_stats
from counterpoint.formats.lerobot.tables import as_column, as_png
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import encode_video
from tests.formats.made import smooth_frames

FPS = 10
SIZES = {"top": (24, 32), "wrist": (17, 23)}


def episode(
    number: int,
    length: int = 5,
    *,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    action_dim: int | None = 4,
    state_dim: int | None = 3,
    instruction: str | None = None,
    success: bool | None = None,
) -> Episode:
    rng = np.random.default_rng(number)

    def vectors(dim: int | None) -> Any:
        return None if dim is None else rng.normal(size=(length, dim)).astype(np.float32)

    return Episode(
        frames={c: smooth_frames(length, *s, seed=10 * number + i) for i, (c, s) in enumerate(sizes.items())},
        instruction=f"task {number % 2}" if instruction is None else instruction,
        timestamps=np.arange(length) / FPS,
        actions=vectors(action_dim),
        state=vectors(state_dim),
        success=success,
    )


def write_v30(root: Path, episodes: Sequence[Episode], **options: Any) -> Path:
    """`episodes` as v3.0; `options` go to the writer, `splits` to `finalize`."""
    first = episodes[0]
    splits = options.pop("splits", None)
    writer = LeRobotWriter(
        root,
        fps=FPS,
        cameras={name: (frames.shape[1], frames.shape[2]) for name, frames in first.frames.items()},
        action_dim=None if first.actions is None else first.actions.shape[1],
        state_dim=None if first.state is None else first.state.shape[1],
        robot_type="made",
        **options,
    )
    for each in episodes:
        writer.add_episode(each)
    writer.finalize(splits)
    return root


def write_v21(root: Path, episodes: Sequence[Episode], *, image_cameras: Sequence[str] = ()) -> Path:
    """`episodes` as v2.1, laid out by hand after its description; chunks of two episodes."""
    tasks = sorted({each.instruction for each in episodes})
    total = sum(len(each) for each in episodes)
    features: dict[str, Any] = {
        f"observation.images.{name}": {
            "dtype": "image" if name in image_cameras else "video",
            "shape": list(frames.shape[1:]),
            "names": ["height", "width", "channel"],
        }
        for name, frames in episodes[0].frames.items()
    }
    for name, values in (("action", episodes[0].actions), ("observation.state", episodes[0].state)):
        if values is not None:
            features[name] = {"dtype": "float32", "shape": [values.shape[1]], "names": None}
    features["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    info = {
        "codebase_version": "v2.1",
        "robot_type": "made",
        "total_episodes": len(episodes),
        "total_frames": total,
        "total_tasks": len(tasks),
        "total_videos": len(episodes),
        "total_chunks": (len(episodes) + 1) // 2,
        "chunks_size": 2,
        "fps": FPS,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    lines: dict[str, list[Any]] = {"tasks": [], "episodes": [], "episodes_stats": []}
    lines["tasks"] = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    for number, each in enumerate(episodes):
        length = len(each)
        lines["episodes"].append({"episode_index": number, "tasks": [each.instruction], "length": length})
        success = np.zeros(length, dtype=np.bool_)
        success[-1] = bool(each.success)
        stats = {"next.success": vector_stats(success[:, None])}
        lines["episodes_stats"].append({"episode_index": number, "stats": stats})
        columns: dict[str, Any] = {
            "timestamp": (np.arange(length) / FPS).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(length),
            "task_index": np.full(length, tasks.index(each.instruction)),
            "next.success": success,
        }
        if each.actions is not None:
            columns["action"] = as_column(each.actions)
        if each.state is not None:
            columns["observation.state"] = as_column(each.state)
        chunk = number // 2
        for name, frames in each.frames.items():
            key = f"observation.images.{name}"
            if name in image_cameras:
                columns[key] = as_png(frames)
            else:
                encode_video(root / f"videos/chunk-{chunk:03d}/{key}/episode_{number:06d}.mp4", frames, FPS)
        path = root / f"data/chunk-{chunk:03d}/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
    for file, entries in lines.items():
        (root / f"meta/{file}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return root


def edit_info(root: Path, **changes: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_column(path: Path, name: str, values: Sequence[Any] | None) -> None:
    """Replace a column of a parquet file, or drop it."""
    table = pq.read_table(path)
    index = table.column_names.index(name)
    if values is None:
        table = table.remove_column(index)
    else:
        table = table.set_column(index, name, pa.array(values, type=table.schema.field(name).type))
    pq.write_table(table, path)


def write_rows(root: Path, lengths: Sequence[int], columns: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> Path:
    """A v2.1 data set of these columns, each with the values of all steps and its entry in info.json."""
    total, ends = sum(lengths), np.cumsum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(total) - (ends - lengths)[episode]
    own = {"frame_index": frame, "episode_index": episode, "index": np.arange(total), "task_index": 0 * frame}
    entry: dict[str, Any] = {"dtype": "int64", "shape": [1], "names": None}
    every: dict[str, tuple[Any, Mapping[str, Any]]] = {n: (pa.array(values), entry) for n, values in own.items()}
    every["timestamp"] = (pa.array((frame / FPS).astype(np.float32)), {**entry, "dtype": "float32"})
    every |= columns
    table = pa.table({name: values for name, (values, _) in every.items()})
    (root / "meta").mkdir(parents=True)
    (root / "data").mkdir()
    lines = []
    for number, (length, end) in enumerate(zip(lengths, ends.tolist(), strict=True)):
        pq.write_table(table.slice(end - length, length), root / f"data/{number}.parquet")
        lines.append(json.dumps({"episode_index": number, "tasks": ["reach"], "length": length}))
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "reach"}\n')
    info = {"codebase_version": "v2.1", "fps": FPS, "total_episodes": len(lengths), "total_frames": total}
    info |= {"total_tasks": 1, "data_path": "data/{episode_index}.parquet", "video_path": None}
    features = {name: dict(entry) for name, (_, entry) in every.items()}
    (root / "meta/info.json").write_text(json.dumps({**info, "features": features}))
    return root
