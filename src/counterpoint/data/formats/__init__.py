"""One reader a format, and `open_dataset`, which tells them apart by what lies in the folder."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from counterpoint.data.cache import CachedStore
from counterpoint.data.formats.base import OnBadRow, raise_error
from counterpoint.data.formats.drq import DrqReplayStore, drq_files
from counterpoint.data.formats.epic import EpicKitchensStore
from counterpoint.data.formats.hdf5.reader import Hdf5Store, hdf5_files, hdf5_splits
from counterpoint.data.formats.lerobot.reader import LeRobotStore
from counterpoint.data.formats.rlbench.reader import RLBenchStore, first_rlbench_episode
from counterpoint.data.formats.video_folder import MANIFESTS, VideoFolderStore
from counterpoint.data.store import EpisodeStore, OneCameraStore
from counterpoint.errors import BadInputError

__all__ = ["Format", "open_dataset", "recognise", "split_names"]

EPIC_SPLITS = ("train", "validation")
"""EPIC-KITCHENS-100 has a file of annotations for each; its test set has no narrations."""


class Format(Enum):
    """What a folder can be."""

    LEROBOT = "LeRobot"
    VIDEO_FOLDER = "video folder"
    EPIC_KITCHENS = "EPIC-KITCHENS-100"
    HDF5 = "robomimic or LIBERO HDF5"
    DRQ_REPLAY = "DrQ-v2 replay"
    RLBENCH = "RLBench data set"
    TRAINING_STORE = "training store"


def recognise(path: str | Path) -> Format:
    """Tell a data set's format by its files.

    Raises:
        BadInputError: When nothing is there, or nothing this library reads.
    """
    path = Path(path)
    if (path / "meta" / "info.json").is_file():
        return Format.LEROBOT
    if (path / "store.json").is_file():
        return Format.TRAINING_STORE
    if _epic_tables(path) and _epic_frames(path):
        return Format.EPIC_KITCHENS
    if path.suffix in (".csv", ".jsonl") or any((path / name).is_file() for name in MANIFESTS):
        return Format.VIDEO_FOLDER
    if hdf5_files(path):
        return Format.HDF5
    if drq_files(path):
        return Format.DRQ_REPLAY
    if first_rlbench_episode(path) is not None:
        return Format.RLBENCH
    raise BadInputError(
        path,
        "a folder of another kind" if path.is_dir() else "a file" if path.exists() else "nothing there",
        "a LeRobot data set (meta/info.json), a video folder (manifest.csv or manifest.jsonl), "
        "EPIC-KITCHENS-100 (EPIC_100_train.csv beside or above the PXX folders), robomimic's or LIBERO's .hdf5 files, "
        "a DrQ-v2 replay (TIME_NUMBER_LENGTH.npz) or an RLBench data set (episodes/episode0/low_dim_obs.pkl)",
        "check the path; videos of your own need a manifest.csv with the columns video,instruction",
    )


def open_dataset(
    path: str | Path, *, split: str | None = None, camera: str | None = None, on_bad_row: OnBadRow = raise_error
) -> EpisodeStore:
    """Open a data set of any format this library reads.

    Args:
        path: A LeRobot v3.0 or v2.1 folder, a video folder or its manifest, an EPIC-KITCHENS-100 folder, an HDF5 file
            of robomimic or LIBERO or a folder of them, a DrQ-v2 replay folder, an RLBench data set, one of its tasks
            or variations, or a training store.
        split: One of `split_names(path)`; by default every episode.
        camera: Keep this camera alone; by default all.
        on_bad_row: Told of each row of a manifest or annotation file, and each HDF5 demonstration, replay file or
            RLBench episode, that cannot be used, which is then left out; by default the first one raises.

    Raises:
        BadInputError: When the format is unknown, the data set is damaged, or it has no such split or camera.
    """
    kind, path = recognise(path), Path(path)
    if split is not None and kind is not Format.LEROBOT and split not in split_names(path):
        raise BadInputError(
            f"split of {path}",
            repr(split),
            f"one of {list(split_names(path))}" if split_names(path) else f"none: a {kind.value} has no splits",
            "name a split the data set has, or leave it out for every episode",
        )
    store: EpisodeStore
    if kind is Format.LEROBOT:
        store = LeRobotStore(path, split=split)
    elif kind is Format.VIDEO_FOLDER:
        store = VideoFolderStore(path, on_bad_row=on_bad_row)
    elif kind is Format.EPIC_KITCHENS:
        tables = [t for t in _epic_tables(path) if split is None or t.stem.endswith(f"_{split}")]
        store = EpicKitchensStore(tables, _epic_frames(path) or path, on_bad_row=on_bad_row)
    elif kind is Format.HDF5:
        store = Hdf5Store(path, split=split, on_bad_row=on_bad_row)
    elif kind is Format.DRQ_REPLAY:
        store = DrqReplayStore(path, on_bad_row=on_bad_row)
    elif kind is Format.RLBENCH:
        store = RLBenchStore(path, on_bad_row=on_bad_row)
    else:
        store = CachedStore(path)
    return store if camera is None else OneCameraStore(store, camera)


def split_names(path: str | Path) -> tuple[str, ...]:
    """The splits a data set has; empty where its format has none."""
    kind, path = recognise(path), Path(path)
    if kind is Format.LEROBOT:
        return tuple(LeRobotStore(path).info.splits)
    if kind is Format.EPIC_KITCHENS:
        return tuple(table.stem.removeprefix("EPIC_100_") for table in _epic_tables(path))
    if kind is Format.HDF5:
        return hdf5_splits(path)
    return ()


def _epic_tables(path: Path) -> list[Path]:
    """Annotation files in the folder, or in the one above it."""
    for folder in (path, path.parent):
        tables = [folder / f"EPIC_100_{split}.csv" for split in EPIC_SPLITS]
        if any(table.is_file() for table in tables):
            return [table for table in tables if table.is_file()]
    return []


def _epic_frames(path: Path) -> Path | None:
    """The folder of PXX folders: this one or one inside it."""
    if not path.is_dir():
        return None
    candidates = (path, *sorted(child for child in path.iterdir() if child.is_dir()))
    return next((folder for folder in candidates if _has_participants(folder)), None)


def _has_participants(folder: Path) -> bool:
    return any(re.fullmatch(r"P\d{2}", child.name) and child.is_dir() for child in folder.iterdir())
