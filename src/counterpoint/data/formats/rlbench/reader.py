"""Files of an RLBench data set: where its episodes lie, and what its mask pictures tell.

`tools/dataset_generator.py` of RLBench writes, for each task::

    TASK/variation0/variation_descriptions.pkl         a list of instructions, all of one meaning
    TASK/variation0/episodes/episode0/low_dim_obs.pkl  a `Demo` of T observations, without their pictures
    TASK/variation0/episodes/episode0/front_rgb/0.png  ... and wrist_rgb, front_mask, front_depth, ...

or, with all variations mixed, `TASK/all_variations/episodes/episode0`, where the descriptions lie in each episode.

RLBench's data sets as an `EpisodeStore`.

Written from RLBench's sources and tested on files made in their image. Nobody has run it on a recording of
CoppeliaSim's here: what `ROBOT_HANDLES` says is others' observation, and pictures may hold surprises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray
from PIL import Image

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.formats.base import OnBadRow, raise_error
from counterpoint.data.formats.rlbench.unpickle import Recorded, load_pickle, to_action, to_state
from counterpoint.data.masks.robot import mask_camera, mask_frames
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = [
    "DESCRIPTIONS",
    "LOW_DIM",
    "ROBOT_HANDLES",
    "RLBenchStore",
    "first_rlbench_episode",
    "mask_handles",
    "rlbench_episodes",
]


LOW_DIM = "low_dim_obs.pkl"
DESCRIPTIONS = "variation_descriptions.pkl"

_EPISODE = re.compile(r"episode(\d+)")
_VARIATION = re.compile(r"variation(\d+)")
_DEPTHS = ("", "episodes", "*/episodes", "*/*/episodes")  # from the folder of episodes up to that of several tasks


def rlbench_episodes(path: Path) -> list[Path]:
    """Folders of episodes in a data set, a task, a variation or a folder of episodes; empty where there are none.

    In the order of tasks by name, of variations and of episodes by number, `all_variations` first.
    """
    return sorted(_episodes(path), key=_place)


def first_rlbench_episode(path: Path) -> Path | None:
    """Any one of them, or `None`; quicker than the whole list."""
    return next(_episodes(path), None)


def mask_handles(picture: UInt8[NDArray[np.uint8], "*lead 3"]) -> Int[NDArray[np.int64], "*lead"]:
    """The simulator's number of the object that each pixel shows: red + 256 green + 65536 blue."""
    handles: NDArray[np.int64] = picture.astype(np.int64) @ np.array((1, 256, 65536))
    return handles


def _episodes(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        return
    for depth in _DEPTHS:
        for low_dim in path.glob(str(Path(depth) / "episode*" / LOW_DIM)):
            if _EPISODE.fullmatch(low_dim.parent.name):
                yield low_dim.parent


def _place(episode: Path) -> tuple[str, int, int]:
    variation = episode.parent.parent
    number = _VARIATION.fullmatch(variation.name)
    found = _EPISODE.fullmatch(episode.name)
    return variation.parent.name, int(number[1]) if number else -1, int(found[1]) if found else -1


ROBOT_HANDLES = (31, 34, 35, 39, 40, 41, 42, 43, 44, 45, 46)
"""CoppeliaSim's numbers of the Panda's eight links, its hand and its two fingers in RLBench's scene.

They are in the scene before any task is loaded, so they are the same in every episode; that is what users of the
masks report, and it is unverified. `RLBenchEnv.robot_handles` reads them from a running simulator.
"""

_CAMERAS = ("front", "wrist", "left_shoulder", "right_shoulder", "overhead")
_FPS = 20.0  # RLBench's step is 0.05 s; the files do not say
_FIELDS = (("joint_positions", 7), ("gripper_pose", 7), ("gripper_open", 1))


@dataclass(frozen=True)
class _Demo:
    """An episode's folder and numbers: actions float32 [T, 7] and state float32 [T, 14]."""

    folder: Path
    actions: Array
    state: Array


class RLBenchStore(EpisodeStore):
    """Demonstrations of RLBench, their pictures read from the disk when asked for.

    Of the T + 1 observations of a recording come T steps: an action is the pose in which the gripper is found at the
    next observation, which is what an inverse-kinematics controller has to be asked for, and the last observation,
    that follows no action, is left out. Actions have seven numbers and states fourteen; see
    `counterpoint.data.formats.rlbench.unpickle`.

    Cameras are those whose `CAMERA_rgb` folders every episode has, the front one first. RLBench's masks tell the
    object of each pixel; `front_mask` and its like tell here which pixels show the robot. A camera has none where
    there are no mask pictures, or none of the robot's numbers is in the first of them.

    An episode's instruction is the first of its variation's descriptions. RLBench keeps successful demonstrations
    alone, so each is told to have succeeded.

    Args:
        path: A folder of tasks, of one task's variations, of one variation, or of episodes.
        robot_handles: Numbers of the robot's objects in the masks.
        on_bad_row: Told of each episode that cannot be used, which is then left out; by default the first one raises.

    Raises:
        BadInputError: When an episode is damaged, lacks numbers or pictures, or has other cameras than the first.
    """

    def __init__(
        self, path: str | Path, *, robot_handles: Collection[int] = ROBOT_HANDLES, on_bad_row: OnBadRow = raise_error
    ) -> None:
        self.path, self.robot_handles = Path(path), tuple(sorted(robot_handles))
        self._demos: list[_Demo] = []
        episodes: list[EpisodeInfo] = []
        pictures: tuple[str, ...] = ()
        for folder in rlbench_episodes(self.path):
            try:
                demo = _read(folder)
                seen = _pictured(folder, len(demo.actions))
                if pictures and seen != pictures:
                    raise BadInputError(
                        folder,
                        f"cameras {list(seen)}",
                        f"{list(pictures)}, as in {self._demos[0].folder}",
                        "record every episode with the same cameras",
                    )
                episodes.append(EpisodeInfo(len(demo.actions), _instruction(folder), _FPS, True))
            except BadInputError as error:
                on_bad_row(error)
                continue
            pictures = seen
            self._demos.append(demo)
        self.episodes = tuple(episodes)
        masks = [mask_camera(camera) for camera in pictures if self._shows_robot(camera)]
        self.cameras = (*pictures, *masks)

    @property
    def fingerprint(self) -> str:
        """Digest of each pickle's place, size and time of change, and of the robot's numbers."""
        digest = hashlib.sha256(f"{self.robot_handles}".encode())
        for demo in self._demos:
            stat = (demo.folder / LOW_DIM).stat()
            place = demo.folder.relative_to(self.path)
            digest.update(f"{place}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        """uint8 [N, H, W, 3]; of a mask, 255 on the robot and 0 off it.

        Raises:
            BadInputError: When there is no such camera or a picture cannot be read.
        """
        name = camera or self.cameras[0]
        if name not in self.cameras:
            raise BadInputError("camera", repr(name), f"one of {list(self.cameras)}", "name a camera the data has")
        mask = name not in _CAMERAS
        folder = self._demos[episode].folder / (name if mask else f"{name}_rgb")
        wanted, places = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        pictures = [_picture(folder / f"{step}.png") for step in wanted]
        if len({picture.shape for picture in pictures}) > 1:
            raise BadInputError(folder, "pictures of several sizes", "one size", "record the episode again")
        stacked = np.stack(pictures)
        if mask:
            stacked = mask_frames(np.isin(mask_handles(stacked), self.robot_handles))
        return np.ascontiguousarray(stacked[places])

    def timestamps(self, episode: int) -> Array:
        """float64 [T]."""
        return np.arange(self.episodes[episode].length) / _FPS

    def actions(self, episode: int) -> Array | None:
        """float32 [T, 7]."""
        return self._demos[episode].actions

    def state(self, episode: int) -> Array | None:
        """float32 [T, 14]."""
        return self._demos[episode].state

    def rewards(self, episode: int) -> Array | None:
        """`None`: the files have none."""
        return None

    def _shows_robot(self, camera: str) -> bool:
        """Whether the first mask picture of a camera is there and has the robot in it."""
        first = self._demos[0].folder / mask_camera(camera) / "0.png"
        return first.is_file() and bool(np.isin(mask_handles(_picture(first)), self.robot_handles).any())


def _read(folder: Path) -> _Demo:
    """The numbers of an episode's pickle."""
    where = folder / LOW_DIM
    recorded = load_pickle(where)
    steps = getattr(recorded, "_observations", recorded)
    if not isinstance(steps, list) or len(steps) < 2 or not all(isinstance(step, Recorded) for step in steps):
        raise BadInputError(
            where,
            f"{type(steps).__name__} of {len(steps)}" if isinstance(steps, list) else "no list",
            "a Demo of at least two observations",
            "record the episode again",
        )
    joints, poses, opened = (_numbers(where, steps, name, size) for name, size in _FIELDS)
    actions = to_action(poses[1:], opened[1:, 0])
    return _Demo(folder, actions, to_state(joints[:-1], poses[:-1], opened[:-1, 0]))


def _numbers(where: Path, steps: list[Any], name: str, size: int) -> Array:
    """An attribute of all observations: float64 [T, size]."""
    try:
        values = np.array([np.ravel(np.asarray(getattr(step, name))) for step in steps], np.float64)
        good = values.shape == (len(steps), size) and bool(np.isfinite(values).all())
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good:
        raise BadInputError(
            where,
            f"observations without {name}, or with other numbers",
            f"{size} finite number{'s' if size > 1 else ''} a step",
            f"record with {name} switched on in the ObservationConfig",
        )
    return values


def _pictured(folder: Path, steps: int) -> tuple[str, ...]:
    """Cameras with a picture of the first and of the last step."""
    there = tuple(camera for camera in _CAMERAS if (folder / f"{camera}_rgb").is_dir())
    for camera in there:
        for step in (0, steps - 1):
            if not (folder / f"{camera}_rgb" / f"{step}.png").is_file():
                raise BadInputError(
                    folder / f"{camera}_rgb",
                    f"no {step}.png",
                    f"0.png to {steps}.png, one of each observation",
                    "record the episode again",
                )
    if not there:
        raise BadInputError(
            folder,
            "no pictures",
            f"some of {', '.join(f'{camera}_rgb' for camera in _CAMERAS)}",
            "record with a camera's rgb switched on in the ObservationConfig",
        )
    return there


def _picture(path: Path) -> Array:
    """uint8 [H, W, 3]."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadInputError(
            path,
            f"a picture that cannot be read ({str(error)[:100]})",
            "a PNG, as RLBench writes it",
            "record the episode again",
        ) from None


def _instruction(folder: Path) -> str:
    """The first description of the episode's variation; the task's name in words where there is none."""
    variation = folder.parent.parent
    for holder in (folder, variation):
        file = holder / DESCRIPTIONS
        if file.is_file():
            told = load_pickle(file)
            if not isinstance(told, list) or not told or not all(isinstance(text, str) for text in told):
                raise BadInputError(
                    file, f"{type(told).__name__}", "a list of at least one instruction", "record the variation again"
                )
            return str(told[0])
    return variation.resolve().parent.name.replace("_", " ")
