"""Recognition of data sets: the files by which each format is recognised, and the name of its reader."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from counterpoint.errors import require

_ROOM = "counterpoint.formats"


@dataclass(frozen=True)
class Format:
    """A format of data sets.

    Attributes:
        name: The format's name in `counterpoint.formats.FORMATS`.
        title: The format's name as users see it.
        files: The files by which the format is recognised, in words.
        recognises: Function that returns a true value if a file or folder is of this format; it is cheap, because it
            looks only at the names of files.
        reader: "module:class" of the format's `EpisodeStore`, called with the path, `split=` and `on_bad_row=`.
        splits: "module:function" of a function that returns the names of a path's splits; empty for a format without
            splits, whose reader takes no `split`.
        reports: False if the reader takes no `on_bad_row`, because it reads either the whole data set or nothing.
        streams: True if frames are read by byte ranges, so that the data set may be given by URL.
        dialects: True if similar files of this format differ in their meaning, so that the reader takes `dialect=`.
    """

    name: str
    title: str
    files: str
    recognises: Callable[[Path], object]
    reader: str
    splits: str = ""
    reports: bool = True
    streams: bool = False
    dialects: bool = False


# LeRobot and training stores

LEROBOT = Format(
    "lerobot",
    "LeRobot",
    "a LeRobot data set (meta/info.json)",
    lambda path: (path / "meta" / "info.json").is_file(),
    f"{_ROOM}.lerobot.reader:LeRobotStore",
    splits=f"{_ROOM}.lerobot.layout:split_names",
    reports=False,
    streams=True,
)

TRAINING_STORE = Format(
    "training_store",
    "training store",
    "a training store (store.json)",
    lambda path: (path / "store.json").is_file(),
    "counterpoint.data.cache:CachedStore",
    reports=False,
)

# EPIC-KITCHENS-100


def epic_tables(path: Path) -> list[Path]:
    """Return the annotation files in the folder or, if it has none, in its parent.

    The test set is not among them, because it has no narrations.
    """
    for folder in (path, path.parent):
        tables = [folder / f"EPIC_100_{split}.csv" for split in ("train", "validation")]
        if any(table.is_file() for table in tables):
            return [table for table in tables if table.is_file()]
    return []


def epic_frames(path: Path) -> Path | None:
    """Return the folder of PXX folders: the given folder or one inside it."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    for folder in (folder for folder in (path, *inside) if folder.is_dir()):
        if any(re.fullmatch(r"P\d{2}", child.name) and child.is_dir() for child in folder.iterdir()):
            return folder
    return None


EPIC_KITCHENS = Format(
    "epic_kitchens",
    "EPIC-KITCHENS-100",
    "EPIC-KITCHENS-100 (EPIC_100_train.csv beside or above the PXX folders)",
    lambda path: epic_tables(path) and epic_frames(path),
    f"{_ROOM}.epic:EpicKitchensStore.of_folder",
    splits=f"{_ROOM}.epic:epic_splits",
    streams=True,
)

# Folders of videos

MANIFESTS = ("manifest.csv", "manifest.tsv", "manifest.jsonl")
"""The possible names of a manifest."""
VIDEO_ENDINGS, IMAGE_ENDINGS = ("mp4", "mkv", "webm", "mov", "avi"), ("jpg", "jpeg", "png")
_FURTHER_IMAGES = ("bmp", "tif", "tiff", "webp")  # not read
_MOST_LISTED = 10_000  # files that are looked at to give advice
_NUMBERED = re.compile(rf"(.*?)(\d{{1,18}})\.({'|'.join(IMAGE_ENDINGS)})", re.IGNORECASE)
_FURTHER_VIDEOS = (
    "m4v",
    "mpg",
    "mpeg",
    "ts",
    "mts",
    "m2ts",
    "3gp",
    "wmv",
    "flv",
    "gif",
)  # read if a manifest names them
_LITTER = {"Thumbs.db", "desktop.ini", "__MACOSX"}  # names to ignore, as files whose names start with a dot are


def _visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(".") and name not in _LITTER)  # noqa: PTH208


def numbered_images(folder: Path) -> dict[int, str]:
    """Return the names of a folder's numbered images by their numbers, ascending.

    The result is empty unless the folder holds at least two images and nothing else, and their names differ only in
    the number.
    """
    found = [_NUMBERED.fullmatch(name) for name in (_visible(folder) if folder.is_dir() else ())]
    names = {int(match[2]): match[0] for match in found if match}
    alike = len({(match[1], match[3].lower()) if match else None for match in found}) == 1
    return dict(sorted(names.items())) if alike and len(names) == len(found) > 1 else {}


def misfit(folder: Path) -> str:
    """Return a text that says why the images of a folder are not numbered frames."""
    found = {name: _NUMBERED.fullmatch(name) for name in _visible(folder)}
    kinds = Counter((match[1], match[3].lower()) for match in found.values() if match)
    if not kinds or len(found) < 2:
        return f"{next(iter(found), 'nothing')!r} is there" + " alone" * (len(found) < 2)
    (prefix, ending), _ = kinds.most_common(1)[0]
    others = [name for name, match in found.items() if not match or (match[1], match[3].lower()) != (prefix, ending)]
    if others:
        more = f" and {len(others) - 1} more" * (len(others) > 1)
        return f"{others[0]!r}{more} is beside {prefix}NUMBER.{ending}"
    return "two names have the same number"


def frame_folders(path: Path) -> list[Path]:
    """Return the folder if it holds numbered frames, or its subfolders if all of them do; otherwise an empty list."""
    if numbered_images(path):
        return [path]
    inside = [path / name for name in _visible(path)] if path.is_dir() else []
    return inside if all(map(numbered_images, inside)) else []


def task_folders(path: Path) -> dict[Path, list[Path]]:
    """Return the videos in each subfolder; empty unless the folder holds only subfolders with only videos."""
    found: dict[Path, list[Path]] = {}
    for folder in (path / name for name in (_visible(path) if path.is_dir() else ())):
        names = _visible(folder) if folder.is_dir() else []
        if not names or not all(name.lower().endswith(tuple(f".{one}" for one in VIDEO_ENDINGS)) for name in names):
            return {}
        found[folder] = [folder / name for name in names]
    return found


def media_advice(path: Path) -> str:
    """Return advice on how to make a folder of videos, images or their table readable; empty if it holds none."""
    listed = (Path(folder) / name for folder, _, names in os.walk(path) for name in sorted(names) if name[0] != ".")
    files = [(file, file.suffix.lower().lstrip(".")) for file in sorted(islice(listed, _MOST_LISTED))]
    video = next((file for file, ending in files if ending in (*VIDEO_ENDINGS, *_FURTHER_VIDEOS)), None)
    image = next((file for file, ending in files if ending in (*IMAGE_ENDINGS, *_FURTHER_IMAGES)), None)
    packed = next((file for file, _ in files if file.name.lower().endswith(".tar.gz")), None)
    if video is None and image is None:
        return f"unpack shards: gunzip {packed.parent}/*.tar.gz" if packed else ""
    target = path / MANIFESTS[0]
    for file, ending in files:
        if file.parent == path and ending in ("csv", "tsv", "jsonl"):
            return f"counterpoint data manifest {file} {target} --columns video=NAME instruction=NAME"
        if file.parent == path and (ending in ("xlsx", "xls", "ods") or file.stem.lower() == "manifest"):
            return f"save {file.name} as CSV, as {target}, with the columns video and instruction"
    if video is not None:
        beside = "a folder per task must hold nothing but videos, and lie directly in the data's folder"
        return f"write {target} with the columns video,instruction, and a row for {video.relative_to(path)}; {beside}"
    assert image is not None
    if numbered_images(image.parent):
        inside = image.parent.relative_to(path)
        return f"write {target} with the columns video,instruction, and a row for each folder, such as {inside}"
    alone = "must hold only .png or only .jpg images, at least two, whose names differ in their number alone"
    return f"the folder {image.parent} {alone}, and {misfit(image.parent)}"


VIDEO_FOLDER = Format(
    "video_folder",
    "video folder",
    "a video folder (manifest.csv, .tsv or .jsonl)",
    lambda path: path.suffix in (".csv", ".tsv", ".jsonl") or any((path / name).is_file() for name in MANIFESTS),
    f"{_ROOM}.video_folder:VideoFolderStore",
    streams=True,
)

GRADED_TABLES = ("metadata.jsonl", "metadata.parquet")
"""The possible names of a table of videos with grades, in the folder of a split."""

GRADED = Format(
    "graded",
    "videos with grades",
    "videos with grades as RoboReward's (test/metadata.jsonl) or Robometer's (metadata.parquet)",
    lambda path: (
        path.is_dir() and any((path / one / name).is_file() for one in _visible(path) for name in GRADED_TABLES)
    ),
    f"{_ROOM}.graded:GradedStore",
    splits=f"{_ROOM}.graded:graded_splits",
)

TASK_FOLDERS = Format(
    "task_folders",
    "videos in a folder per task",
    "folders of videos, named by their tasks (open the drawer/0.mp4)",
    task_folders,
    f"{_ROOM}.video_folder:TaskFolderStore",
    streams=True,
)

FRAME_FOLDERS = Format(
    "frame_folders",
    "folders of frames",
    "a folder of numbered frames, or a folder of them (run1/frame_00001.png)",
    frame_folders,
    f"{_ROOM}.video_folder:FrameFolderStore",
    streams=True,
)

# RLDS

RLDS_INFO, RLDS_FEATURES = "dataset_info.json", "features.json"


def rlds_folder(path: Path) -> Path | None:
    """Return the version folder at or below a path; `None` if there is none.

    Raises:
        BadInputError: When several versions lie below the path.
    """
    for depth in ("", "*/", "*/*/") if path.is_dir() else ():
        folders = sorted(
            info.parent for info in path.glob(depth + RLDS_INFO) if (info.parent / RLDS_FEATURES).is_file()
        )
        names = ", ".join(str(folder.relative_to(path)) for folder in folders)
        require(len(folders) < 2, path, f"several RLDS data sets: {names}", "one", "name one of these folders")
        if folders:
            return folders[0]
    return None


RLDS = Format(
    "rlds",
    "RLDS (TFRecord)",
    f"RLDS ({RLDS_FEATURES} beside {RLDS_INFO})",
    rlds_folder,
    f"{_ROOM}.rlds.reader:RldsStore",
    splits=f"{_ROOM}.rlds.reader:present_splits",
)

# Zip files: Diffusion Policy's replay buffers, OGBench

ZARR_ENDS = "meta/episode_ends"


def _members(path: Path) -> list[str]:
    """Return the names of a zip file's members; an empty list if the file is damaged or is not a zip file."""
    damage = (OSError, EOFError, zipfile.BadZipFile, ValueError, NotImplementedError, struct.error)
    with contextlib.suppress(*damage), zipfile.ZipFile(path) as archive:
        return archive.namelist()
    return []


def is_zarr_replay(path: Path) -> bool:
    """Return whether a folder or a zip file is a replay buffer."""
    if path.is_dir():
        return (path / ZARR_ENDS).is_dir()
    return path.suffix == ".zip" and any(name.startswith(f"{ZARR_ENDS}/") for name in _members(path))


ZARR_REPLAY = Format(
    "zarr_replay",
    "Diffusion Policy replay buffer",
    f"a zarr replay buffer ({ZARR_ENDS})",
    is_zarr_replay,
    f"{_ROOM}.zarr_replay:ZarrReplayStore",
)

# DROID

DROID_NUMBERS = "trajectory.h5"


def droid_episodes(path: Path) -> Iterator[Path]:
    """Yield the episodes at or below a path, which is an episode, a day, an outcome, a laboratory, or all of DROID."""
    outcomes = [f"{above}{name}/*/*" for above in ("", "*/", "*/*/") for name in ("success", "failure")]
    for depth in ("", "*", "*/*", *outcomes) if path.is_dir() else ():
        for folder in (numbers.parent for numbers in path.glob(str(Path(depth) / DROID_NUMBERS))):
            if (folder / "recordings").is_dir() or next(folder.glob("metadata_*.json"), None):
                yield folder


DROID = Format(
    "droid",
    "DROID folders",
    f"DROID's raw folders ({DROID_NUMBERS} beside recordings/MP4)",
    lambda path: next(droid_episodes(path), None),
    f"{_ROOM}.droid:DroidStore",
)

# HDF5 of robomimic, LIBERO, IsaacLab and ALOHA

ALOHA_NAME = re.compile(r"episode_(\d+)")
"""Name, without its ending, of an HDF5 file that holds one demonstration."""


def hdf5_files(path: Path) -> list[Path]:
    """Return the file itself, or the HDF5 files in the folder; empty if there are none.

    If all files are named `episode_N`, they are sorted by number; otherwise by name.
    """
    if path.is_file():
        return [path] if path.suffix in (".hdf5", ".h5") else []
    files = sorted(file for ending in ("*.hdf5", "*.h5") for file in path.glob(ending))
    numbers = {file: name for file in files if (name := ALOHA_NAME.fullmatch(file.stem))}
    return sorted(files, key=lambda file: int(numbers[file][1])) if len(numbers) == len(files) else files


HDF5 = Format(
    "hdf5",
    "HDF5 of robomimic, LIBERO, IsaacLab or ALOHA",
    "HDF5 files of robomimic, LIBERO, IsaacLab or ALOHA",
    hdf5_files,
    f"{_ROOM}.hdf5.reader:Hdf5Store",
    splits=f"{_ROOM}.hdf5.reader:hdf5_splits",
    dialects=True,
)

# OGBench

OGBENCH_ARRAYS = ("observations", "actions", "terminals")


def is_ogbench(path: Path) -> bool:
    """Return whether a file is a data set of OGBench: an .npz with OGBench's three arrays."""
    return path.suffix == ".npz" and {f"{name}.npy" for name in OGBENCH_ARRAYS} <= set(_members(path))


OGBENCH = Format(
    "ogbench",
    "OGBench",
    "OGBench's NAME.npz",
    is_ogbench,
    f"{_ROOM}.ogbench:OGBenchStore",
    splits=f"{_ROOM}.ogbench:ogbench_files",
)

# DrQ-v2

DRQ_NAME = re.compile(r".*_(\d+)_(\d+)\.npz")
"""Names of the form TIME_NUMBER_LENGTH.npz."""


def drq_files(path: Path) -> list[Path]:
    """Return the files of a folder's episodes in the order of their numbers; empty if there are none."""
    if not path.is_dir():
        return []
    numbered = [(DRQ_NAME.fullmatch(file.name), file) for file in path.glob("*.npz")]
    return [file for _, file in sorted((int(name[1]), file) for name, file in numbered if name)]


DRQ_REPLAY = Format(
    "drq_replay", "DrQ-v2 replay", "a DrQ-v2 replay (TIME_NUMBER_LENGTH.npz)", drq_files, f"{_ROOM}.drq:DrqReplayStore"
)

# RLBench

RLBENCH_NUMBERS = "low_dim_obs.pkl"
RLBENCH_EPISODE = re.compile(r"episode(\d+)")
_DEPTHS = ("", "episodes", "*/episodes", "*/*/episodes")  # for a folder of episodes, up to a folder of tasks


def rlbench_episodes(path: Path) -> Iterator[Path]:
    """Yield the folders of episodes below the folder of a data set, of a task, of a variation, or of episodes."""
    for depth in _DEPTHS if path.is_dir() else ():
        for numbers in path.glob(str(Path(depth) / "episode*" / RLBENCH_NUMBERS)):
            if RLBENCH_EPISODE.fullmatch(numbers.parent.name):
                yield numbers.parent


RLBENCH = Format(
    "rlbench",
    "RLBench data set",
    f"an RLBench data set (episodes/episode0/{RLBENCH_NUMBERS})",
    lambda path: next(rlbench_episodes(path), None),
    f"{_ROOM}.rlbench.reader:RLBenchStore",
)

# WebDataset


def shards(path: Path, split: str | None = None) -> list[Path]:
    """Return the shards in a folder, or in one of its splits; empty if there are none.

    The path of a single shard gives that shard.
    """
    if path.is_file():
        return [path] if path.suffix == ".tar" else []
    splits = shard_splits(path)
    folders = [path / name for name in (splits if split is None else [split])] if splits else [path]
    return [shard for folder in folders for shard in sorted(folder.glob("*.tar")) if shard.is_file()]


def shard_splits(path: Path) -> tuple[str, ...]:
    """Return the names of the splits, which are the subfolders with shards; empty if the folder itself holds shards."""
    if not path.is_dir() or next(path.glob("*.tar"), None):
        return ()
    return tuple(sorted({shard.parent.name for shard in path.glob("*/*.tar")}))


WEBDATASET = Format(
    "webdataset",
    "WebDataset shards",
    "WebDataset's NAME-000000.tar",
    shards,
    f"{_ROOM}.webdataset:WebDatasetStore",
    splits=f"{_ROOM}.recognition:shard_splits",
    streams=True,
)

# BridgeData

BRIDGE_STATE, BRIDGE_ACTIONS = "obs_dict.pkl", "policy_out.pkl"
_TRAJECTORIES = ("", "traj*", "traj_group*/traj*", *(f"{'*/' * depth}raw/traj_group*/traj*" for depth in range(7)))


def bridge_trajectories(path: Path) -> Iterator[Path]:
    """Yield the folders of trajectories: the folder itself, or the folders below it in BridgeData's tree."""
    for depth in _TRAJECTORIES if path.is_dir() else ():
        for state in path.glob(str(Path(depth) / BRIDGE_STATE)):
            if (state.parent / BRIDGE_ACTIONS).is_file():
                yield state.parent


BRIDGE = Format(
    "bridge",
    "BridgeData folders",
    f"BridgeData's raw folders (raw/traj_group0/traj0/{BRIDGE_STATE})",
    lambda path: next(bridge_trajectories(path), None),
    f"{_ROOM}.bridge:BridgeStore",
)

# ROS 2

ROS_TOPICS = "topics.json"


def mcap_files(path: Path) -> list[Path]:
    """Return the file itself, or the MCAP files in a folder and its subfolders; empty if there are none."""
    if path.is_file():
        return [path] if path.suffix == ".mcap" else []
    return sorted(file for depth in ("*.mcap", "*/*.mcap") for file in path.glob(depth))


MCAP = Format(
    "mcap",
    "ROS 2 recordings (MCAP)",
    f"ROS 2 recordings (.mcap; {ROS_TOPICS} beside them names the topics)",
    mcap_files,
    f"{_ROOM}.mcap:McapStore",
)
