"""Write robomimic's HDF5 format, which both robomimic and this library read; see `hdf5.files`.

The file is built next to its path and renamed when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array, Episode
from counterpoint.data.robot_masks import rgb_cameras
from counterpoint.errors import require
from counterpoint.files import Beside
from counterpoint.formats.base import require_new
from counterpoint.formats.hdf5.dialects import ROBOMIMIC_STATE
from counterpoint.formats.hdf5.opening import import_h5py

_ABOUT = "counterpoint"
_STATE_DIMS = (3, 4, 2)  # dimensions of each part of ROBOMIMIC_STATE
_SUBSETS = {"val": "valid"}  # robomimic's names of splits that differ from those of this library
_SIMULATED = 1  # env_args["type"] of robosuite's environments


class RobomimicWriter:
    """A writer of demonstrations of one robot in one environment; nothing exists at the path before `finalize`.

    Images of the camera `agentview` become `obs/agentview_image`, its mask `obs/agentview_mask` (uint8 [T, H, W, 1],
    255 on the robot). State is end effector position (3), quaternion (4) and gripper (2). `next_obs` is `obs` one step
    later; the last step has no next observation, so its own is repeated.

    Args:
        path: The file to write; it must not exist.
        env_name: robosuite's name of the environment.
        env_version: robosuite's version.
        env_kwargs: The environment's arguments, including `lang`, the instruction.
        model_file: The simulated model in MJCF, whose states are the `states` of the episodes.
        about: Further notes as JSON values, kept as the attribute `counterpoint` of `data`.

    Raises:
        BadInputError: When the path exists.
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
        require_new(self.path)
        self._folder = Beside(self.path)
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
            episode: An episode with actions, rewards, and state float32 [T, 9].
            states: The simulator's own states, float64 [T, n], from which the episode can be played back.

        Raises:
            BadInputError: When a part is missing or has another size, or the reward does not mark success as in
                robomimic's data.
        """
        where, length = f"demonstration {len(self._lengths)}", len(episode)
        dims = None if episode.state is None else episode.state.shape[1]
        good = episode.actions is not None and episode.rewards is not None and dims == sum(_STATE_DIMS)
        expected, hint = f"actions, rewards and a state of {sum(_STATE_DIMS)} numbers", "use counterpoint collect"
        found = f"actions {episode.actions is not None}, rewards {episode.rewards is not None}, state of {dims}"
        require(good, where, found, expected, hint)
        assert episode.rewards is not None
        found = f"success {episode.success} with a highest reward of {episode.rewards.max():g}"
        good = episode.success in (None, bool(episode.rewards.max() >= 1))
        require(good, where, found, "a reward of 1 only where the task is solved", "give robosuite's sparse rewards")
        group = self._data.create_group(f"demo_{len(self._lengths)}")
        group.attrs["num_samples"] = length
        if self._model is not None:
            group.attrs["model_file"] = self._model
        group["actions"], group["rewards"] = episode.actions, episode.rewards
        group["dones"] = (np.arange(length) == length - 1).astype(np.int64)
        if states is not None:
            group["states"] = states
        for key, values in _observations(episode).items():
            packed = {"compression": "gzip", "compression_opts": 1, "chunks": (1, *values.shape[1:])}
            after = np.concatenate([values[1:], values[-1:]])
            for name, content in ((f"obs/{key}", values), (f"next_obs/{key}", after)):
                group.create_dataset(name, data=content, **(packed if values.ndim == 4 else {}))
        self._lengths.append(length)

    def finalize(self, splits: Mapping[str, str] | None = None) -> None:
        """Complete the file and move it to its path.

        Args:
            splits: The demonstrations of each split as "a:b", a to b-1; splits become filter keys (`val` becomes
                `valid`).

        Raises:
            BadInputError: When there is no demonstration, or the path exists by now.
        """
        require(self._lengths, self.path, "no demonstration", "at least one", "call add_episode first")
        self._data.attrs["total"] = sum(self._lengths)
        for name, text in (splits or {}).items():
            first, stop = (int(end) for end in text.split(":"))
            names = [f"demo_{number}" for number in range(first, stop)]
            self._file[f"mask/{_SUBSETS.get(name, name)}"] = np.array(names, dtype="S")
        built = Path(self._file.filename)
        self._file.close()
        require_new(self.path)
        built.rename(self.path)
        self._folder.cleanup()


def robomimic_about(path: Path) -> dict[str, Any]:
    """Return the notes in a file (`about` of the writer); raise `OSError` or `ValueError` if it cannot be read."""
    with import_h5py().File(path, "r") as file:
        about: dict[str, Any] = json.loads(file["data"].attrs.get(_ABOUT, "{}"))
    return about


def _observations(episode: Episode) -> dict[str, Array]:
    """Return all arrays that are written under `obs`."""
    images = rgb_cameras(tuple(episode.frames))
    observed = {
        f"{camera}_image" if camera in images else camera: frames if camera in images else frames[..., :1]
        for camera, frames in episode.frames.items()
    }
    assert episode.state is not None  # add_episode has checked
    parts = np.split(episode.state, np.cumsum(_STATE_DIMS)[:-1], axis=1)
    if episode.environment_state is not None:
        observed["object"] = episode.environment_state
    return observed | {f"robot0_{name}": part for name, part in zip(ROBOMIMIC_STATE, parts, strict=True)}
