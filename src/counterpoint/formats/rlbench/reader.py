"""The reader of RLBench's data sets.

`tools/dataset_generator.py` of RLBench writes, for each task::

    TASK/variation0/variation_descriptions.pkl         a list of instructions with the same meaning
    TASK/variation0/episodes/episode0/low_dim_obs.pkl  a `Demo` of T observations, without their images
    TASK/variation0/episodes/episode0/front_rgb/0.png  ... and wrist_rgb, front_mask, front_depth, ...

or, with all variations mixed, `TASK/all_variations/episodes/episode0`, where each episode holds its descriptions.

This reader is written from RLBench's sources and tested on files generated in their format. It has never been tested on
a recording of CoppeliaSim.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray

from counterpoint.data.episode import Array, EpisodeInfo, check_finite
from counterpoint.data.robot_masks import mask_camera, mask_frames
from counterpoint.errors import require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_alike, stack_images
from counterpoint.formats.boundary import as_numbers, decode_image, read_bytes
from counterpoint.formats.pickles import Recorded, load_pickle
from counterpoint.formats.recognition import RLBENCH_EPISODE, RLBENCH_NUMBERS, rlbench_episodes
from counterpoint.formats.rlbench.poses import to_action, to_state

ROBOT_HANDLES = (31, 34, 35, 39, 40, 41, 42, 43, 44, 45, 46)
"""CoppeliaSim's numbers of the Panda's eight links, its hand and its two fingers in RLBench's scene.

These objects are in the scene before any task is loaded, so their numbers are the same in every episode. Users of the
masks report this; it has not been verified for this library. `RLBenchTask.robot_handles` reads the numbers from a
running simulator.
"""

_DESCRIPTIONS = "variation_descriptions.pkl"
_CLASSES = frozenset({("rlbench.demo", "Demo"), ("rlbench.backend.observation", "Observation")})
_VARIATION = re.compile(r"variation(\d+)")
_CAMERAS = ("front", "wrist", "left_shoulder", "right_shoulder", "overhead")
_FPS = 20.0  # RLBench's step is 0.05 s; the files do not record it
_FIELDS = (("joint_positions", 7), ("gripper_pose", 7), ("gripper_open", 1))
_HINT = "record the episode again"


def _order(episode: Path) -> tuple[str, int, int]:
    """Return a sorting key: tasks by name, variations and episodes by number, `all_variations` first."""
    variation = episode.parent.parent
    number, found = _VARIATION.fullmatch(variation.name), RLBENCH_EPISODE.fullmatch(episode.name)
    return variation.parent.name, int(number[1]) if number else -1, int(found[1]) if found else -1


@dataclass(frozen=True)
class _Demo:
    """A demonstration: folder, actions and state (float32 [T, 7] and [T, 14]), cameras and instruction."""

    folder: Path
    actions: Array
    state: Array
    cameras: tuple[str, ...]
    instruction: str


class RLBenchStore(Reader):
    """Demonstrations of RLBench, their images read from the disk on demand.

    A recording of T + 1 observations gives T steps. The action of a step is the gripper's pose at the next observation,
    which is the target that an inverse-kinematics controller needs; the last observation has no action and is left out.
    Actions have seven numbers and states fourteen; see `counterpoint.formats.rlbench.poses`.

    Cameras are those whose `CAMERA_rgb` folders every episode has, the front camera first. RLBench's masks hold the
    number of the object that each pixel shows; in this reader, `front_mask` marks the pixels of `front` that show the
    robot. A camera has no mask if mask images are missing, or if the first mask image shows no part of the robot.

    An episode's instruction is the first of its variation's descriptions. RLBench keeps only successful demonstrations,
    so each episode counts as a success.

    Args:
        path: The folder of several tasks, of one task, of one variation, or of episodes.
        robot_handles: Numbers of the robot's objects in the masks.
        on_bad_row: Called with the error of each episode that cannot be used and is left out; by default the first
            error is raised.

    Raises:
        BadInputError: When an episode is damaged, lacks numbers or images, or has cameras that differ from the
            first episode's.
    """

    rate_recorded = False

    def __init__(
        self, path: str | Path, *, robot_handles: Collection[int] = ROBOT_HANDLES, on_bad_row: OnBadRow = raise_error
    ) -> None:
        self.path, self.robot_handles = Path(path), tuple(sorted(robot_handles))
        self._demos = read_alike(sorted(rlbench_episodes(self.path), key=_order), _read, on_bad_row, "cameras")
        self.episodes = tuple(EpisodeInfo(len(d.actions), d.instruction, _FPS, True) for d in self._demos)
        self.names = folders = [demo.folder for demo in self._demos]
        self.files = [folder / RLBENCH_NUMBERS for folder in folders]
        self.identity = [str(folder.relative_to(self.path)) for folder in folders], self.robot_handles
        cameras = self._demos[0].cameras if self._demos else ()
        self.unread = tuple(sorted(part.name for folder in folders[:1] for part in folder.glob("*_depth")))
        self.cameras = (*cameras, *(mask_camera(camera) for camera in cameras if self._shows_robot(camera)))

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        """Return the images, uint8 [N, H, W, 3]; masks are 255 on the robot and 0 off it."""
        mask = camera not in _CAMERAS
        folder = self._demos[episode].folder / (camera if mask else f"{camera}_rgb")
        paths = [folder / f"{step}.png" for step in steps]
        images = stack_images((path, _image(path)) for path in paths)
        return mask_frames(np.isin(_handles(images), self.robot_handles)) if mask else images

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return actions and state; the files have no rewards or other vectors."""
        return getattr(self._demos[episode], name, None)

    def _shows_robot(self, camera: str) -> bool:
        first = self._demos[0].folder / mask_camera(camera) / "0.png"
        return first.is_file() and bool(np.isin(_handles(_image(first)), self.robot_handles).any())


def _handles(image: UInt8[NDArray[np.uint8], "*lead 3"]) -> Int[NDArray[np.int64], "*lead"]:
    """Return the simulator's number of the object that each pixel shows: red + 256 green + 65536 blue."""
    handles: NDArray[np.int64] = image.astype(np.int64) @ np.array((1, 256, 65536))
    return handles


def _read(folder: Path) -> _Demo:
    where = folder / RLBENCH_NUMBERS
    recorded = load_pickle(where, _CLASSES)
    steps = getattr(recorded, "_observations", recorded)
    good = isinstance(steps, list) and len(steps) > 1 and all(isinstance(step, Recorded) for step in steps)
    require(good, where, type(steps).__name__, "a Demo of at least two observations", _HINT)
    joints, poses, opened = (_numbers(where, steps, name, size) for name, size in _FIELDS)
    actions = to_action(poses[1:], opened[1:, 0])
    state = to_state(joints[:-1], poses[:-1], opened[:-1, 0])
    return _Demo(folder, actions, state, _cameras(folder, len(actions)), _instruction(folder))


def _numbers(where: Path, steps: list[Any], name: str, size: int) -> Array:
    """Return an attribute of all observations as float64 [T, size]."""
    try:
        values = np.array([as_numbers(getattr(step, name, None)).ravel() for step in steps], np.float64)
    except ValueError:
        values = np.zeros(0)
    good, hint = values.shape == (len(steps), size), "record with it switched on"
    require(good, where, f"observations without {name}", f"{size} numbers a step", hint)
    check_finite(f"{where}, {name}", values)
    return values


def _cameras(folder: Path, steps: int) -> tuple[str, ...]:
    """Return the cameras that have an image of the first step and of the last step."""
    there = tuple(camera for camera in _CAMERAS if (folder / f"{camera}_rgb").is_dir())
    for path in (folder / f"{camera}_rgb" / f"{step}.png" for camera in there for step in (0, steps - 1)):
        require(path.is_file(), path.parent, f"no {path.name}", "one image of each observation", _HINT)
    expected = f"some of {', '.join(f'{camera}_rgb' for camera in _CAMERAS)}"
    require(there, folder, "no images", expected, "record with a camera's rgb switched on")
    return there


def _image(path: Path) -> Array:
    return decode_image(path, read_bytes(path), ["PNG"])


def _instruction(folder: Path) -> str:
    """Return the first description of the episode's variation; without one, the task's name in words."""
    variation = folder.parent.parent
    for file in (folder / _DESCRIPTIONS, variation / _DESCRIPTIONS):
        if file.is_file():
            texts = load_pickle(file, _CLASSES)
            good = isinstance(texts, list) and len(texts) > 0 and all(isinstance(text, str) for text in texts)
            require(good, file, type(texts).__name__, "a list of at least one instruction", _HINT)
            return str(texts[0])
    return variation.resolve().parent.name.replace("_", " ")
