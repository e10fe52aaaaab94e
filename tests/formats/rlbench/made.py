"""RLBench data sets made up, with pickles of classes that have RLBench's names."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from counterpoint.data.episode import Array

HANDLES = {"floor": 7, "link": 39, "finger": 34, "door": 300}
"""Numbers of objects; one needs more than a byte."""

DESCRIPTIONS = ["close microwave", "shut the microwave"]


class Demo:
    def __init__(self, observations: list[Any]) -> None:
        self._observations = observations
        self.random_seed = np.random.get_state()
        self.num_reset_attempts = None


class Observation:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


Demo.__module__, Observation.__module__ = "rlbench.demo", "rlbench.backend.observation"


@contextmanager
def rlbench_installed() -> Iterator[None]:
    """`rlbench` can be imported, as pickling its classes needs, and is gone afterwards."""
    names = ("rlbench", "rlbench.demo", "rlbench.backend", "rlbench.backend.observation")
    modules = {name: ModuleType(name) for name in names}
    modules["rlbench.demo"].Demo = Demo  # type: ignore[attr-defined]
    modules["rlbench.backend.observation"].Observation = Observation  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def observation(step: int, **changed: Any) -> Observation:
    """At `step`: the arm sinks by 1 cm a step, the hand points down, and the gripper closes after three steps."""
    values: dict[str, Any] = {
        "joint_positions": np.arange(7.0) + step,
        "joint_velocities": np.zeros(7),
        "gripper_pose": np.array((0.25, 0.0, 1.25 - 0.01 * step, 0.0, 1.0, 0.0, 0.0)),
        "gripper_open": 1.0 if step < 3 else 0.0,
        "front_rgb": None,
        "misc": {"front_camera_near": np.float32(0.01), "names": ["a"]},
    }
    return Observation(**{**values, **changed})


def image(episode: int, step: int, size: int = 16) -> Array:
    return np.full((size, size, 3), (episode, step, 200), np.uint8)


def mask_image(size: int = 16) -> Array:
    """The floor, with a door above, a link to the left of it and a finger in the middle of the link."""
    handles = np.full((size, size), HANDLES["floor"])
    handles[: size // 2] = HANDLES["door"]
    handles[:, : size // 4] = HANDLES["link"]
    handles[size // 2, 0] = HANDLES["finger"]
    return np.stack([handles % 256, handles // 256 % 256, handles // 65536], -1).astype(np.uint8)


def write_episode(
    folder: Path,
    *,
    number: int = 0,
    length: int = 5,
    cameras: Sequence[str] = ("front", "wrist"),
    masks: Sequence[str] = ("front", "wrist"),
    protocol: int | None = None,
    **changed: Any,
) -> Path:
    """`length` observations; `changed` replaces attributes of each."""
    folder.mkdir(parents=True)
    with rlbench_installed():
        demo = Demo([observation(step, **changed) for step in range(length)])
        (folder / "low_dim_obs.pkl").write_bytes(pickle.dumps(demo, protocol))
    for camera in cameras:
        (folder / f"{camera}_rgb").mkdir()
        for step in range(length):
            Image.fromarray(image(number, step)).save(folder / f"{camera}_rgb" / f"{step}.png")
    for camera in masks:
        (folder / f"{camera}_mask").mkdir()
        for step in range(length):
            Image.fromarray(mask_image()).save(folder / f"{camera}_mask" / f"{step}.png")
    return folder


def write_task(root: Path, task: str = "close_microwave", *, variations: int = 1, episodes: int = 2, **of: Any) -> Path:
    """`root/TASK/variationN/episodes/episodeM` with descriptions, and returns `root/TASK`."""
    for variation in range(variations):
        folder = root / task / f"variation{variation}"
        for number in range(episodes):
            write_episode(folder / "episodes" / f"episode{number}", number=number, length=5 + number, **of)
        (folder / "variation_descriptions.pkl").write_bytes(pickle.dumps(DESCRIPTIONS))
    return root / task
