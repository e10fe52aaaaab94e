"""The reader of BridgeData's raw folders: images as recorded, before any conversion.

::

    .../TASK/00/2022-01-01_00-00-00/raw/traj_group0/traj0/
        images0/im_0.jpg        T + 1 images of a camera; images1, ... of further cameras; depth_images0: not read
        obs_dict.pkl            full_state [T + 1, 7] and more
        policy_out.pkl          T actions [7], each as an array or in a dictionary under `actions`
        lang.txt                instructions, one a line, and lines with the annotators' confidence

Step t holds image t, state t and action t, as in the conversion by BridgeData's authors
(`data_processing/bridgedata_raw_to_numpy.py` of bridge_data_v2). This reader is written from that script and tested on
files generated in the form that it reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo, check_finite
from counterpoint.errors import require
from counterpoint.formats.base import OnBadRow, Reader, first_text, raise_error, read_each, stack_images
from counterpoint.formats.boundary import as_numbers, decode_image, parsing, read_bytes
from counterpoint.formats.pickles import load_pickle
from counterpoint.formats.recognition import BRIDGE_ACTIONS, BRIDGE_STATE, bridge_trajectories

_FPS = 5.0  # BridgeData's control rate
_NUMBERS = 7
_WORDS = "lang.txt"
_CAMERA = re.compile(r"images(\d+)")
_IMAGE = re.compile(r"im_(\d+)\.jpg")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}")
_PROMPT = "2021-07-23"  # until this day, an image was recorded one step late
_HINT = "download this trajectory again, or remove its folder"


@dataclass(frozen=True)
class _Trajectory:
    """A trajectory: folder, actions and state (float64 [T, 7]), cameras, number of the first image, instructions."""

    folder: Path
    actions: Array
    state: Array
    cameras: tuple[str, ...]
    first: int
    words: list[str]


class BridgeStore(Reader):
    """Trajectories of BridgeData's raw folders, their images decoded on demand.

    - T + 1 images give T steps: the last image follows the last action and is left out. Data recorded before
      23 July 2021 have images that are one step late: there image t + 1 and state t + 1 go with action t, which leaves
      one step fewer, as in the authors' conversion. The folder's date decides.
    - Cameras have the names of BridgeData's RLDS version: `image_0` is the folder `images0`. Only cameras that all
      trajectories have are read; `counterpoint data info` names the others.
    - Actions: the change of the gripper's position (metres) and rotation (Euler angles, radians), and the gripper (1
      opens). State: position, Euler angles, and the gripper's opening.
    - The instruction is the first line of `lang.txt`; further lines are other people's words for the same trajectory,
      under the keys `line_2` and so on.
    - Pickles are read without running any code that they name.

    Args:
        path: A trajectory's folder, or a folder above it, up to the folder of the whole data set.
        on_bad_row: Called with the error of each trajectory that cannot be used and is left out; by default the first
            error is raised.

    Raises:
        BadInputError: When a trajectory is damaged, or its parts differ in length.
    """

    rate_recorded = False

    def __init__(self, path: str | Path, *, on_bad_row: OnBadRow = raise_error) -> None:
        self.path = Path(path)
        folders = sorted(bridge_trajectories(self.path), key=_order)
        found = self._found = [one for _, one in read_each(folders, _read, on_bad_row)]
        every = sorted({camera for one in found for camera in one.cameras})
        counts = {camera: sum(camera in one.cameras for one in found) for camera in every}
        self.cameras = tuple(camera for camera in every if counts[camera] == len(found))
        listed = ", ".join(f"{camera} in {count} of {len(found)}" for camera, count in counts.items())
        hint = "read the trajectories of one camera arrangement, a folder above them, at a time"
        require(self.cameras or not found, self.path, f"no camera of all trajectories: {listed}", "one", hint)
        lines = list(zip_longest(*(one.words for one in found), fillvalue="")) or [("",) * len(found)]
        self.instructions = {f"line_{number}": texts for number, texts in enumerate(lines, 1)} if lines[1:] else {}
        self.episodes = tuple(EpisodeInfo(len(one.actions), first_text(one.words), _FPS) for one in found)
        self.names = [one.folder for one in found]
        self.files = [one.folder / name for one in found for name in (BRIDGE_STATE, BRIDGE_ACTIONS)]
        self.identity = [str(one.folder.relative_to(self.path)) for one in found], self.cameras
        some = [f"camera {name} (in {counts[name]} of {len(found)} trajectories)" for name in every]
        self.unread = tuple(sorted({part.name for one in found for part in one.folder.glob("depth_images*")}))
        self.left_out = (
            *(text for name, text in zip(every, some, strict=True) if name not in self.cameras),
            *(f"{name} (depth images)" for name in self.unread),
        )

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]."""
        found = self._found[episode]
        paths = [found.folder / camera.replace("_", "s") / f"im_{found.first + step}.jpg" for step in steps]
        return stack_images((path, decode_image(path, read_bytes(path), ["JPEG"])) for path in paths)

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions or state, [T, 7]; the files have no rewards."""
        return getattr(self._found[episode], name) if name in ("actions", "state") else None


def _order(folder: Path) -> tuple[str, list[int]]:
    """Return a sorting key: collections by path, groups and trajectories by number."""
    numbers = [int(digits) for part in folder.parts[-2:] for digits in re.findall(r"\d+$", part)]
    return str(folder.parent.parent), numbers


def _read(folder: Path) -> _Trajectory:
    state_file, action_file = folder / BRIDGE_STATE, folder / BRIDGE_ACTIONS
    observed, policy = load_pickle(state_file), load_pickle(action_file)
    found = type(observed).__name__
    require(isinstance(observed, dict), state_file, found, "a dictionary of observations", _HINT)
    state = _numbers(state_file, observed.get("full_state"), "full_state")
    require(isinstance(policy, list), action_file, type(policy).__name__, "a list of actions", _HINT)
    rows = [one.get("actions") if isinstance(one, dict) else one for one in policy]
    actions = _numbers(action_file, rows, "actions")
    images = _images(folder)
    counts = {"full_state": len(state), **images}
    steps, late = len(actions), _is_late(folder)
    differing = ", ".join(f"{name} {count}" for name, count in counts.items())
    expected = f"{steps + 1} of each, one more than actions"
    require(set(counts.values()) == {steps + 1}, folder, f"{differing}, for {steps} actions", expected, _HINT)
    require(steps > late, folder, f"{steps} actions", f"{late + 1} or more", _HINT)
    return _Trajectory(folder, actions[: steps - late], state[late:steps], tuple(images), int(late), _words(folder))


def _numbers(where: Path, values: Any, name: str) -> Array:
    """Return the actions or the state as float64 [T, 7]."""
    try:
        rows = [as_numbers(row).ravel() for row in values] if isinstance(values, list) else as_numbers(values)
        array = np.array(rows, np.float64)
    except (ValueError, TypeError):
        array = np.zeros(0)
    good = array.ndim == 2 and len(array) > 0 and array.shape[1] == _NUMBERS
    require(good, where, f"no such {name}", f"{name} of {_NUMBERS} numbers a step", _HINT)
    check_finite(f"{where}, {name}", array)
    return array


def _images(folder: Path) -> dict[str, int]:
    """Return the number of images of each camera; the images must be numbered from 0 without a gap."""
    found: dict[str, int] = {}
    cameras = ((_CAMERA.fullmatch(part.name), part) for part in sorted(folder.iterdir()))
    for name, part in ((name, part) for name, part in cameras if name and part.is_dir()):
        numbers = {int(number[1]) for file in part.iterdir() if (number := _IMAGE.fullmatch(file.name))}
        gap = next((at for at in range(len(numbers)) if at not in numbers), None)
        require(gap is None, part, f"no im_{gap}.jpg", "images numbered from 0 without a gap", _HINT)
        found[f"image_{name[1]}"] = len(numbers)
    require(found, folder, "no folder of images", "images0", _HINT)
    return found


def _is_late(folder: Path) -> bool:
    dated = next((part for part in reversed(folder.resolve().parts) if _DATE.fullmatch(part)), _PROMPT)
    return dated < _PROMPT


def _words(folder: Path) -> list[str]:
    """Return the lines of `lang.txt` that are instructions."""
    file = folder / _WORDS
    if not file.is_file():
        return []
    with parsing(file, "UTF-8 text", _HINT):
        lines = read_bytes(file).decode().splitlines()
    return [line.strip() for line in lines if line.strip() and "confidence" not in line]
