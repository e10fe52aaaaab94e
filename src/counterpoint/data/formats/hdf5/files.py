"""HDF5 files of robomimic and LIBERO: how they are opened, and what they say of their environment.

What one HDF5 file of robomimic or LIBERO holds, told without reading a picture.

::

    data            attributes: total; env_args (JSON: env_name, type, env_kwargs); of LIBERO also problem_info (JSON:
                    language_instruction), bddl_file_name, macros_image_convention
    data/demo_I     attributes: num_samples, model_file
        actions     [T, A] in [-1, 1]
        rewards, dones                  [T]
        states      simulator states [T, n]
        obs/KEY     pictures uint8 [T, H, W, 3], proprioception [T, n]
        obs/KEY_mask                    of this library: robot masks uint8 [T, H, W, 1], 255 on the robot
        next_obs/KEY                    (robomimic; not read, being obs one step later)
    mask/NAME       names of demonstrations: `train`, `valid` and other subsets (robomimic's filter keys)

LIBERO's pictures are kept as OpenGL gives them, the bottom row first, unless `macros_image_convention` is "opencv". Its
recorder (`scripts/create_dataset.py`) stepped the simulator first: row t of `obs` is what action t led to.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoint.data.formats.base import OnBadRow
from counterpoint.data.formats.hdf5.instructions import instruction_from_name, instruction_of
from counterpoint.data.masks.robot import MASK_SUFFIX, mask_camera
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = [
    "CONTROL_HZ",
    "LIBERO_STATE",
    "ROBOMIMIC_STATE",
    "Demo",
    "FileLayout",
    "damaged",
    "data_group",
    "env_args",
    "import_h5py",
    "json_attribute",
    "obs_key",
    "open_hdf5",
    "scan",
    "text_of",
]


CONTROL_HZ = 20.0
"""Actions a second where `env_args` does not say; robomimic and LIBERO use no other."""


def import_h5py() -> Any:
    """The package `h5py`.

    Raises:
        MissingExtraError: When it is not installed.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        raise MissingExtraError("h5py", "hdf5") from None
    return h5py


def open_hdf5(path: Path) -> Any:
    """An `h5py.File` to read.

    Raises:
        BadInputError: When there is no such file or it is damaged.
        MissingExtraError: When `h5py` is not installed.
    """
    h5py = import_h5py()
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise BadInputError(
            path,
            "no file" if not path.is_file() else f"a file that is no HDF5, or is damaged ({_line(error)})",
            "an HDF5 file of robomimic or LIBERO",
            "check the path, or download the file again",
        ) from None


def env_args(path: Path) -> dict[str, Any]:
    """What a data set says of the environment it was recorded in: `env_name`, `type`, `env_kwargs`.

    Raises:
        BadInputError: When it does not say.
        MissingExtraError: When `h5py` is not installed.
    """
    with open_hdf5(path) as file:
        args = json_attribute(path, data_group(path, file).attrs, "env_args")
    if not isinstance(args.get("env_name"), str) or not isinstance(args.get("env_kwargs"), dict):
        raise BadInputError(
            f"{path}, data, attribute env_args",
            f"the keys {sorted(args)}" if args else "nothing",
            "JSON with env_name and env_kwargs",
            "name the environment instead, or download the data set again",
        )
    return args


def data_group(path: Path, file: Any) -> Any:
    """The group with a group for each demonstration.

    Raises:
        BadInputError: When there is none.
    """
    if "data" not in file:
        raise damaged(path, f"the groups {sorted(file)}", "a group 'data' with a group for each demonstration")
    return file["data"]


def json_attribute(where: str | Path, attributes: Any, name: str) -> dict[str, Any]:
    """A JSON attribute; empty where it is not there.

    Raises:
        BadInputError: When it is no JSON object.
    """
    text = attributes.get(name)
    if text is None:
        return {}
    try:
        value = json.loads(text_of(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(f"{where}, attribute {name}", f"{text_of(text)[:60]!r}", "a JSON object")
    return value


def text_of(value: Any) -> str:
    """A string that HDF5 keeps as one, or as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    """What is said of a file that lacks something, or has it in another form."""
    return BadInputError(where, found, expected, "download or record it again, or remove the demonstration")


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:120]


ROBOMIMIC_STATE = ("eef_pos", "eef_quat", "gripper_qpos")
"""Proprioception, for each robot in turn (`robot0_eef_pos`, ...): hand position, its quaternion, gripper joints."""

LIBERO_STATE = ("gripper_states", "joint_states")
"""Proprioception: two gripper joints and seven joint angles, what LIBERO's own policies see."""

_IMAGE = "_image"  # ending of the keys of robomimic's pictures
_GYM = 2  # env_args["type"] of environments whose rewards do not tell success


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration.

    Attributes:
        name: `demo_I`.
        length: T, the rows in the file.
        instruction: Its own words, or the file's.
        success: Whether a reward tells of the task being solved; `None` where rewards do not tell.
        rewarded: Whether it has rewards.
    """

    name: str
    length: int
    instruction: str
    success: bool | None
    rewarded: bool


@dataclass(frozen=True, slots=True)
class FileLayout:
    """One file.

    Attributes:
        path: Where it lies.
        fps: Actions a second.
        cameras: Keys of pictures, and of masks: `agentview_image_mask` for `obs/agentview_mask`, see `obs_key`.
        state: Keys of proprioception, in the order they are put together.
        bottom_first: Whether pictures have their bottom row first.
        lead: How many rows an action stands before the observation it was done on: 1 in LIBERO, 0 in robomimic.
        demos: In the order of their numbers.
        masks: Subset -> names of its demonstrations.
    """

    path: Path
    fps: float
    cameras: tuple[str, ...]
    state: tuple[str, ...]
    bottom_first: bool
    lead: int
    demos: tuple[Demo, ...]
    masks: dict[str, frozenset[str]]


def scan(path: Path, on_bad_row: OnBadRow) -> FileLayout:
    """Look at every demonstration of a file.

    Args:
        path: The file.
        on_bad_row: Told of each demonstration that cannot be used, which is then left out.

    Raises:
        BadInputError: When the file is damaged, has no demonstrations, or none has pictures.
        MissingExtraError: When `h5py` is not installed.
    """
    with open_hdf5(path) as file:
        data = data_group(path, file)
        names = sorted((name for name in data if "actions" in data[name] or "obs" in data[name]), key=_number)
        if not names:
            raise damaged(f"{path}, data", "no demonstration", "groups demo_0, demo_1, ... with actions and obs")
        args = json_attribute(path, data.attrs, "env_args")
        problem = json_attribute(path, data.attrs, "problem_info")
        observed: Any = next((data[name]["obs"] for name in names if "obs" in data[name]), {})
        cameras = _cameras(observed)
        if not cameras:
            raise _no_pictures(path, sorted(observed))
        libero = bool(problem) or "agentview_rgb" in cameras
        state = tuple(_state_keys(observed))
        instruction = _instruction(path, args, problem, libero)
        kwargs = args.get("env_kwargs") or {}
        solved = None if args.get("type") == _GYM else float(kwargs.get("reward_scale") or 1.0)
        demos = []
        for name in names:
            try:
                demo = _demo(f"{path}, {name}", data[name], (*map(obs_key, cameras), *state), instruction, solved)
                if demo.length <= int(libero):
                    raise damaged(f"{path}, {name}", "one row", "two or more: LIBERO's first action has no picture")
                demos.append(demo)
            except BadInputError as error:
                on_bad_row(error)
        convention = str(data.attrs.get("macros_image_convention", "opengl"))
        return FileLayout(
            path=path,
            fps=float(kwargs.get("control_freq") or CONTROL_HZ),
            cameras=cameras,
            state=state,
            bottom_first=libero and convention != "opencv",
            lead=int(libero),
            demos=tuple(demos),
            masks={
                name: frozenset(text_of(key) for key in values[()]) for name, values in file.get("mask", {}).items()
            },
        )


def _demo(where: str, group: Any, observed: tuple[str, ...], instruction: str, solved: float | None) -> Demo:
    """Check one demonstration: everything there, and one entry a step."""
    parts = {"actions": group.get("actions"), **{f"obs/{key}": group.get(f"obs/{key}") for key in observed}}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise damaged(where, f"no {', '.join(missing)}", "what the other demonstrations have")
    if parts["actions"].ndim != 2 or parts["actions"].shape[0] == 0:
        raise damaged(f"{where}, actions", f"{parts['actions'].shape}", "[T, A] with at least one step")
    length = int(parts["actions"].shape[0])
    parts |= {name: group[name] for name in ("rewards", "dones", "states") if name in group}
    lengths = {name: int(part.shape[0]) for name, part in parts.items()}
    if "num_samples" in group.attrs:
        lengths["num_samples"] = int(group.attrs["num_samples"])
    differing = {name: count for name, count in lengths.items() if count != length}
    if differing:
        found = ", ".join(f"{name} {count}" for name, count in differing.items())
        raise damaged(where, f"lengths that disagree: actions {length}, {found}", "one entry a step")
    meta = json_attribute(where, group.attrs, "ep_meta")  # robocasa's words are each demonstration's own
    rewards = group["rewards"][()] if "rewards" in group else None
    success = None if rewards is None or solved is None else bool(rewards.max() >= solved - 1e-6)
    return Demo(where.rpartition(", ")[2], length, str(meta.get("lang") or instruction), success, rewards is not None)


def _instruction(path: Path, args: dict[str, Any], problem: dict[str, Any], libero: bool) -> str:
    """The words for a file: LIBERO's in its name, then those in the file, then those for robomimic's task.

    Of LIBERO's 130 tasks, 29 have other words in the file than in the name; its benchmark says those of the name.
    """
    if libero and path.stem.endswith("_demo"):
        return instruction_from_name(path.name)
    words = problem.get("language_instruction") or (args.get("env_kwargs") or {}).get("lang")
    if words:
        return (" ".join(words) if isinstance(words, list) else str(words)).strip().strip('"')
    return instruction_from_name(path.name) if libero else instruction_of(str(args.get("env_name", "")))


def _state_keys(observed: Any) -> list[str]:
    robots = sorted({key.split("_", 1)[0] for key in observed if re.match(r"robot\d+_", key)})
    keys = [f"{robot}_{part}" for robot in robots for part in ROBOMIMIC_STATE] or list(LIBERO_STATE)
    return [key for key in keys if key in observed]


def obs_key(camera: str) -> str:
    """Where under `obs` a camera lies: the mask of `agentview_image` is called `agentview_mask` there."""
    return camera.replace(_IMAGE + MASK_SUFFIX, MASK_SUFFIX)


def _cameras(observed: Any) -> tuple[str, ...]:
    """Pictures, then their masks."""
    pictures = [key for key in observed if _is_picture(observed[key])]
    return (*pictures, *(mask_camera(key) for key in pictures if _is_mask(observed, obs_key(mask_camera(key)))))


def _is_mask(observed: Any, key: str) -> bool:
    values = observed.get(key)
    return values is not None and values.ndim == 4 and values.shape[-1] == 1 and values.dtype == "uint8"


def _is_picture(values: Any) -> bool:
    return bool(values.ndim == 4 and values.shape[-1] == 3 and values.dtype == "uint8")


def _number(name: str) -> tuple[int, str]:
    """Demonstrations in the order of their numbers: demo_2 before demo_10."""
    digits = re.search(r"(\d+)$", name)
    return (int(digits[1]) if digits else -1, name)


def _no_pictures(path: Path, keys: list[str]) -> BadInputError:
    return BadInputError(
        path,
        f"no pictures among the observations {keys}" if keys else "no observations",
        "at least one camera: obs/KEY as uint8 [T, H, W, 3]",
        "take the data set's image version, or draw pictures with robomimic's dataset_states_to_obs.py",
    )
