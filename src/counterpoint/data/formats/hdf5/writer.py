"""Write robomimic's HDF5 format, which robomimic trains from and this library reads: see `hdf5_layout`.

The file is built beside its place and takes its name when it is complete.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, Episode
from counterpoint.data.formats.hdf5.files import ROBOMIMIC_STATE, import_h5py
from counterpoint.data.masks.robot import picture_cameras
from counterpoint.errors import BadInputError

__all__ = ["RobomimicWriter", "robomimic_about"]

_ABOUT = "counterpoint"
_STATE_DIMS = (3, 4, 2)  # of each part of ROBOMIMIC_STATE
_SUBSETS = {"val": "valid"}  # robomimic's names of splits, where they are others
_SIMULATED = 1  # env_args["type"] of robosuite's environments


class RobomimicWriter:
    """Writes demonstrations of one robot in one environment; nothing stands there before `finalize`.

    Pictures of the camera `agentview` become `obs/agentview_image`, its mask `obs/agentview_mask` (uint8 [T, H, W, 1],
    255 on the robot). State is hand position (3), quaternion (4) and gripper (2). `next_obs` is `obs` one step later;
    of the last step, which has none, it is the last observation again.

    Args:
        path: The file to write; it must not exist.
        env_name: robosuite's name of the environment.
        env_version: robosuite's version.
        env_kwargs: What the environment is made with; `lang`, the instruction, is among it.
        model_file: The simulated model in MJCF, which `states` belong to.
        about: What else is to be known: JSON, kept as the attribute `counterpoint` of `data`.

    Raises:
        BadInputError: When something stands at the path.
        MissingExtraError: When `h5py` is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        env_name: str,
        env_version: str,
        env_kwargs: Mapping[str, Any],
        model_file: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        h5py = import_h5py()
        self._refuse_existing()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(dir=self.path.parent, prefix=f".{self.path.name}.")
        self._file = h5py.File(Path(self._folder.name) / "data.hdf5", "w")
        self._data = self._file.create_group("data")
        args = {"env_name": env_name, "env_version": env_version, "type": _SIMULATED}
        self._data.attrs["env_args"] = json.dumps({**args, "env_kwargs": dict(env_kwargs)}, indent=4)
        self._data.attrs[_ABOUT] = json.dumps(dict(about or {}))
        self._model = model_file
        self._lengths: list[int] = []

    def add_episode(self, episode: Episode, states: Array | None = None) -> None:
        """Append one demonstration.

        Args:
            episode: With actions, rewards, and state float32 [T, 9].
            states: The simulator's own states, float64 [T, n], from which it can be played back.

        Raises:
            BadInputError: When a part is missing or of another size, or the reward does not tell success as it does
                in robomimic's data.
        """
        where, length = f"demonstration {len(self._lengths)}", len(episode)
        dims = None if episode.state is None else episode.state.shape[1]
        if episode.actions is None or episode.rewards is None or dims != sum(_STATE_DIMS):
            raise BadInputError(
                where,
                f"actions {episode.actions is not None}, rewards {episode.rewards is not None}, state of {dims}",
                f"actions, rewards and a state of {sum(_STATE_DIMS)} numbers",
                "record it with counterpoint collect robosuite",
            )
        if episode.success is not None and episode.success != bool(episode.rewards.max() >= 1):
            raise BadInputError(
                where,
                f"success {episode.success} with a highest reward of {episode.rewards.max():g}",
                "a reward of 1 where the task is solved, and less elsewhere",
                "give robosuite's sparse rewards",
            )
        group = self._data.create_group(f"demo_{len(self._lengths)}")
        group.attrs["num_samples"] = length
        if self._model is not None:
            group.attrs["model_file"] = self._model
        group["actions"], group["rewards"] = episode.actions, episode.rewards
        group["dones"] = (np.arange(length) == length - 1).astype(np.int64)
        if states is not None:
            group["states"] = states
        for key, values in _observations(episode).items():
            picture = values.ndim == 4
            packed = {"compression": "gzip", "compression_opts": 1, "chunks": (1, *values.shape[1:])}
            after = np.concatenate([values[1:], values[-1:]])
            for name, content in ((f"obs/{key}", values), (f"next_obs/{key}", after)):
                group.create_dataset(name, data=content, **(packed if picture else {}))
        self._lengths.append(length)

    def finalize(self, splits: Mapping[str, str] | None = None) -> None:
        """Complete the file and give it its name.

        Args:
            splits: Split name -> "a:b", demonstrations a to b-1; they become the filter keys `train`, `valid` (of
                `val`) and so on.

        Raises:
            BadInputError: When there is no demonstration, or something stands at the path by now.
        """
        if not self._lengths:
            raise BadInputError(self.path, "no demonstration", "at least one", "call add_episode first")
        self._data.attrs["total"] = sum(self._lengths)
        for name, text in (splits or {}).items():
            first, stop = (int(end) for end in text.split(":"))
            names = [f"demo_{number}" for number in range(first, stop)]
            self._file[f"mask/{_SUBSETS.get(name, name)}"] = np.array(names, dtype="S")
        built = Path(self._file.filename)
        self._file.close()
        self._refuse_existing()
        built.rename(self.path)
        self._folder.cleanup()

    def _refuse_existing(self) -> None:
        if self.path.exists():
            raise BadInputError(self.path, "an existing path", "a new file", "give another name, or remove it")


def robomimic_about(path: Path) -> dict[str, Any]:
    """What a file says about itself (`about` of the writer); empty where it says nothing.

    Raises:
        OSError: When the file cannot be opened.
        ValueError: When what it says is no JSON.
        MissingExtraError: When `h5py` is not installed.
    """
    with import_h5py().File(path, "r") as file:
        about: dict[str, Any] = json.loads(file["data"].attrs.get(_ABOUT, "{}"))
    return about


def _observations(episode: Episode) -> dict[str, Array]:
    """Everything under `obs`."""
    pictures = picture_cameras(tuple(episode.frames))
    keys = {camera: f"{camera}_image" if camera in pictures else camera for camera in episode.frames}
    observed = {
        keys[camera]: frames if camera in pictures else frames[..., :1] for camera, frames in episode.frames.items()
    }
    assert episode.state is not None  # add_episode looked
    ends = np.cumsum(_STATE_DIMS)[:-1]
    parts = np.split(episode.state, ends, axis=1)
    return observed | {f"robot0_{name}": part for name, part in zip(ROBOMIMIC_STATE, parts, strict=True)}
