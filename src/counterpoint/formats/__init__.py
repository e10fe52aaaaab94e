"""The formats of data sets; `open_dataset` recognises a data set by its files and imports only its reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, require_split
from counterpoint.formats.remote import is_remote, located
from counterpoint.registry import LazyTable, imported
from counterpoint.repositories import id_advice

if TYPE_CHECKING:
    from counterpoint.formats.recognition import Format

__all__ = ["FORMATS", "open_dataset", "read_episode_part", "recognise", "split_names", "validation_split"]

_RECOGNITION = "counterpoint.formats.recognition"

FORMATS = LazyTable(
    "format",
    {
        "lerobot": f"{_RECOGNITION}:LEROBOT",
        "training_store": f"{_RECOGNITION}:TRAINING_STORE",
        "epic_kitchens": f"{_RECOGNITION}:EPIC_KITCHENS",
        "video_folder": f"{_RECOGNITION}:VIDEO_FOLDER",
        "rlds": f"{_RECOGNITION}:RLDS",
        "zarr_replay": f"{_RECOGNITION}:ZARR_REPLAY",
        "droid": f"{_RECOGNITION}:DROID",
        "hdf5": f"{_RECOGNITION}:HDF5",
        "ogbench": f"{_RECOGNITION}:OGBENCH",
        "drq_replay": f"{_RECOGNITION}:DRQ_REPLAY",
        "rlbench": f"{_RECOGNITION}:RLBENCH",
        "webdataset": f"{_RECOGNITION}:WEBDATASET",
        "bridge": f"{_RECOGNITION}:BRIDGE",
        "mcap": f"{_RECOGNITION}:MCAP",
        "graded": f"{_RECOGNITION}:GRADED",
        "task_folders": f"{_RECOGNITION}:TASK_FOLDERS",
        "frame_folders": f"{_RECOGNITION}:FRAME_FOLDERS",
    },
    "counterpoint.formats",
)
"""All formats by name, as `counterpoint.formats.recognition.Format`; they are tried in this order."""


def recognise(path: str | Path) -> Format:
    """Return the format of a data set, recognised by its files.

    Raises:
        BadInputError: The path does not exist, or neither this library nor an installed package reads it.
    """
    path = located(path)
    for kind in FORMATS.values():
        if kind.recognises(path):
            return kind  # type: ignore[no-any-return]
    from counterpoint.formats.minari.files import is_minari
    from counterpoint.formats.recognition import MANIFESTS, media_advice

    if is_minari(path):
        expected = "a data set of episodes: Minari is read by `data info`, `data doctor` and agents"
        hint = f"train an agent: counterpoint train td_infonce --data {path} --out OUT"
        raise BadInputError(path, "a Minari data set", expected, hint)
    if not path.exists():
        begun = path.with_name(f"{path.name}.partial")  # of `counterpoint collect`
        hint = f"{begun} is a recording that was interrupted: repeat its `counterpoint collect` command"
        advice = f"check the path{id_advice(path, 'data set')}"
        raise BadInputError(path, "nothing there", "a data set", hint if begun.is_dir() else advice)
    otherwise = f"a {MANIFESTS[0]} with columns video,instruction, or a folder per task"
    raise BadInputError(
        path,
        "a folder without a data set of a known format" if path.is_dir() else "a file",
        f"one of: {'; '.join(kind.files for kind in FORMATS.values())}",
        media_advice(path) or f"check the path; videos of your own need {otherwise}",
    )


def open_dataset(
    path: str | Path,
    *,
    split: str | None = None,
    camera: str | None = None,
    dialect: str | None = None,
    instruction_key: str | None = None,
    on_bad_row: OnBadRow = raise_error,
) -> EpisodeStore:
    """Open a data set of any format that this library or an installed package reads.

    Args:
        path: The data set: a LeRobot v3.0 or v2.1 folder; a video folder or its manifest; folders of videos by task;
            folders of numbered frames; an EPIC-KITCHENS-100 folder; HDF5 files of robomimic, LIBERO, IsaacLab or ALOHA;
            a DrQ-v2 replay folder; an OGBench file; an RLBench data set, task or variation; an RLDS version folder or a
            folder above it; a zarr replay buffer; WebDataset shards; raw folders of DROID or BridgeData; MCAP files of
            ROS 2; or a training store. LeRobot, EPIC-KITCHENS-100 (in tars), WebDataset and video folders may also be
            given by URL, such as `s3://bucket/set` or `hf://datasets/ORG/NAME`. If there is no local folder ORG,
            ORG/NAME or ORG/NAME@REVISION is a data set of the Hub, which is downloaded into the Hub's cache.
        split: One of `split_names(path)`; by default all episodes are read.
        camera: Keep only this camera; by default all cameras.
        dialect: For HDF5, a name of `counterpoint.formats.hdf5.dialects.DIALECTS`; by default it is recognised
            from the content of the files.
        instruction_key: The key of the instruction to use, for data with several instructions per episode
            (`Reader.instructions`); by default each episode's first instruction that is not empty.
        on_bad_row: Called with the error of each part that cannot be used and is left out: a row of a manifest or
            annotation file, an HDF5 demonstration, a replay file, the folder of an episode, or an RLDS shard or record.
            By default the first error is raised.

    Raises:
        BadInputError: The format is unknown, the data set is damaged, or the split, camera or key does not exist.
    """
    kind, path = recognise(path), located(path)
    if is_remote(path / "x") and not kind.streams:
        expected = f"one of {[known.title for known in FORMATS.values() if known.streams]}"
        raise BadInputError(path, f"{kind.title} behind a URL", expected, "download it first")
    options: dict[str, Any] = {"split": split} if kind.splits else {}
    if not kind.splits:
        require_split(path, split, ())
    if kind.dialects:
        options["dialect"] = dialect
    else:
        expected, hint = f"none: {kind.title} has no dialects", "leave it out"
        require(dialect is None, "--dialect", repr(dialect), expected, hint)
    if kind.reports:
        options["on_bad_row"] = on_bad_row
    store: EpisodeStore = imported(kind.reader)(path, **options)
    if instruction_key is not None:
        hint, one = "leave it out", "none: these data have one instruction an episode"
        if not isinstance(store, Reader):
            raise BadInputError("instruction_key", repr(instruction_key), one, hint)
        store = store.instructed(instruction_key)
    if camera is None:
        return store
    from counterpoint.data.store_views import OneCameraStore

    return OneCameraStore(store, camera)


def read_episode_part(
    path: str | Path, episode: int, camera: str | None, start: int, limit: int, dialect: str | None
) -> tuple[Array, Array, int]:
    """Decode frames of one episode from step `start` on; returns the same as `counterpoint.formats.video.read_part`."""
    store = open_dataset(path, camera=camera, dialect=dialect)
    info, first = store.episodes[episode], store.frames(episode, np.array([start]))
    stop = min(info.length, start + max(1, limit // first.nbytes))
    return store.frames(episode, np.arange(start, stop)), store.timestamps(episode)[start:stop], info.length


def split_names(path: str | Path) -> tuple[str, ...]:
    """Return the names of a data set's splits; empty if its format has none."""
    kind = recognise(path)
    return tuple(imported(kind.splits)(located(path))) if kind.splits else ()


def validation_split(path: str | Path, wanted: str | None) -> str | None:
    """Return the split to validate on; `None` if the data set does not have the wanted split.

    Args:
        path: A data set.
        wanted: The split that the user named. `val` also stands for `valid`, which is robomimic's name for it.
    """
    known = split_names(path)
    names = ("val", "valid") if wanted == "val" else (wanted,)
    return next((name for name in names if name in known), None)
