"""Small demonstrations with robot masks: a bright square (the robot) moves where the action says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.episode import Episode
from counterpoint.data.robot_masks import mask_camera
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.observation import ObservationConfig
from counterpoint.encoders.observation_networks import ViTConfig
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.imitation import ImitationRecipe
from counterpoint.training.settings import TrainConfig
from tests.data.reading import read_episode

__all__ = ["CAMERAS", "SMALL_VIT", "masked_demos", "small_imitation", "write_masked_demos"]

CAMERAS = ("top", "wrist")
SMALL_VIT = ObservationConfig(
    kind="vit", size=32, stack=1, cameras=2, vit=ViTConfig(patch=8, embed_dim=24, depth=2, heads=3)
)


def masked_demos(
    lengths: tuple[int, ...] = (20, 14), *, masks: tuple[str, ...] = ("top",), size: int = 36
) -> MemoryStore:
    """Two cameras, two actions, three numbers of state."""
    rng, episodes = np.random.default_rng(1), []
    for length in lengths:
        path = np.cumsum(rng.uniform(-1, 1, (length + 1, 2)), 0).clip(-8, 8)
        frames = {camera: np.full((length, size, size, 3), 60, np.uint8) for camera in CAMERAS}
        frames |= {mask_camera(camera): np.zeros((length, size, size, 3), np.uint8) for camera in masks}
        for step in range(length):
            x, y = (8 + path[step]).astype(int)
            for camera in CAMERAS:
                frames[camera][step, y : y + 16, x : x + 16] = 220
            for camera in masks:
                frames[mask_camera(camera)][step, y : y + 16, x : x + 16] = 255
        state = np.concatenate([path[:-1], np.ones((length, 1))], 1).astype(np.float32)
        actions = np.diff(path, axis=0).astype(np.float32)
        episodes.append(Episode(frames, "follow", np.arange(length) / 20, actions=actions, state=state))
    return MemoryStore(episodes, fps=20)


def small_imitation(**changes: object) -> ImitationRecipe:
    """A policy that trains in a second; keys of `train` are given as `steps`, `batch_size` and so on."""
    diffusion = DiffusionConfig(down_dims=(16, 32, 64), step_dim=16, layers=2, width=32, train_steps=20)
    tree: dict[str, object] = {"encoder": SMALL_VIT, "frame": 36, "diffusion": diffusion}
    tree["train"] = TrainConfig(steps=4, batch_size=8, trackers=(), log_every=1, eval_every=2, save_every=2)
    return ImitationRecipe.model_validate(tree | changes)


def write_masked_demos(root: Path) -> Path:
    """A LeRobot data set with masks of one camera, three training episodes and one for validation."""
    store = masked_demos((16, 14, 12, 13))
    writer = LeRobotWriter(
        root,
        fps=20,
        cameras=dict.fromkeys(store.cameras, (36, 36)),
        action_dim=2,
        state_dim=3,
        robot_type="square",
        image_cameras=[camera for camera in store.cameras if camera.endswith("_mask")],
    )
    for number in range(4):
        writer.add_episode(read_episode(store, number))
    writer.finalize({"train": "0:3", "val": "3:4"})
    return root
