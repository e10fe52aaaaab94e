"""The reader of DROID's raw folders: videos at full resolution, and numbers at 15 steps a second.

::

    LAB/success/2023-05-15/Mon_May_15_00:51:15_2023/    an episode; episodes of LAB/failure did not succeed
        metadata_UUID.json                  success, current_task, trajectory_length
        trajectory.h5                       action/NAME, observation/robot_state/NAME: [T, n] or [T]
                                            observation/camera_type/SERIAL: [T], 0: on the wrist, otherwise exterior
        recordings/MP4/SERIAL.mp4           the left view of a stereo camera, one frame a step
        recordings/MP4/SERIAL-stereo.mp4, recordings/SVO/SERIAL.svo    both views; not read
    aggregated-annotations-030724.json      {UUID: {"language_instruction1": ..., "language_instruction2": ...}}

This reader is written from DROID's documentation and sources, and tested on files generated in that form.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, Reader, first_text, raise_error, read_alike
from counterpoint.formats.boundary import as_mapping, as_whole, parsing, read_bytes
from counterpoint.formats.hdf5.opening import import_h5py, open_hdf5
from counterpoint.formats.recognition import DROID_NUMBERS, droid_episodes
from counterpoint.formats.video import probe_video, read_frames

_FPS = 15.0  # DROID's control rate; the files do not record it
_SLACK = 2  # maximum difference between the number of frames of a video and the number of steps
_TASK = "current_task"
_ANNOTATIONS = ("aggregated-annotations-*.json", "droid_language_annotations.json")
_ABOVE = 4  # levels from an episode up to the folder of the annotations
_ACTIONS = (("action/cartesian_position", 6), ("action/gripper_position", 1))
_ROBOT, _TYPES = "observation/robot_state", "observation/camera_type"
_STATE = ((f"{_ROBOT}/cartesian_position", 6), (f"{_ROBOT}/gripper_position", 1), (f"{_ROBOT}/joint_positions", 7))
_VECTORS = {"actions": _ACTIONS, "state": _STATE}
_EXPECTED = "numbers as DROID records them"
_HINT = "download this episode again, or remove its folder"


@dataclass(frozen=True)
class _Recording:
    """An episode: folder, cameras, videos, length, outcome according to its folder and its files, instructions."""

    folder: Path
    cameras: tuple[str, ...]
    videos: tuple[Path, ...]
    length: int
    steps: int  # in trajectory.h5
    sorted_as: bool | None
    recorded_as: bool | None
    words: Mapping[str, str]


class DroidStore(Reader):
    """Episodes of DROID's raw folders, their frames decoded on demand.

    - Step t holds frame t of each video, and row t of the numbers. The videos' own times are not used. A video may
      lack the last one or two frames: the episode then ends where its shortest video ends.
    - Cameras have the names of DROID's RLDS version: `exterior_image_1_left`, `exterior_image_2_left`,
      `wrist_image_left`. Exterior cameras are numbered in the order of their serial numbers.
    - Actions and state have the same numbers as in the RLDS version. Action: the commanded Cartesian position (x, y, z
      in metres; Euler angles xyz in radians), then the gripper (0 open, 1 closed). State: the measured Cartesian
      position, the gripper, seven joint angles.
    - Success is taken from the folder's name, `success` or `failure`, or else from the metadata or `trajectory.h5`.
    - Instructions come from the annotations, a file in the given folder or above it, under the keys
      `language_instruction1` to `3`. The last key, `current_task`, is the kind of task that the collector chose, such
      as "Move object into or out of container".

    Args:
        path: An episode's folder, or a folder above it, up to the folder of all laboratories.
        on_bad_row: Called with the error of each episode that cannot be used and is left out; by default the first
            error is raised.

    Raises:
        BadInputError: When an episode is damaged, lacks its videos, or has other cameras than the first episode.
        MissingExtraError: When `h5py` is not installed.
    """

    rate_recorded = False

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        file, notes = _annotations(self.path)
        folders = sorted(droid_episodes(self.path))
        found = self._found = read_alike(folders, lambda folder: _read(folder, notes), on_bad_row, "cameras")
        self.cameras = found[0].cameras if found else ()
        keys = sorted({key for one in found for key in one.words} - {_TASK})
        self.instructions = {key: [one.words.get(key, "") for one in found] for key in (*keys, _TASK)}
        texts = (first_text(words) for words in zip(*self.instructions.values(), strict=True))
        self.episodes = tuple(
            EpisodeInfo(one.length, text, _FPS, one.recorded_as if one.sorted_as is None else one.sorted_as)
            for one, text in zip(found, texts, strict=True)
        )
        self.names = [one.folder for one in found]
        self.files = [each for one in found for each in (one.folder / DROID_NUMBERS, *one.videos)]
        self.identity = [str(one.folder.relative_to(self.path)) for one in found], self.cameras
        annotated = sum(any(key != _TASK and text for key, text in one.words.items()) for one in found)
        self.facts = {"annotations": f"{file.name}, of {annotated} episodes" if file else f"no {_ANNOTATIONS[0]}"}
        short = Counter(one.steps - one.length for one in found)
        told = ", ".join(f"{n} by {less} step{'s'[: less > 1]}" for less, n in sorted(short.items()) if less)
        self.facts |= {"cut to their videos": f"episodes: {told}"} if told else {}
        stereo = any(next(one.videos[0].parent.glob("*-stereo.mp4"), None) for one in found)
        self.left_out = ("stereo views (*-stereo.mp4)",) if stereo else ()

    def findings(self) -> Iterator[BadInputError]:
        """Yield the episodes whose folder and files name different outcomes."""
        for one in self._found:
            if None not in (one.sorted_as, one.recorded_as) and one.sorted_as != one.recorded_as:
                found = f"success {str(one.recorded_as).lower()} in a folder of {one.folder.parent.parent.name}"
                yield BadInputError(one.folder, found, "the same outcome", "move the episode, or correct its metadata")

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        return read_frames(self._found[episode].videos[self.cameras.index(camera)], steps)

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions [T, 7] or state [T, 14]."""
        where = self._found[episode].folder / DROID_NUMBERS
        if name not in _VECTORS:
            return None
        with open_hdf5(where, _EXPECTED) as file, parsing(where, _EXPECTED, _HINT):
            parts = [_part(file, part)[()].reshape(-1, size) for part, size in _VECTORS[name]]
            return np.concatenate(parts, axis=1, dtype=np.float64)[: self._found[episode].length]


def _annotations(path: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the file of annotations in a folder or above it, and its content; `None` and {} if there is none."""
    here = path.resolve()
    for folder in (here, *here.parents[:_ABOVE]):
        files = sorted(file for name in _ANNOTATIONS for file in folder.glob(name))
        names = ", ".join(file.name for file in files)
        require(len(files) < 2, folder, f"several files of annotations: {names}", "one", "keep one of them")
        if files:
            with parsing(files[0], "a JSON object of instructions by episode", "download this file again"):
                return files[0], as_mapping(json.loads(read_bytes(files[0])))
    return None, {}


def _read(folder: Path, notes: Mapping[str, Any]) -> _Recording:
    where = folder / DROID_NUMBERS
    uuid, about = _metadata(folder)
    with open_hdf5(where, _EXPECTED) as file, parsing(where, _EXPECTED, _HINT):
        steps = {part: _rows(where, file, part, size) for part, size in (*_ACTIONS, *_STATE)}
        types = {serial: int(_part(file, f"{_TYPES}/{serial}")[:1].reshape(1)[0]) for serial in file[_TYPES]}
        attributes = {name: file.attrs[name] for name in ("success", "failure", _TASK) if name in file.attrs}
    if "trajectory_length" in about:
        with parsing(folder, "metadata as DROID writes them", _HINT):
            steps["trajectory_length"] = as_whole(about["trajectory_length"])
    length = steps[_ACTIONS[0][0]]
    differing = ", ".join(f"{part} {count}" for part, count in steps.items())
    require(length > 0 and set(steps.values()) == {length}, where, differing, "one row a step in every part", _HINT)
    videos = _videos(folder, types)
    counts = {name: probe_video(video).frames for name, video in videos.items()}
    for name, count in counts.items():
        off = abs(count - length)
        require(off <= _SLACK, videos[name], f"{count} frames for {length} steps", "one frame a step", _HINT)
    outcome = folder.resolve().parent.parent.name
    words = {key: _text(value) for key, value in _noted(folder, notes, uuid).items()}
    words[_TASK] = _text(about.get(_TASK) or attributes.get(_TASK))
    said = about.get("success", attributes.get("success"))
    recorded = bool(said) if isinstance(said, bool | np.bool_) else None
    return _Recording(
        folder,
        tuple(videos),
        tuple(videos.values()),
        min(length, *counts.values()),
        length,
        outcome == "success" if outcome in ("success", "failure") else None,
        recorded,
        words,
    )


def _metadata(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """Return an episode's UUID and metadata; both are empty if the episode was not processed after recording."""
    files = sorted(folder.glob("metadata_*.json"))
    found = f"{len(files)} files metadata_*.json"
    require(len(files) < 2, folder, found, "one, named by the episode's UUID", "remove what is not of this episode")
    if not files:
        return "", {}
    with parsing(files[0], "a JSON object", _HINT):
        return files[0].stem.removeprefix("metadata_"), as_mapping(json.loads(read_bytes(files[0])))


def _noted(folder: Path, notes: Mapping[str, Any], uuid: str) -> Mapping[str, Any]:
    with parsing(f"the annotations of {folder}", "an object of texts", "download the file of annotations again"):
        return as_mapping(notes.get(uuid, {}))


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _part(file: Any, name: str) -> Any:
    """Return an array of numbers in an HDF5 file, not yet read; raise `ValueError` for anything else."""
    part = file.get(name)
    if not isinstance(part, import_h5py().Dataset) or part.ndim == 0 or part.dtype.kind not in "biuf":
        raise ValueError(f"no array of numbers at {name}")
    return part


def _rows(where: Path, file: Any, part: str, size: int) -> int:
    """Return the length T of an array [T, size], or [T] if `size` is 1, without reading the array."""
    shape = tuple(_part(file, part).shape)
    good = len(shape) in (1, 2) and (shape[1:] or (1,)) == (size,)
    require(good, f"{where}, {part}", f"the shape {list(shape)}", f"[T, {size}]", _HINT)
    return int(shape[0])


def _videos(folder: Path, types: Mapping[str, int]) -> dict[str, Path]:
    """Return the video of each camera that has one, in the order of the cameras' names."""
    recordings = folder / "recordings" / "MP4"
    hands = [serial for serial, kind in sorted(types.items()) if kind == 0]
    others = [serial for serial, kind in sorted(types.items()) if kind != 0]
    found = f"{len(hands)} cameras on the wrist: {', '.join(hands)}"
    require(len(hands) < 2, folder / DROID_NUMBERS, found, "one at most", _HINT)
    named = {f"exterior_image_{number}_left": serial for number, serial in enumerate(others, 1)}
    if hands:
        named["wrist_image_left"] = hands[0]
    there = {name: recordings / f"{serial}.mp4" for name, serial in named.items()}
    there = {name: video for name, video in there.items() if video.is_file()}
    expected = " or ".join(f"{serial}.mp4" for serial in named.values()) or "a camera in observation/camera_type"
    hint = "download it, make it from recordings/SVO with DROID's svo_to_mp4.py, or remove the episode's folder"
    require(there, recordings, "no video of a camera", expected, hint)
    return there
