"""HDF5 files in the exact schemas of robomimic, LIBERO, IsaacLab and ALOHA, from made-up demonstrations."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from counterpoint.data.episode import Array
from tests.formats.made import smooth_frames

ENV_ARGS = {
    "env_name": "Lift",
    "env_version": "1.5.1",
    "type": 1,
    "env_kwargs": {"robots": ["Panda"], "control_freq": 20, "reward_shaping": False, "camera_names": ["agentview"]},
}


def made_demo(length: int, seed: int, *, solved: bool = True, size: int = 24) -> dict[str, Any]:
    """A demonstration as robomimic keeps it: arrays by name, observations in `obs`."""
    rng = np.random.default_rng(seed)
    rewards = np.zeros(length)
    rewards[-1] = float(solved)
    return {
        "actions": rng.uniform(-1, 1, (length, 7)),
        "rewards": rewards,
        "dones": (np.arange(length) == length - 1).astype(np.int64),
        "states": rng.normal(size=(length, 32)),
        "obs": {
            "agentview_image": smooth_frames(length, size, size, seed=2 * seed),
            "robot0_eye_in_hand_image": smooth_frames(length, size, size, seed=2 * seed + 1),
            "agentview_depth": rng.random((length, size, size, 1)),
            "robot0_eef_pos": rng.normal(size=(length, 3)),
            "robot0_eef_quat": rng.normal(size=(length, 4)),
            "robot0_gripper_qpos": rng.normal(size=(length, 2)),
            "robot0_joint_pos": rng.normal(size=(length, 7)),
            "object": rng.normal(size=(length, 10)),
        },
    }


def write_robomimic(
    path: Path,
    demos: Sequence[Mapping[str, Any]] | None = None,
    *,
    env_args: Mapping[str, Any] | None = ENV_ARGS,
    masks: Mapping[str, Sequence[int]] | None = None,
    compression: str | None = None,
) -> Path:
    """`demos` (by default three, of 5, 12 and 3 steps) as a robomimic data set; returns `path`."""
    demos = demos or [made_demo(length, seed, solved=seed != 1) for seed, length in enumerate((5, 12, 3))]
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, demo in enumerate(demos):
            _write_demo(data.create_group(f"demo_{number}"), demo, next_obs=True, compression=compression)
        data.attrs["total"] = sum(len(demo["actions"]) for demo in demos)
        if env_args is not None:
            data.attrs["env_args"] = json.dumps(env_args, indent=4)
        for name, numbers in (masks or {}).items():
            file[f"mask/{name}"] = np.array([f"demo_{number}" for number in numbers], dtype="S")
    return path


def write_libero(
    path: Path,
    lengths: Sequence[int] = (6, 4),
    *,
    words: str | None = "turn on the stove",
    convention: str | None = "opengl",
    seed: int = 0,
) -> tuple[Path, list[Array]]:
    """A task of LIBERO; returns `path` and each demonstration's `agentview` images as one would see them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    upright = []
    flip = slice(None, None, 1 if convention == "opencv" else -1)
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, length in enumerate(lengths):
            images = smooth_frames(length, 16, 16, seed=seed + number)
            upright.append(images)
            ee = rng.normal(size=(length, 6))
            last = (np.arange(length) == length - 1).astype(np.uint8)
            demo = {
                "actions": rng.uniform(-1, 1, (length, 7)),
                "rewards": last,
                "dones": last,
                "states": rng.normal(size=(length, 40)),
                "robot_states": rng.normal(size=(length, 9)),
                "obs": {
                    "agentview_rgb": images[:, flip],
                    "eye_in_hand_rgb": images[:, flip, ::-1],
                    "ee_states": ee,
                    "ee_pos": ee[:, :3],
                    "ee_ori": ee[:, 3:],
                    "gripper_states": rng.normal(size=(length, 2)),
                    "joint_states": rng.normal(size=(length, 7)),
                },
            }
            _write_demo(data.create_group(f"demo_{number}"), demo, next_obs=False, compression=None)
        data.attrs["num_demos"], data.attrs["total"] = len(lengths), sum(lengths)
        data.attrs["env_name"] = "Libero_Kitchen_Tabletop_Manipulation"
        data.attrs["bddl_file_name"] = f"chiliocosm/bddl_files/{path.stem}.bddl"
        data.attrs["env_args"] = json.dumps(
            {"type": 1, "env_name": "Libero_Kitchen_Tabletop_Manipulation", "env_kwargs": {"control_freq": 20}}
        )
        problem = {"problem_name": "libero_kitchen_tabletop_manipulation", "domain_name": "robosuite"}
        if words is not None:
            problem["language_instruction"] = words
        data.attrs["problem_info"] = json.dumps(problem)
        if convention is not None:
            data.attrs["macros_image_convention"] = convention
    return path, upright


def write_low_dim(path: Path) -> Path:
    """Two demonstrations of robomimic's `low_dim` files, which have no images; returns `path`."""
    demos = [made_demo(length, seed) for seed, length in enumerate((6, 4))]
    for demo in demos:
        demo["obs"] = {key: values for key, values in demo["obs"].items() if np.ndim(values) == 2}
    return write_robomimic(path, demos)


def write_robocasa(path: Path) -> Path:
    """One demonstration of robocasa, with its own words; returns `path`."""
    demo = made_demo(4, 0)
    demo["obs"]["robot0_agentview_left_image"] = demo["obs"].pop("agentview_image")
    write_robomimic(path, [demo], env_args=ENV_ARGS | {"env_name": "CloseDrawer"})
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["ep_meta"] = json.dumps({"lang": "close the drawer", "layout_id": 3, "style_id": 1})
    return path


def write_regenerated(path: Path, lengths: Sequence[int] = (6, 4)) -> tuple[Path, list[Array]]:
    """A task of LIBERO as OpenVLA's script regenerates it: no attributes; returns what `write_libero` returns."""
    path, upright = write_libero(path, lengths)
    with h5py.File(path, "a") as file:
        for part in (file["data"], *file["data"].values()):
            for name in list(part.attrs):
                del part.attrs[name]
    return path, upright


def write_isaaclab(path: Path, *, successes: Sequence[bool] = (True, False), images: bool = True) -> Path:
    """Demonstrations of IsaacLab's recorder, one of nine steps for each success; returns `path`."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        args = {"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2, "sim_args": {"dt": 0.01, "decimation": 4}}
        data.attrs["env_args"], data.attrs["total"] = json.dumps(args), 9 * len(successes)
        for number, success in enumerate(successes):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["success"], demo.attrs["num_samples"] = success, 9
            demo["actions"] = rng.normal(size=(9, 7))
            if images:
                demo["obs/table_cam"] = smooth_frames(9, 16, 16, seed=number)
            demo["obs/eef_pos"], demo["obs/joint_pos"] = rng.normal(size=(9, 3)), rng.normal(size=(9, 9))
            demo["states/articulation/robot/joint_position"] = rng.normal(size=(9, 9))
            demo["initial_state/articulation/robot/joint_position"] = rng.normal(size=(1, 9))
    return path


def write_aloha(folder: Path, numbers: Sequence[int] = (0, 1), *, packed: bool = False, length: int = 6) -> Path:
    """Demonstrations of ALOHA, a file for each number; returns the folder.

    Args:
        folder: The folder.
        numbers: N of each file `episode_N.hdf5`; N is also the first number of its actions.
        packed: Keep images as rows of JPEG bytes, all red, with zeros behind each.
        length: Steps of each demonstration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = False, packed
            wide = np.arange(length * 14, dtype=np.float32).reshape(length, 14)
            file["action"], file["observations/qpos"] = wide + number, wide + 100
            file["observations/qvel"] = np.zeros_like(wide)
            for camera in ("cam_high", "cam_left_wrist"):
                images = smooth_frames(length, 16, 24, seed=number)
                file[f"observations/images/{camera}"] = _packed(length) if packed else images
            if packed:
                file["compress_len"] = np.zeros((2, length))
    return folder


def _packed(length: int) -> Array:
    rows = []
    for step in range(length):
        buffer, image = io.BytesIO(), np.zeros((16, 24, 3), np.uint8)
        image[..., 0] = 250 - step
        Image.fromarray(image).save(buffer, "jpeg", quality=95)
        rows.append(np.frombuffer(buffer.getvalue(), np.uint8))
    longest = max(map(len, rows)) + 5
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def _write_demo(group: Any, demo: Mapping[str, Any], *, next_obs: bool, compression: str | None) -> None:
    group.attrs["num_samples"] = len(demo["actions"])
    group.attrs["model_file"] = "<mujoco/>"
    for name, values in demo.items():
        if name != "obs":
            group.create_dataset(name, data=values)
    for key, values in demo["obs"].items():
        group.create_dataset(f"obs/{key}", data=values, compression=compression)
        if next_obs:
            after = np.concatenate([values[1:], values[-1:]])
            group.create_dataset(f"next_obs/{key}", data=after, compression=compression)
