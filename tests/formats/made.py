"""Small data made by tests: episodes in memory, EPIC-KITCHENS' official layout, a folder of videos."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from counterpoint.data.episode import Array, Episode
from counterpoint.data.store import MemoryStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.torchcodec import decoding
from counterpoint.formats.video import encode_video, frame_times, probe_video, read_frames
from tests.data.reading import read_episode


def real_data(name: str) -> Path:
    """A real data set below the folder COUNTERPOINT_REAL_DATA; the test is skipped where it is not there."""
    root = os.environ.get("COUNTERPOINT_REAL_DATA")
    if not root or not (Path(root) / name).exists():
        pytest.skip(f"the real data set {name} is not here (COUNTERPOINT_REAL_DATA names a folder of data sets)")
    return Path(root) / name


def smooth_frames(count: int, height: int, width: int, seed: int = 0) -> Array:
    """A image that drifts sideways: every frame differs, and codecs keep it nearly as it is."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8))
    wide = np.asarray(coarse.resize((width + 4 * count, height), Image.Resampling.BICUBIC))
    return np.stack([wide[:, 4 * t : 4 * t + width] for t in range(count)])


def write_variable_rate(path: Path) -> Array:
    """Write one second at 30 frames a second, then two at 5; return the presentation times in seconds."""
    ticks = [*(3000 * frame for frame in range(30)), *(90000 + 18000 * frame for frame in range(10))]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 90000)
        for tick, pixels in zip(ticks, smooth_frames(len(ticks), 32, 48), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = tick, Fraction(1, 90000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return np.array(ticks) / 90000


def memory_store(
    lengths: Sequence[int] = (5, 7, 3),
    *,
    size: tuple[int, int] = (24, 32),
    cameras: Sequence[str] = ("top", "wrist"),
    vectors: bool = True,
    seed: int = 0,
) -> MemoryStore:
    rng = np.random.default_rng(seed)
    episodes = []
    for number, length in enumerate(lengths):
        frames = {c: smooth_frames(length, *size, seed=int(rng.integers(1 << 30))) for c in cameras}
        actions = rng.normal(size=(length, 4)).astype(np.float32) if vectors else None
        state = rng.normal(size=(length, 3)).astype(np.float32) if vectors else None
        times = np.arange(length) / 10
        episodes.append(
            Episode(frames, f"task {number % 2}", times, actions=actions, state=state, success=bool(number % 2))
        )
    return MemoryStore(episodes)


EPIC_HEADER = (
    "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,"
    "stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
)


def epic_row(video: str, number: int, start: int, stop: int, narration: str, fps: float = 50) -> str:
    times = [f"00:{frame / fps // 60:02.0f}:{frame / fps % 60:05.2f}" for frame in (start, start, stop)]
    begin = f"{video}_{number},{video[:3]},{video},{','.join(times)}"
    return f"{begin},{start},{stop},{narration},take,0,plate,2,\"['plate']\",[2]\n"


def write_epic(root: Path, *, frames: int = 8, size: tuple[int, int] = (24, 32), split: str = "train") -> Path:
    """P01_01 as a folder of frames, P02_03 as a tar, P03_01 without frames; returns `root`."""
    (root / f"EPIC_100_{split}.csv").parent.mkdir(parents=True, exist_ok=True)
    (root / f"EPIC_100_{split}.csv").write_text(
        EPIC_HEADER
        + epic_row("P01_01", 0, 3, 6, "open door")
        + epic_row("P01_01", 1, 5, 8, "take plate")
        + epic_row("P02_03", 0, 1, frames, "open door", 59.94)
        + epic_row("P03_01", 0, 1, 4, "wash pan")
    )
    (root / "EPIC_100_video_info.csv").write_text(
        "video_id,duration,fps,resolution\n"
        f"P01_01,{frames / 50},50.0,1920x1080\nP02_03,{frames / 59.94},59.9400599400599,1920x1080\n"
    )
    folder = root / "P01" / "rgb_frames" / "P01_01"
    folder.mkdir(parents=True)
    (root / "P02" / "rgb_frames").mkdir(parents=True)
    with tarfile.open(root / "P02" / "rgb_frames" / "P02_03.tar", "w") as tar:
        for number, image in enumerate(smooth_frames(frames, *size), start=1):
            data = io.BytesIO()
            Image.fromarray(image).save(data, "JPEG", quality=95)
            (folder / f"frame_{number:010d}.jpg").write_bytes(data.getvalue())
            member = tarfile.TarInfo(f"./frame_{number:010d}.jpg")
            member.size = len(data.getvalue())
            tar.addfile(member, io.BytesIO(data.getvalue()))
    return root


def write_epic_at_scale(
    root: Path,
    *,
    clips: int,
    videos: int,
    sentences: int,
    mean_length: int,
    distinct: int,
    size: tuple[int, int] = (256, 456),
    seed: int = 0,
) -> Path:
    """Segments end to end in folders of frames, which are hard links to `distinct` JPEGs; returns `root`.

    JPEGs have about 20 KB. Lengths are exponential above ten frames; every sentence has a clip, the frequent ones many.
    """
    rng = np.random.default_rng(seed)
    lengths = np.minimum(10 + rng.exponential(mean_length - 10, clips), 20 * mean_length).astype(int)
    said = np.concatenate([np.arange(sentences), (sentences * rng.random(clips - sentences) ** 3).astype(int)])
    texture = Image.fromarray(rng.integers(0, 256, (60, 90, 3), np.uint8)).resize(
        (1800, 1200), Image.Resampling.BICUBIC
    )
    grainy = np.asarray(texture).astype(np.int16) + rng.integers(-7, 8, (1200, 1800, 3), np.int16)
    pixels = np.clip(grainy, 0, 255).astype(np.uint8)
    (root / "images").mkdir(parents=True)
    images = [str(root / "images" / f"{number}.jpg") for number in range(distinct)]
    corners = rng.integers([1200 - size[0], 1800 - size[1]], size=(distinct, 2)).tolist()
    for name, (y, x) in zip(images, corners, strict=True):
        Image.fromarray(pixels[y : y + size[0], x : x + size[1]]).save(name, "JPEG", quality=85)
    rows, rates, linked = [EPIC_HEADER], ["video_id,duration,fps,resolution\n"], 0
    for number, own in enumerate(np.array_split(rng.permutation(clips), videos)):
        video, first = f"P{number % 37 + 1:02d}_{number // 37 + 1:02d}", 1
        folder = root / video[:3] / "rgb_frames" / video
        folder.mkdir(parents=True)
        rates.append(f"{video},1.0,50.0,1920x1080\n")
        for clip in own.tolist():
            stop = first + int(lengths[clip]) - 1
            rows.append(epic_row(video, clip, first, stop, f"narration {said[clip]}"))
            first = stop + 1
        for frame in range(1, first):
            os.link(images[linked % distinct], f"{folder}/frame_{frame:010d}.jpg")
            linked += 1
    (root / "EPIC_100_train.csv").write_text("".join(rows))
    (root / "EPIC_100_video_info.csv").write_text("".join(rates))
    return root


def write_videos(folder: Path, *, count: int = 2, frames: int = 12, fps: float = 10.0) -> Path:
    """`videos/0.mp4` ... and a manifest.csv that names them; returns `folder`."""
    lines = ["video,instruction\n"]
    for number in range(count):
        encode_video(folder / "videos" / f"{number}.mp4", smooth_frames(frames, 32, 48, seed=number), fps)
        lines.append(f"videos/{number}.mp4,task {number}\n")
    (folder / "manifest.csv").write_text("".join(lines))
    return folder


def write_frames(folder: Path, *, count: int = 6, ending: str = "png", step: int = 1, seed: int = 0) -> Array:
    """Write `frame_1.png` and so on; return the images, [count, 32, 48, 3]."""
    folder.mkdir(parents=True, exist_ok=True)
    images = smooth_frames(count, 32, 48, seed=seed)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"frame_{1 + step * number}.{ending}")
    return images


def write_tasks(root: Path) -> Path:
    """Write two videos of `open_the_drawer` and one of `close the drawer`, in a folder per task; returns `root`."""
    for number, name in enumerate(("close the drawer/a.mp4", "open_the_drawer/a.mp4", "open_the_drawer/b.mkv")):
        encode_video(root / name, smooth_frames(5, 32, 48, seed=number), 10)
    return root


def write_lerobot(root: Path, *, splits: Mapping[str, str] | None = None, image_cameras: Sequence[str] = ()) -> Path:
    """The episodes of `memory_store()` as LeRobot v3; returns `root`."""
    store = memory_store()
    writer = LeRobotWriter(
        root,
        fps=10,
        cameras=dict.fromkeys(store.cameras, (24, 32)),
        action_dim=4,
        state_dim=3,
        robot_type="none",
        image_cameras=image_cameras,
    )
    for number in range(len(store.episodes)):
        writer.add_episode(read_episode(store, number))
    writer.finalize(splits)
    return root


def write_lerobot_v21(root: Path) -> Path:
    """The episodes of `memory_store()` as LeRobot v2.1 wrote them: a file an episode, metadata in JSON lines."""
    store = memory_store()
    tasks = sorted({info.instruction for info in store.episodes})
    features: dict[str, object] = {
        "observation.images.top": {"dtype": "video", "shape": [24, 32, 3], "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": [4], "names": None},
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    features |= {
        name: {"dtype": "int64", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index")
    }
    first = 0
    lines: dict[str, list[object]] = {"episodes": [], "episodes_stats": []}
    (root / "meta").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    for number, info in enumerate(store.episodes):
        name, steps = f"chunk-000/episode_{number:06d}", np.arange(info.length)
        columns: dict[str, Any] = {
            "action": list(np.asarray(store.actions(number))),
            "observation.state": list(np.asarray(store.state(number))),
            "timestamp": (steps / 10).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(info.length, number),
            "index": steps + first,
            "task_index": np.full(info.length, tasks.index(info.instruction)),
        }
        pq.write_table(pa.table(columns), root / "data" / f"{name}.parquet")
        video = root / "videos" / name.replace("/", "/observation.images.top/")
        encode_video(video.with_suffix(".mp4"), store.frames(number, steps, "top"), 10)
        lines["episodes"].append({"episode_index": number, "tasks": [info.instruction], "length": info.length})
        stats = {"timestamp": {"min": [0.0], "max": [(info.length - 1) / 10], "count": [info.length]}}
        lines["episodes_stats"].append({"episode_index": number, "stats": stats})
        first += info.length
    lines["tasks"] = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    for name, entries in lines.items():
        (root / "meta" / f"{name}.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    sizes = {"total_episodes": len(store.episodes), "total_frames": first, "total_tasks": len(tasks)}
    paths = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    about: dict[str, object] = {
        "codebase_version": "v2.1",
        "fps": 10,
        "robot_type": None,
        "total_videos": 3,
        "total_chunks": 1,
    }
    about |= {"chunks_size": 1000, "splits": {"train": "0:3"}, "features": features}
    (root / "meta" / "info.json").write_text(json.dumps({**about, **sizes, **paths}, indent=4))
    return root


class TorchcodecStandIn:
    """A decoder with torchcodec's interface, which reads by PyAV and makes the corner of each frame black."""

    opened: list[tuple[str, str, str]]
    missing = 0
    late = 0.0

    def __init__(self, path: str, *, dimension_order: str, device: str) -> None:
        self.path = path
        self.metadata = SimpleNamespace(begin_stream_seconds=2.0)
        self.opened.append((path, dimension_order, device))

    def __len__(self) -> int:
        return probe_video(self.path).frames - self.missing

    def get_frames_at(self, indices: list[int]) -> SimpleNamespace:
        with decoding(None):
            frames = read_frames(self.path, indices)
        frames[:, 0, 0] = 0
        seconds = torch.from_numpy(frame_times(self.path)[indices]) + 2.0 + self.late
        return SimpleNamespace(data=torch.from_numpy(frames), pts_seconds=seconds)

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> type[Self]:
        """Put a new class, which has opened nothing, in the place of torchcodec's decoder."""
        module, made = ModuleType("torchcodec.decoders"), type(cls.__name__, (cls,), {"opened": []})
        module.VideoDecoder = made  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
        return made
