"""A square that neither camera shows whole: one gives its x, the other its y. As a task and as demonstrations."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from counterpoint.data.episode import Array, Episode
from counterpoint.data.store import MemoryStore
from counterpoint.envs.base import CameraEnv, choose_cameras
from tests.formats.hdf5.made import write_libero

__all__ = ["HORIZON", "INSTRUCTIONS", "OUTER", "SIZE", "WRIST", "PairTask", "record_pairs", "write_pairs"]

OUTER, WRIST = "agentview_rgb", "eye_in_hand_rgb"
SIZE, SIDE, SPEED, NEAR, HORIZON = 16, 5, 2.0, 2.5, 10
INSTRUCTIONS = {"stub/right": "push it to the upper right", "stub/left": "push it to the lower left"}
GOALS = {"stub/right": (12.0, 5.0), "stub/left": (4.0, 11.0)}


class PairTask(CameraEnv):
    """Push the square to the place that the task's instruction names; seven actions as LIBERO's, two that count."""

    def __init__(self, name: str = "stub/right", *, cameras: str | tuple[str, ...] = (OUTER, WRIST)) -> None:
        super().__init__(
            name,
            INSTRUCTIONS[name],
            cameras=choose_cameras(cameras, (OUTER,)),
            size=SIZE,
            action_dim=7,
            state_dim=9,
            control_hz=20,
            horizon=HORIZON,
        )
        self._goal = np.array(GOALS[name])

    def _begin(self, seed: int) -> None:
        self._place = np.random.default_rng(seed).uniform(SIDE / 2, SIZE - SIDE / 2, 2)

    def _images(self) -> dict[str, Array]:
        return {camera: self._image(camera) for camera in self.cameras}

    def _image(self, camera: str) -> Array:
        x, y = np.round(self._place - SIDE / 2).astype(int)
        image = np.full((SIZE, SIZE, 3), 40, np.uint8)
        if camera == OUTER:
            image[:, max(0, x) : x + SIDE] = (250, 160, 40)
        else:
            image[max(0, y) : y + SIDE] = (40, 160, 250)
        return image

    def state(self) -> Array:
        return np.zeros(self.state_dim, np.float32)

    def expert(self) -> Array:
        action = np.zeros(self.action_dim, np.float32)
        action[:2] = np.clip((self._goal - self._place) / SPEED, -1, 1)
        return action

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._place = np.clip(self._place + SPEED * action[:2], SIDE / 2, SIZE - SIDE / 2)
        far = float(np.abs(self._place - self._goal).max())
        return -far, far < NEAR, False


def record_pairs(count: int, *, names: tuple[str, ...] = ("stub/right", "stub/left"), seed: int = 0) -> MemoryStore:
    """`count` demonstrations of each task, through both cameras."""
    made = []
    for number in range(count):
        for name in names:
            task = PairTask(name)
            task.reset(seed=seed + number)
            frames, actions = [], []
            for _ in range(task.horizon):
                frames.append(np.stack(list(task.images().values())))
                actions.append(task.expert())
                task.step(actions[-1])
            both = np.stack(frames, 1)  # [C, T, H, W, 3]
            made.append(
                Episode(
                    frames={OUTER: both[0], WRIST: both[1]},
                    instruction=task.instruction,
                    timestamps=np.arange(task.horizon) / 20,
                    actions=np.stack(actions),
                    state=np.zeros((task.horizon, task.state_dim), np.float32),
                    success=True,
                )
            )
    return MemoryStore(made)


def write_pairs(folder: Path, count: int, *, seed: int = 0) -> Path:
    """The same as LIBERO's HDF5 files, one a task, their images upside down as there; returns the folder."""
    for name, words in INSTRUCTIONS.items():
        store = record_pairs(count, names=(name,), seed=seed)
        lengths = [info.length for info in store.episodes]
        path, _ = write_libero(folder / f"{words.replace(' ', '_')}_demo.hdf5", lengths, words=words)
        with h5py.File(path, "r+") as file:
            for episode, length in enumerate(lengths):
                demo = file[f"data/demo_{episode}"]
                actions = store.actions(episode)
                assert actions is not None
                demo["actions"][1:] = actions[:-1]  # LIBERO's recorder took image t after action t
                for camera in (OUTER, WRIST):
                    demo[f"obs/{camera}"][...] = store.frames(episode, np.arange(length), camera)[:, ::-1]
    return folder
