"""A sound data set for each reader, as small as it can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.formats.base import Column
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.minari.writer import write_minari
from tests.data.reading import read_episode
from tests.formats.hdf5.made import (
    write_aloha,
    write_isaaclab,
    write_libero,
    write_low_dim,
    write_regenerated,
    write_robocasa,
    write_robomimic,
)
from tests.formats.made import memory_store, write_epic, write_frames, write_lerobot_v21, write_tasks, write_videos
from tests.formats.minari.made import goal_episodes
from tests.formats.remote_made import write_shards
from tests.formats.rlbench.made import write_task
from tests.formats.rlds.made import write_rlds
from tests.formats.test_bridge import write_bridge
from tests.formats.test_droid import write_droid
from tests.formats.test_drq import write_replay as write_drq
from tests.formats.test_mcap import write_recordings
from tests.formats.test_ogbench import write_ogbench
from tests.formats.test_zarr_replay import write_replay


def write_json_manifest(root: Path) -> Path:
    """Write videos and a manifest in JSON lines."""
    write_videos(root)
    (root / "manifest.csv").unlink()
    (root / "manifest.jsonl").write_text(
        '{"video": "videos/0.mp4", "instruction": "open", "start": 0.2, "end": 0.9}\n'
        '{"video": "videos/1.mp4", "instruction": "close", "start": null}\n'
    )
    return root


def write_frames_in_a_manifest(root: Path) -> Path:
    """Write a folder of frames and a manifest as a spreadsheet writes it."""
    write_frames(root / "run", ending="jpg")
    (root / "manifest.csv").write_text("video;instruction;start;fps\r\nrun;open;0,1;20\r\n")
    return root


def write_folders_of_frames(root: Path) -> Path:
    """Write two folders of frames."""
    for number in range(2):
        write_frames(root / f"run{number}", count=3, seed=number)
    return root


def write_lerobot_more(root: Path) -> Path:
    """Write a LeRobot data set with video, images, depth and further columns of numbers and texts."""
    store = memory_store()
    writer = LeRobotWriter(
        root,
        fps=10,
        cameras=dict.fromkeys(store.cameras, (24, 32)),
        depth={"deep": (8, 6)},
        action_dim=4,
        state_dim=3,
        columns={"force": Column("float64", (2,)), "note": Column("string", (1,))},
        robot_type="none",
        image_cameras=["wrist"],
    )
    for number, info in enumerate(store.episodes):
        depth = np.arange(48 * info.length, dtype=np.uint16).reshape(-1, 8, 6)
        notes = np.array([[f"{number} {step}"] for step in range(info.length)], object)
        columns = {"force": np.ones((info.length, 2)) * number, "note": notes}
        writer.add_episode(replace(read_episode(store, number), depth={"deep": depth}), columns=columns)
    writer.finalize()
    return root


def write_store(root: Path) -> Path:
    """Write a training store."""
    built = cached(memory_store(), size=16, root=root.parent / "stores", progress=False).path
    return shutil.copytree(built, root)


def write_zarr(root: Path) -> Path:
    """Write a replay buffer of Diffusion Policy."""
    write_replay(root)
    return root


def write_hdf5(root: Path) -> Path:
    """Write two subsets of robomimic's demonstrations."""
    write_robomimic(root / "demo.hdf5", masks={"train": [0, 1], "valid": [2]})
    return root


def write_libero_task(root: Path) -> Path:
    """Write a task of LIBERO."""
    write_libero(root / "turn_on_the_stove_demo.hdf5")
    return root


def write_one_of_isaaclab(root: Path) -> Path:
    """Write a file of IsaacLab."""
    root.mkdir()
    return write_isaaclab(root / "dataset.hdf5")


def write_regenerated_task(root: Path) -> Path:
    """Write a regenerated task of LIBERO."""
    write_regenerated(root / "turn_on_the_stove_demo.hdf5")
    return root


def write_drq_replay(root: Path) -> Path:
    """Write a replay buffer of DrQ-v2."""
    write_drq(root)
    return root


def write_ogbench_file(root: Path) -> Path:
    """Write OGBench's two files of a data set."""
    root.mkdir()
    write_ogbench(root / "pointmaze-medium-stitch-v0.npz")
    return root / "pointmaze-medium-stitch-v0.npz"


def write_goals(root: Path) -> Path:
    """Write a Minari data set."""
    write_minari(root, goal_episodes(), env_id="PointMaze_UMaze-v3", description="Made.")
    return root


SOURCES: dict[str, Callable[[Path], Path]] = {
    "videos, csv": write_videos,
    "videos, jsonl": write_json_manifest,
    "videos by task": write_tasks,
    "frames, csv": write_frames_in_a_manifest,
    "frames": write_folders_of_frames,
    "lerobot v3": write_lerobot_more,
    "lerobot v2.1": write_lerobot_v21,
    "epic": write_epic,
    "robomimic": write_hdf5,
    "libero": write_libero_task,
    "libero, regenerated": write_regenerated_task,
    "isaaclab": write_one_of_isaaclab,
    "aloha": write_aloha,
    "robomimic, low_dim": lambda root: write_low_dim(root / "low_dim.hdf5").parent,
    "robocasa": lambda root: write_robocasa(root / "robocasa.hdf5").parent,
    "minari": write_goals,
    "drq": write_drq_replay,
    "ogbench": write_ogbench_file,
    "rlbench": write_task,
    "rlds": lambda root: write_rlds(root, absent=[]),
    "zarr": write_zarr,
    "droid": write_droid,
    "bridge": write_bridge,
    **({"mcap": write_recordings} if find_spec("mcap_ros2") else {}),
    "webdataset, videos": lambda root: write_shards(root, memory_store()),
    "webdataset, images": lambda root: write_shards(root, memory_store((3, 2)), images=True),
    "store": write_store,
}
