"""One reader a format, and `open_dataset`, which recognises a format by the files in the folder."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import numpy as np

from counterpoint.data.cache import CachedStore
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.data.views import OneCameraStore
from counterpoint.errors import BadInputError, require, require_known
from counterpoint.formats.base import OnBadRow, raise_error
from counterpoint.formats.drq import DrqReplayStore, drq_files
from counterpoint.formats.epic import EpicKitchensStore, epic_frames, epic_tables
from counterpoint.formats.hdf5.reader import Hdf5Store, hdf5_files, hdf5_splits
from counterpoint.formats.lerobot.layout import read_info
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.ogbench import OGBenchStore, is_ogbench, ogbench_files
from counterpoint.formats.remote import is_remote, located
from counterpoint.formats.rlbench.reader import RLBenchStore, first_rlbench_episode
from counterpoint.formats.rlds.layout import read_splits, rlds_folder
from counterpoint.formats.rlds.reader import RldsStore
from counterpoint.formats.video_folder import MANIFESTS, VideoFolderStore
from counterpoint.formats.webdataset import WebDatasetStore, shard_splits, shards
from counterpoint.formats.zarr_replay import ZarrReplayStore, is_zarr_replay

__all__ = ["Format", "open_dataset", "read_episode_part", "recognise", "split_names", "validation_split"]


class Format(Enum):
    """The formats of data sets."""

    LEROBOT = "LeRobot"
    VIDEO_FOLDER = "video folder"
    EPIC_KITCHENS = "EPIC-KITCHENS-100"
    HDF5 = "robomimic or LIBERO HDF5"
    DRQ_REPLAY = "DrQ-v2 replay"
    OGBENCH = "OGBench"
    RLBENCH = "RLBench data set"
    RLDS = "RLDS (TFRecord)"
    ZARR_REPLAY = "Diffusion Policy replay buffer"
    WEBDATASET = "WebDataset shards"
    TRAINING_STORE = "training store"


def recognise(path: str | Path) -> Format:
    """Return a data set's format, by its files.

    Raises:
        BadInputError: When nothing is there, or nothing this library reads.
    """
    path = located(path)
    if (path / "meta" / "info.json").is_file():
        return Format.LEROBOT
    if (path / "store.json").is_file():
        return Format.TRAINING_STORE
    if epic_tables(path) and epic_frames(path):
        return Format.EPIC_KITCHENS
    if path.suffix in (".csv", ".jsonl") or any((path / name).is_file() for name in MANIFESTS):
        return Format.VIDEO_FOLDER
    if rlds_folder(path) is not None:
        return Format.RLDS
    if is_zarr_replay(path):
        return Format.ZARR_REPLAY
    if hdf5_files(path):
        return Format.HDF5
    if is_ogbench(path):
        return Format.OGBENCH
    if drq_files(path):
        return Format.DRQ_REPLAY
    if first_rlbench_episode(path) is not None:
        return Format.RLBENCH
    if shards(path):
        return Format.WEBDATASET
    raise BadInputError(
        path,
        "a folder of another kind" if path.is_dir() else "a file" if path.exists() else "nothing there",
        "a LeRobot data set (meta/info.json), a video folder (manifest.csv or manifest.jsonl), "
        "EPIC-KITCHENS-100 (EPIC_100_train.csv beside or above the PXX folders), robomimic's or LIBERO's .hdf5 files, "
        "a DrQ-v2 replay (TIME_NUMBER_LENGTH.npz), OGBench's NAME.npz, "
        "an RLBench data set (episodes/episode0/low_dim_obs.pkl), "
        "RLDS (features.json beside dataset_info.json), a zarr replay buffer (meta/episode_ends) or WebDataset's "
        "NAME-000000.tar",
        "check the path; videos of your own need a manifest.csv with the columns video,instruction",
    )


def open_dataset(
    path: str | Path, *, split: str | None = None, camera: str | None = None, on_bad_row: OnBadRow = raise_error
) -> EpisodeStore:
    """Open a data set of any format this library reads.

    Args:
        path: A LeRobot v3.0 or v2.1 folder, a video folder or its manifest, an EPIC-KITCHENS-100 folder, an HDF5 file
            of robomimic or LIBERO or a folder of them, a DrQ-v2 replay folder, an OGBench file, an RLBench data set,
            one of its tasks or variations, an RLDS version folder or one above it, a zarr replay buffer, WebDataset
            shards, or a training store; or the URL of LeRobot, EPIC-KITCHENS-100 (in tars), WebDataset or a video
            folder, such as `s3://bucket/set` or `hf://datasets/ORG/NAME`.
        split: One of `split_names(path)`; by default every episode.
        camera: Keep this camera alone; by default all.
        on_bad_row: Called for each row of a manifest or annotation file, and each HDF5 demonstration, replay file,
            RLBench episode, RLDS shard or record, that cannot be used, which is then left out; by default the first
            one raises.

    Raises:
        BadInputError: When the format is unknown, the data set is damaged, or it has no such split or camera.
    """
    kind, path = recognise(path), located(path)
    hint = "download it first"
    streams = kind in _STREAMED or not is_remote(path / "x")
    require(streams, path, f"{kind.value} behind a URL", f"one of {[one.value for one in _STREAMED]}", hint)
    if split is not None and kind not in (Format.LEROBOT, Format.RLDS):
        names = list(split_names(path))
        expected = "one of {}" if names else f"none: a {kind.value} has no splits"
        hint = "name one of these, or leave it out for all"
        require_known(split, names, f"split of {path}", expected=expected, hint=hint)
    store: EpisodeStore
    match kind:
        case Format.LEROBOT:
            store = LeRobotStore(path, split=split)
        case Format.TRAINING_STORE:
            store = CachedStore(path)
        case Format.HDF5:
            store = Hdf5Store(path, split=split, on_bad_row=on_bad_row)
        case Format.OGBENCH:
            store = OGBenchStore(path, split=split, on_bad_row=on_bad_row)
        case Format.RLDS:
            store = RldsStore(path, split=split, on_bad_row=on_bad_row)
        case Format.EPIC_KITCHENS:
            tables = [table for table in epic_tables(path) if split is None or table.stem.endswith(f"_{split}")]
            store = EpicKitchensStore(tables, epic_frames(path) or path, on_bad_row=on_bad_row)
        case Format.WEBDATASET:
            store = WebDatasetStore(path, split=split, on_bad_row=on_bad_row)
        case _:
            store = _PLAIN[kind](path, on_bad_row=on_bad_row)
    return store if camera is None else OneCameraStore(store, camera)


_PLAIN = {
    Format.VIDEO_FOLDER: VideoFolderStore,
    Format.DRQ_REPLAY: DrqReplayStore,
    Format.RLBENCH: RLBenchStore,
    Format.ZARR_REPLAY: ZarrReplayStore,
}
"""Formats without splits."""

_STREAMED = (Format.LEROBOT, Format.EPIC_KITCHENS, Format.VIDEO_FOLDER, Format.WEBDATASET)
"""Formats whose frames are read behind a URL."""


def read_episode_part(
    path: str | Path, episode: int, camera: str | None, start: int, limit: int
) -> tuple[Array, int, float]:
    """Decode frames of one episode from step `start` on; as `counterpoint.formats.video.read_part` does for a file."""
    store = open_dataset(path, camera=camera)
    info, first = store.episodes[episode], store.frames(episode, np.array([start]))
    stop = min(info.length, start + max(1, limit // first.nbytes))
    return store.frames(episode, np.arange(start, stop)), info.length, info.fps


def split_names(path: str | Path) -> tuple[str, ...]:
    """Return the splits a data set has; empty where its format has none."""
    kind, path = recognise(path), located(path)
    if kind is Format.LEROBOT:
        return tuple(read_info(path).splits)
    if kind is Format.EPIC_KITCHENS:
        return tuple(table.stem.removeprefix("EPIC_100_") for table in epic_tables(path))
    if kind is Format.RLDS:
        splits = read_splits(rlds_folder(path) or path)
        return tuple(name for name, shards in splits.items() if any(shard.path.exists() for shard in shards))
    if kind is Format.OGBENCH:
        return tuple(ogbench_files(path))
    if kind is Format.WEBDATASET:
        return shard_splits(path)
    return hdf5_splits(path) if kind is Format.HDF5 else ()


def validation_split(path: str | Path, wanted: str | None) -> str | None:
    """Return the split to validate on; `None` where the data set has none.

    Args:
        path: A data set.
        wanted: The user's choice. `val` means `valid` where the data set has that name, as robomimic's do.
    """
    known = split_names(path)
    names = ("val", "valid") if wanted == "val" else (wanted,)
    return next((name for name in names if name in known), None)
